// Which way a reduction goes, and how long it takes.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "collective/policy/cost_model.h"
#include "collective/policy/wan_policy.h"

namespace geocomm::collective {
namespace {

using core::StatusCode;

CostModel model_of(LinkMatrix links) {
  return CostModel::create(std::move(links)).value();
}

TEST(CostModel, two_sites_always_broadcast) {
  const CostModel model = model_of(LinkMatrix::uniform(2, 1e8, 0.05));
  EXPECT_EQ(model.schemes().size(), 1u);
  EXPECT_FALSE(model.choose(1e12).has_owners());
  EXPECT_NEAR(model.seconds(1e8), 1.05, 1e-12);
}

TEST(CostModel, equal_links_have_owners_from_the_size_that_the_formula_says) {
  for (const std::size_t sites : {3u, 4u, 8u}) {
    const double rate = 1.25e8;
    const double delay = 0.05;
    const CostModel model = model_of(LinkMatrix::uniform(sites, rate, delay));
    const auto n = static_cast<double>(sites);
    // Links of their own to every other site: broadcast-all S / B + L, owner-reduces 2 S / (N B) + 2 L.
    const double turn = delay * rate * n / (n - 2);
    EXPECT_FALSE(model.choose(0.97 * turn).has_owners()) << sites;
    EXPECT_TRUE(model.choose(1.03 * turn).has_owners()) << sites;
    EXPECT_NEAR(model.seconds(10 * turn), 2 * 10 * turn / (n * rate) + 2 * delay, 1e-3);
    // One access line for all of them: the formula of broadcast-all (N-1) S / B + L against 2 S (N-1) / (N
    // B).
    LinkMatrix shared = LinkMatrix::uniform(sites, 1e3 * rate, delay);
    shared.up_bytes_per_s.assign(sites, rate);
    const CostModel access = model_of(shared);
    const double turn_of_access = delay * rate * n / ((n - 1) * (n - 2));
    EXPECT_FALSE(access.choose(0.97 * turn_of_access).has_owners()) << sites;
    EXPECT_TRUE(access.choose(1.03 * turn_of_access).has_owners()) << sites;
  }
}

TEST(CostModel, shares_are_whole_parts_that_add_up) {
  LinkMatrix links = LinkMatrix::uniform(5, 1e8, 0.02);
  links.bytes_per_s[0 * 5 + 1] = 3e7;
  links.bytes_per_s[4 * 5 + 2] = 1e7;
  const CostModel model = model_of(links);
  const ReduceScheme& scheme = model.choose(1e10);
  ASSERT_EQ(scheme.shares.size(), 5u);
  EXPECT_EQ(std::accumulate(scheme.shares.begin(), scheme.shares.end(), 0u), kShareParts);
}

TEST(CostModel, a_far_site_owns_of_large_reductions_only) {
  LinkMatrix links = LinkMatrix::uniform(5, 1e8, 0.01);
  for (std::size_t other = 0; other < 4; ++other) {
    links.one_way_s[other * 5 + 4] = links.one_way_s[4 * 5 + other] = 0.15;
  }
  const CostModel model = model_of(links);
  // Owners at the near sites cost 2 x 150 ms for the far one anyway, so it may own as well.
  EXPECT_NEAR(model.choose(1e10).lines.front().latency_s, 0.3, 1e-12);
  EXPECT_GT(model.choose(1e10).shares[4], 0u);
  // Its links to two of the others are farther still: what it owned would come last.
  links.one_way_s[0 * 5 + 4] = 0.3;
  links.one_way_s[4 * 5 + 1] = 0.3;
  const CostModel lopsided = model_of(links);
  EXPECT_EQ(lopsided.choose(4e7).shares.empty() ? 0u : lopsided.choose(4e7).shares[4], 0u);
  EXPECT_GT(lopsided.choose(1e11).shares[4], 0u);
}

TEST(CostModel, time_never_falls_as_bytes_rise) {
  LinkMatrix links = LinkMatrix::uniform(6, 5e7, 0.04);
  for (std::size_t i = 0; i < 36; ++i) {
    links.bytes_per_s[i] *= 1.0 + static_cast<double>(i * 7 % 5);
    links.one_way_s[i] *= 1.0 + static_cast<double>(i * 5 % 3);
  }
  const CostModel model = model_of(links);
  double last = 0.0;
  for (double bytes = 1; bytes < 1e11; bytes *= 1.3) {
    const double seconds = model.seconds(bytes);
    EXPECT_GE(seconds, last * 0.995);
    last = seconds;
  }
}

TEST(CostModel, impossible_links_are_refused) {
  const auto code_of = [](auto spoil) {
    LinkMatrix links = LinkMatrix::uniform(3, 1e8, 0.05);
    spoil(links);
    return CostModel::create(links).status().code();
  };
  EXPECT_EQ(code_of([](LinkMatrix&) {}), StatusCode::Ok);
  EXPECT_EQ(code_of([](LinkMatrix& l) { l.bytes_per_s[0] = -1; }), StatusCode::Ok);  // the diagonal
  EXPECT_EQ(code_of([](LinkMatrix& l) { l.bytes_per_s[1] = 0; }), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of([](LinkMatrix& l) { l.bytes_per_s[1] = std::nan(""); }), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of([](LinkMatrix& l) { l.one_way_s[5] = -0.1; }), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of([](LinkMatrix& l) { l.one_way_s[5] = 61; }), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of([](LinkMatrix& l) { l.one_way_s.pop_back(); }), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of([](LinkMatrix& l) { l.up_bytes_per_s = {1e8}; }), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of([](LinkMatrix& l) { l.down_bytes_per_s = {1e8, 0, 1e8}; }), StatusCode::InvalidArgument);
  EXPECT_EQ(CostModel::create(LinkMatrix::assumed(1)).status().code(), StatusCode::Unsupported);
}

TEST(WanPolicy, classes_choose_the_codec_and_its_size_the_way) {
  const auto spec = [](const char* text) { return codec::CodecSpec::parse(text).value(); };
  const auto policy = WanPolicy::create(LinkMatrix::uniform(3, 1.25e8, 0.05),
                                        {{1 << 16, spec("lossless")}, {1 << 24, spec("int8")}})
                          .value();
  EXPECT_EQ(policy->codec_for(65535).to_string(), "none");
  EXPECT_EQ(policy->codec_for(65536).to_string(), "lossless");
  EXPECT_EQ(policy->codec_for(1 << 25).to_string(), "int8");
  // 50 ms at 125 MB/s, times three: 18.75 MB of wire bytes.
  const std::uint64_t elements = 6'000'000;
  const auto scheme_of = [&](const char* codec) {
    return policy->scheme_for(Pattern::AllReduce, spec(codec), core::DType::Float32, elements);
  };
  EXPECT_TRUE(scheme_of("none")->has_owners());
  EXPECT_FALSE(scheme_of("int8")->has_owners());
}

// Of tensors on accelerators: two levels would leave to the host what they code else.
TEST(WanPolicy, two_levels_are_left_where_the_host_codes_slower_than_links_carry) {
  const auto spec = [](const char* text) { return codec::CodecSpec::parse(text).value(); };
  LinkMatrix links = LinkMatrix::uniform(4, 1e7, 0.001);
  links.regions = {0, 0, 1, 1};
  for (const std::size_t pair : {1u, 4u, 11u, 14u}) links.bytes_per_s[pair] = 1e9;
  const auto by_region = [&](Pattern pattern, const char* codec, std::vector<HostCoding> coding) {
    const auto policy = WanPolicy::create(links, {}, std::move(coding)).value();
    return policy->scheme_for(pattern, spec(codec), core::DType::Float32, 10'000'000)->has_two_levels();
  };
  const HostCoding slow{spec("int8"), 1e-8, 1e-8, 1e-9};
  const HostCoding fast{spec("int8"), 1e-10, 1e-10, 1e-11};
  const HostCoding slow_copies{spec("int8"), 1e-10, 1e-10, 1e-8};
  for (const Pattern pattern : {Pattern::AllReduce, Pattern::ReduceScatter}) {
    EXPECT_TRUE(by_region(pattern, "int8", {}));
    EXPECT_TRUE(by_region(pattern, "int8", {fast}));
    EXPECT_FALSE(by_region(pattern, "int8", {slow}));
    EXPECT_FALSE(by_region(pattern, "int8", {slow_copies}));
    EXPECT_FALSE(by_region(pattern, "int4", {fast, slow}));  // unknown: as the slowest
    EXPECT_TRUE(by_region(pattern, "none", {slow}));         // the host's business whichever way
  }
  // An encoding, a decoding and a copy, and of an all-reduce those of the results; a site owns a quarter.
  const auto policy = WanPolicy::create(links, {}, {{spec("int8"), 4.0e-9, 3.0e-9, 2.0e-9}}).value();
  EXPECT_DOUBLE_EQ(policy->coding_s(Pattern::ReduceScatter, spec("int8"), 1e9), 9.0);
  EXPECT_DOUBLE_EQ(policy->coding_s(Pattern::AllReduce, spec("int8"), 1e9), 15.0);
  EXPECT_EQ(policy->coding_s(Pattern::AllReduce, spec("lossless"), 1e9), 0.0);
  for (const HostCoding& bad :
       {HostCoding{{}, -1e-9, 0, 0}, HostCoding{{}, 2, 0, 0}, HostCoding{{}, 0, NAN, 0}}) {
    EXPECT_EQ(WanPolicy::create(links, {}, {bad}).status().code(), StatusCode::InvalidArgument);
  }
}

TEST(WanPolicy, impossible_classes_are_refused) {
  const auto code_of = [](std::vector<CodecClass> classes) {
    return WanPolicy::create(LinkMatrix::assumed(2), std::move(classes)).status().code();
  };
  EXPECT_EQ(code_of({{0, {}}, {1, {}}}), StatusCode::Ok);
  EXPECT_EQ(code_of({{1, {}}, {1, {}}}), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of({{0, {.id = codec::CodecId::Int8, .block = 100}}}), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of({{0, {.id = codec::CodecId::TopK}}}), StatusCode::Unsupported);
}

}  // namespace
}  // namespace geocomm::collective
