// Reductions between sites over real sockets: equal bits on all receivers, and the right values.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "collective/sums/reduction.h"
#include "exchange_fixture.h"

namespace geocomm::collective {
namespace {

using namespace testing;
using codec::CodecId;
using codec::CodecSpec;

struct Settings {
  CodecSpec codec = {};
  Way way = Way::EqualOwners;
  std::size_t chunk_bytes = 2048;
};

ExchangeGroup::Tune tune_to(const Settings& settings) {
  return [settings](int, ExchangeConfig& config) {
    const auto sites = static_cast<std::size_t>(config.topology.site_count());
    config.policy = policy_of(settings.codec, links_for(settings.way, sites));
    config.chunk_bytes = settings.chunk_bytes;
  };
}

std::vector<Status> all_reduce(ExchangeGroup& group, std::uint64_t seq, DType dtype, ReduceOp op,
                               SiteVectors& data) {
  return group.run([&](int rank) {
    auto stripes = data.stripes(rank);
    return group.exchange(rank).reduce(context_of(OpKind::AllReduce, seq, dtype, data.elements()), op,
                                       stripes);
  });
}

Bytes reference(DType dtype, ReduceOp op, const std::vector<Bytes>& inputs, int ranks) {
  std::vector<const std::byte*> sources;
  for (const Bytes& input : inputs) sources.push_back(input.data());
  Bytes result(inputs.front().size());
  reduce_elements(dtype, op, sources, result.data(), result.size() / core::size_of(dtype), ranks);
  return result;
}

// What the way makes of it: with two levels the sum of each region, then that of the regions.
Bytes reference(Way way, DType dtype, ReduceOp op, const std::vector<Bytes>& inputs, int ranks) {
  const LinkMatrix links = links_for(way, inputs.size());
  if (links.regions.empty()) return reference(dtype, op, inputs, ranks);
  std::vector<Bytes> sums;
  for (std::uint32_t region = 0; region <= links.regions.back(); ++region) {
    std::vector<Bytes> own;
    for (std::size_t site = 0; site < inputs.size(); ++site) {
      if (links.regions[site] == region) own.push_back(inputs[site]);
    }
    sums.push_back(reference(dtype, op, own, 1));
  }
  return reference(dtype, op, sums, ranks);
}

// Largest error of one element that goes through the codec, for values of at most `absmax`.
double codec_error(const CodecSpec& codec, double absmax) {
  const double steps = codec.rounding == codec::Rounding::Stochastic ? 1.001 : 0.501;
  switch (codec.id) {
    case CodecId::Int8:
      return absmax / 127 * 1.008 * steps;
    case CodecId::Int4:
      return absmax / 7 * 1.008 * steps;
    case CodecId::Fp16:
      return absmax / 2048 + 1e-7;
    case CodecId::Bf16:
      return absmax / 256;
    case CodecId::DeadZone:
    case CodecId::BitPlanes:
      return absmax * codec.step * 0.61;  // the rms is at most absmax
    case CodecId::Bit2:
    case CodecId::Bit1:
      return absmax * 1.6;  // what is clipped
    case CodecId::None:
    case CodecId::Lossless:
    case CodecId::TopK:  // these two are refused by the backend: there is no residual
    case CodecId::Loco:
      break;
  }
  return 0;
}

double absmax_of(DType dtype, const Bytes& bytes) {
  double most = 0;
  for (std::size_t i = 0; i < bytes.size() / core::size_of(dtype); ++i) {
    most = std::max(most, std::abs(value_at(dtype, bytes, i)));
  }
  return most;
}

const std::vector<std::vector<int>>& shapes() {
  static const std::vector<std::vector<int>> kShapes = {
      {1, 1}, {2, 3}, {1, 2, 1}, {1, 1, 1, 1}, {2, 1, 1, 1, 2}};
  return kShapes;
}

class ExchangeAlgorithms : public ::testing::TestWithParam<Way> {};

TEST_P(ExchangeAlgorithms, all_reduce_of_every_dtype_and_op_by_exact_codecs_is_exact_in_site_order) {
  for (const std::string_view text : {"none", "lossless"}) {
    for (const auto& sizes : shapes()) {
      ExchangeGroup group(sizes, tune_to({.codec = spec_of(text), .way = GetParam()}));
      std::uint64_t seq = 0;
      for (DType dtype : all_dtypes()) {
        for (int number = 0; number < 8; ++number) {
          const auto op = static_cast<ReduceOp>(number);
          if (!check_reduction(dtype, op).is_ok()) continue;
          SiteVectors data(group.topology(0), dtype, 5003, ++seq);
          expect_all_ok(all_reduce(group, seq, dtype, op, data));
          const Bytes expected = reference(GetParam(), dtype, op, data.inputs(), group.size());
          for (const Bytes& output : data.outputs()) {
            ASSERT_TRUE(output == expected) << text << " " << core::to_string(dtype) << " " << to_string(op);
          }
        }
      }
    }
  }
}

TEST_P(ExchangeAlgorithms, all_reduce_with_every_codec_is_equal_everywhere_and_within_its_bound) {
  for (const auto& sizes : shapes()) {
    for (const std::string_view text :
         {"fp16", "bf16", "bf16+huffman", "int8", "int8:block=64,round=stochastic", "int8+zstd", "int4",
          "int4:block=1024,round=stochastic+huffman", "bit2", "bit1", "balanced", "small",
          "deadzone:step=0.3,block=128+none", "bitplanes:step=0.3,block=128", "lossless"}) {
      const CodecSpec codec = spec_of(text);
      ExchangeGroup group(sizes, tune_to({codec, GetParam(), 4096}));
      std::uint64_t seq = 0;
      for (DType dtype : {DType::Float32, DType::Float16, DType::BFloat16}) {
        for (ReduceOp op : {ReduceOp::Sum, ReduceOp::Avg}) {
          SiteVectors data(group.topology(0), dtype, 7001, ++seq);
          expect_all_ok(all_reduce(group, seq, dtype, op, data));
          double bound = 1e-5;
          std::vector<double> sums(data.elements());
          for (const Bytes& input : data.inputs()) {
            bound += codec_error(codec, absmax_of(dtype, input));
            for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += value_at(dtype, input, i);
          }
          // The requantization of the owner, and the rounding to the dtype; with two levels those of regions,
          // too.
          const double sum_absmax =
              absmax_of(dtype, data.outputs()[0]) * (op == ReduceOp::Avg ? group.size() : 1);
          bound += codec_error(codec, sum_absmax * 1.2 + bound);
          const double rounding = dtype == DType::Float32 ? 0 : 1.0 / (dtype == DType::Float16 ? 2048 : 256);
          if (GetParam() == Way::TwoLevels) {
            for (const Bytes& input : data.inputs()) {
              const double absmax = absmax_of(dtype, input);
              bound += 1.2 * codec_error(codec, absmax) + absmax * rounding;
            }
          }
          bound += sum_absmax * rounding;
          const double divisor = op == ReduceOp::Avg ? group.size() : 1;
          for (const Bytes& output : data.outputs()) {
            ASSERT_TRUE(output == data.outputs()[0]) << "replicas differ: " << codec.to_string();
          }
          for (std::size_t i = 0; i < sums.size(); ++i) {
            ASSERT_NEAR(value_at(dtype, data.outputs()[0], i), sums[i] / divisor, bound / divisor)
                << codec.to_string() << " " << core::to_string(dtype) << " at " << i;
          }
        }
      }
    }
  }
}

TEST_P(ExchangeAlgorithms, reduce_to_one_site_leaves_the_other_sites_data_alone) {
  const std::vector<int> sizes = {2, 1, 3};
  for (CodecId id : {CodecId::None, CodecId::Int8}) {
    ExchangeGroup group(sizes, tune_to({{.id = id}, GetParam(), 2048}));
    for (std::size_t root = 0; root < sizes.size(); ++root) {
      SiteVectors data(group.topology(0), DType::Float32, 4001, root);
      std::vector<bool> receives(sizes.size(), false);
      receives[root] = true;
      expect_all_ok(group.run([&](int rank) {
        auto stripes = data.stripes(rank, receives);
        return group.exchange(rank).reduce(context_of(OpKind::Reduce, root, DType::Float32, 4001),
                                           ReduceOp::Sum, stripes);
      }));
      for (std::size_t site = 0; site < sizes.size(); ++site) {
        if (site == root) continue;
        EXPECT_EQ(data.outputs()[site], data.inputs()[site]);
      }
      double bound = 1e-5;
      for (const Bytes& input : data.inputs())
        bound += codec_error({.id = id}, absmax_of(DType::Float32, input));
      const Bytes exact = reference(DType::Float32, ReduceOp::Sum, data.inputs(), 1);
      if (id == CodecId::None) {
        EXPECT_EQ(data.outputs()[root], exact);
      }
      for (std::size_t i = 0; i < 4001; ++i) {
        ASSERT_NEAR(value_at(DType::Float32, data.outputs()[root], i), value_at(DType::Float32, exact, i),
                    bound);
      }
    }
  }
}

TEST_P(ExchangeAlgorithms, some_sites_receive_and_the_owner_may_be_none_of_them) {
  ExchangeGroup group({1, 1, 1, 1}, tune_to({{.id = CodecId::Int8}, GetParam(), 2048}));
  SiteVectors data(group.topology(0), DType::BFloat16, 4001, 3);
  const std::vector<bool> receives = {false, true, false, true};
  expect_all_ok(group.run([&](int rank) {
    auto stripes = data.stripes(rank, receives);
    return group.exchange(rank).reduce(context_of(OpKind::Reduce, 1, DType::BFloat16, 4001), ReduceOp::Sum,
                                       stripes);
  }));
  EXPECT_EQ(data.outputs()[0], data.inputs()[0]);
  EXPECT_EQ(data.outputs()[2], data.inputs()[2]);
  EXPECT_EQ(data.outputs()[1], data.outputs()[3]);
  EXPECT_NE(data.outputs()[1], data.inputs()[1]);
}

TEST_P(ExchangeAlgorithms, nan_and_inf_arrive_and_harm_only_their_block) {
  ExchangeGroup group({1, 1, 1, 1}, tune_to({{.id = CodecId::Int8}, GetParam(), 4096}));
  SiteVectors data(group.topology(0), DType::Float32, 4096, 5);
  set_value(DType::Float32, data.inputs()[1], 700, std::numeric_limits<double>::quiet_NaN());
  set_value(DType::Float32, data.inputs()[2], 2000, std::numeric_limits<double>::infinity());
  data.reset_outputs();
  expect_all_ok(all_reduce(group, 1, DType::Float32, ReduceOp::Sum, data));
  for (const Bytes& output : data.outputs()) {
    EXPECT_EQ(output, data.outputs()[0]);
    for (std::size_t i = 0; i < 4096; ++i) {
      const double value = value_at(DType::Float32, output, i);
      ASSERT_EQ(std::isnan(value), i == 700) << i;
      ASSERT_EQ(std::isinf(value), i == 2000) << i;
    }
  }
}

TEST_P(ExchangeAlgorithms, many_operations_issued_in_different_orders_all_complete) {
  constexpr std::uint64_t kOperations = 24;
  ExchangeGroup group({1, 2, 1, 1}, tune_to({{.id = CodecId::Int8}, GetParam(), 4096}));
  std::vector<SiteVectors> data;
  for (std::uint64_t seq = 0; seq < kOperations; ++seq) {
    data.emplace_back(group.topology(0), DType::Float32, 500 + 997 * seq, seq);
  }
  std::vector<Status> failures = group.run([&](int rank) {
    std::vector<std::uint64_t> order(kOperations);
    for (std::uint64_t seq = 0; seq < kOperations; ++seq) order[seq] = seq;
    std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(rank)));
    std::vector<Status> results(kOperations);
    std::vector<std::thread> threads;
    for (std::uint64_t seq : order) {
      threads.emplace_back([&, seq] {
        auto stripes = data[seq].stripes(rank);
        results[seq] = group.exchange(rank).reduce(
            context_of(OpKind::AllReduce, seq, DType::Float32, data[seq].elements()), ReduceOp::Sum, stripes);
      });
    }
    for (auto& thread : threads) thread.join();
    for (const Status& status : results) {
      if (!status.is_ok()) return status;
    }
    return Status::ok();
  });
  expect_all_ok(failures);
  for (SiteVectors& one : data) {
    const Bytes exact = reference(DType::Float32, ReduceOp::Sum, one.inputs(), 1);
    for (const Bytes& output : one.outputs()) {
      ASSERT_EQ(output, one.outputs()[0]);
      for (std::size_t i = 0; i < one.elements(); ++i) {
        ASSERT_NEAR(value_at(DType::Float32, output, i), value_at(DType::Float32, exact, i), 0.3);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Reduce, ExchangeAlgorithms,
                         ::testing::Values(Way::EqualOwners, Way::UnequalOwners, Way::BroadcastAll,
                                           Way::TwoLevels),
                         [](const auto& info) { return name_of(info.param); });

const CodecSpec kStochastic = {.id = CodecId::Int8, .rounding = codec::Rounding::Stochastic};

Bytes stochastic_sum(const std::vector<int>& sizes, std::size_t chunk_bytes, int threads) {
  ExchangeGroup group(sizes, tune_to({kStochastic, Way::EqualOwners, chunk_bytes}), threads);
  SiteVectors data(group.topology(0), DType::Float32, 20'000, 11);
  expect_all_ok(all_reduce(group, 1, DType::Float32, ReduceOp::Sum, data));
  return data.outputs()[0];
}

TEST(ExchangeReduce, chunk_size_and_threads_change_no_bit_between_two_sites) {
  const Bytes first = stochastic_sum({1, 1}, 2048, 1);
  EXPECT_EQ(first, stochastic_sum({1, 1}, 2048, 3));
  EXPECT_EQ(first, stochastic_sum({1, 1}, 64 * 1024, 2));
}

TEST(ExchangeReduce, threads_change_no_bit_of_what_owners_reduce) {
  EXPECT_EQ(stochastic_sum({1, 1, 1}, 2048, 1), stochastic_sum({1, 1, 1}, 2048, 3));
}

TEST(ExchangeReduce, reduce_scatter_layout_played_through_gives_each_rank_its_shard) {
  constexpr std::uint64_t kShard = 1501;
  ExchangeGroup group({2, 1, 3}, tune_to({}));
  const auto size = static_cast<std::size_t>(group.size());
  const std::uint64_t elements = kShard * size;
  std::vector<Bytes> inputs;
  for (std::size_t rank = 0; rank < size; ++rank)
    inputs.push_back(random_elements(DType::Int32, elements, rank));
  const Bytes expected = reference(DType::Int32, ReduceOp::Sum, inputs, 1);
  std::vector<Bytes> shards(size);
  expect_all_ok(group.run([&](int rank) {
    const Topology& topology = group.topology(rank);
    const ReduceScatterLayout layout = reduce_scatter_layout(topology, kShard);
    // The inner reduce-scatter: this rank's block of what the ranks of its site have packed.
    Bytes block(layout.block * 4);
    const std::uint64_t begin = layout.block * static_cast<std::uint64_t>(topology.local_rank());
    for (const CopyRun& run : layout.pack) {
      if (run.to < begin || run.to >= begin + layout.block) continue;
      for (std::uint64_t i = 0; i < run.count; ++i) {
        std::uint32_t sum = 0;
        for (int member : topology.ranks_of(topology.site())) {
          sum += read_as<std::uint32_t>(inputs[static_cast<std::size_t>(member)], run.from + i);
        }
        std::memcpy(block.data() + (run.to - begin + i) * 4, &sum, 4);
      }
    }
    std::vector<StripeData> stripes = scatter_stripes(topology, layout, block);
    Status status = group.exchange(rank).reduce(context_of(OpKind::ReduceScatter, 1, DType::Int32, elements),
                                                ReduceOp::Sum, stripes);
    block.resize(kShard * 4);
    shards[static_cast<std::size_t>(rank)] = block;
    return status;
  }));
  for (std::size_t rank = 0; rank < size; ++rank) {
    const auto at = expected.begin() + static_cast<std::ptrdiff_t>(rank * kShard * 4);
    EXPECT_EQ(shards[rank], Bytes(at, at + static_cast<std::ptrdiff_t>(kShard * 4))) << "rank " << rank;
  }
}

// A policy under which sites own unequal shares.
std::shared_ptr<const WanPolicy> policy_with(std::string_view codec, std::size_t sites = 3) {
  return policy_of(spec_of(codec), links_for(Way::UnequalOwners, sites));
}

TEST(ExchangeReduce, a_new_policy_holds_from_the_next_operation_and_an_operation_may_bring_its_own) {
  ExchangeGroup group({1, 1, 1}, tune_to({.way = Way::BroadcastAll}));
  const auto reduced = [&](std::uint64_t seq, const std::shared_ptr<const WanPolicy>& own) {
    SiteVectors data(group.topology(0), DType::Float32, 20'000, 1);
    expect_all_ok(group.run([&](int rank) {
      auto stripes = data.stripes(rank);
      OpContext context = context_of(OpKind::AllReduce, seq, DType::Float32, data.elements());
      context.policy = own;
      return group.exchange(rank).reduce(context, ReduceOp::Sum, stripes);
    }));
    for (const Bytes& output : data.outputs()) EXPECT_EQ(output, data.outputs()[0]);
    return data.outputs()[0];
  };
  const Bytes exact = reduced(1, nullptr);
  const Bytes int4 = reduced(2, policy_with("int4"));
  EXPECT_NE(int4, exact);
  EXPECT_EQ(reduced(3, nullptr), exact);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(group.exchange(rank).set_policy(policy_with("int4")).is_ok());
  }
  EXPECT_EQ(reduced(4, nullptr), int4);
  EXPECT_EQ(reduced(5, policy_with("none")), exact);
}

TEST(ExchangeReduce, a_policy_that_ranks_do_not_share_is_an_error_not_a_wrong_sum) {
  ExchangeGroup group({1, 1}, tune_to({}));
  SiteVectors data(group.topology(0), DType::Float32, 20'000, 1);
  const auto results = group.run([&](int rank) {
    auto stripes = data.stripes(rank);
    OpContext context = context_of(OpKind::AllReduce, 1, DType::Float32, data.elements());
    context.policy = policy_with(rank == 1 ? "int8" : "int4", 2);
    return group.exchange(rank).reduce(context, ReduceOp::Sum, stripes);
  });
  for (const Status& status : results) EXPECT_EQ(status.code(), StatusCode::InvalidArgument);
}

TEST(ExchangeReduce, a_policy_for_another_number_of_sites_is_refused) {
  ExchangeGroup group({1, 1}, tune_to({}));
  EXPECT_EQ(group.exchange(0).set_policy(policy_with("none")).code(), StatusCode::InvalidArgument);
  EXPECT_EQ(group.exchange(0).set_policy(nullptr).code(), StatusCode::InvalidArgument);
}

TEST(ExchangeReduce, operations_below_the_first_class_of_the_policy_are_exact) {
  ExchangeGroup group({1, 1}, [](int, ExchangeConfig& config) {
    config.policy = policy_of(spec_of("int4"), LinkMatrix::assumed(2), 64 * 1024);
  });
  SiteVectors data(group.topology(0), DType::Float32, 1000, 1);
  expect_all_ok(all_reduce(group, 1, DType::Float32, ReduceOp::Sum, data));
  const Bytes exact = reference(DType::Float32, ReduceOp::Sum, data.inputs(), 1);
  EXPECT_EQ(data.outputs()[0], exact);
  EXPECT_EQ(data.outputs()[1], exact);
}

TEST(ExchangeReduce, one_site_alone_keeps_its_sum_and_averages_it) {
  ExchangeGroup group({2}, tune_to({}));
  for (ReduceOp op : {ReduceOp::Sum, ReduceOp::Avg}) {
    SiteVectors data(group.topology(0), DType::Float32, 3000, 1);
    expect_all_ok(all_reduce(group, static_cast<std::uint64_t>(op), DType::Float32, op, data));
    EXPECT_EQ(data.outputs()[0], reference(DType::Float32, op, data.inputs(), 2));
  }
}

TEST(ExchangeReduce, no_elements_is_done_at_once) {
  ExchangeGroup group({1, 1, 1}, tune_to({}));
  SiteVectors data(group.topology(0), DType::Float32, 0, 1);
  expect_all_ok(all_reduce(group, 1, DType::Float32, ReduceOp::Sum, data));
}

TEST(ExchangeReduce, stats_count_raw_and_wire_bytes_of_both_directions) {
  ExchangeGroup group({1, 1}, tune_to({{.id = CodecId::Int8}, Way::EqualOwners, 1 << 20}));
  constexpr std::size_t kElements = 1 << 20;
  SiteVectors data(group.topology(0), DType::Float32, kElements, 1);
  expect_all_ok(all_reduce(group, 1, DType::Float32, ReduceOp::Sum, data));
  for (int rank = 0; rank < 2; ++rank) {
    const ExchangeStats stats = group.exchange(rank).stats();
    EXPECT_EQ(stats.operations, 1u);
    EXPECT_EQ(stats.raw_bytes_sent, kElements * 4);
    EXPECT_EQ(stats.raw_bytes_received, kElements * 4);
    EXPECT_GT(stats.wire_bytes_sent, kElements);
    EXPECT_LT(stats.wire_bytes_sent, kElements * 11 / 10);
    EXPECT_EQ(stats.wire_bytes_received, stats.wire_bytes_sent);
  }
}

TEST(ExchangeReduce, bad_arguments_are_refused) {
  ExchangeGroup group({1, 1}, tune_to({}));
  Exchange& exchange = group.exchange(0);
  Bytes data(400);
  const auto code_of = [&](const std::function<void(StripeData&)>& spoil, ReduceOp op = ReduceOp::Sum) {
    std::vector<StripeData> stripes(1);
    stripes[0].stripe.range = {0, 100};
    stripes[0].stripe.rank_of_site = {0, 1};
    stripes[0].receives = {true, true};
    stripes[0].data = data;
    spoil(stripes[0]);
    return exchange.reduce(context_of(OpKind::AllReduce, 1, DType::Float32, 100), op, stripes).code();
  };
  const auto nothing = [](StripeData&) {};
  EXPECT_EQ(code_of([&](StripeData& l) { l.data = l.data.first(396); }), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of([](StripeData& l) { l.receives = {true}; }), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of([](StripeData& l) { l.stripe.rank_of_site = {1, 0}; }), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of([](StripeData& l) { l.stripe.rank_of_site = {0, 7}; }), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of(nothing, ReduceOp::BitXor), StatusCode::InvalidArgument);
}

TEST(ExchangeCreate, bad_settings_are_refused) {
  ExchangeGroup group({1, 1});
  const auto code_of = [&](const std::function<void(ExchangeConfig&)>& spoil) {
    ExchangeConfig config{.group = 1,
                          .topology = group.topology(0),
                          .channel_to = [&](int peer) { return group.channel(0, peer); },
                          .pool = group.at(0).pool.get(),
                          .buffers = group.at(0).buffers.get()};
    spoil(config);
    return Exchange::create(std::move(config)).status().code();
  };
  EXPECT_EQ(code_of([](ExchangeConfig&) {}), StatusCode::Ok);
  EXPECT_EQ(code_of([](ExchangeConfig& c) { c.chunk_bytes = 100; }), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of([](ExchangeConfig& c) { c.chunk_bytes = 9 << 20; }), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of([](ExchangeConfig& c) { c.pool = nullptr; }), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of([](ExchangeConfig& c) { c.buffers = nullptr; }), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of([](ExchangeConfig& c) { c.channel_to = nullptr; }), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of([](ExchangeConfig& c) { c.policy = policy_of({}, LinkMatrix::assumed(3)); }),
            StatusCode::InvalidArgument);
}

}  // namespace
}  // namespace geocomm::collective
