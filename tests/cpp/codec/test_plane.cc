#include <algorithm>

#include "../needs.h"
#include "plane_cases.h"

namespace geocomm::codec {
namespace {

class Plane : public testing::TestWithParam<Entropy> {
 protected:
  void SetUp() override { GEOCOMM_NEEDS(has_stage(GetParam()), "zstd in the build (libzstd-dev)"); }

  void expect_round_trip(std::span<const std::byte> plane) const {
    const Entropy stage = GetParam();
    PlaneBytes coded = encoded(stage, plane);
    ASSERT_LE(coded.size(), plane_bound(stage, plane.size()));
    const auto size = coded_plane_bytes(stage, coded, plane.size());
    ASSERT_TRUE(size.is_ok()) << size.status().to_string();
    ASSERT_EQ(*size, coded.size());
    PlaneBytes out(plane.size());
    const core::Status status = decoded(stage, coded, out);
    ASSERT_TRUE(status.is_ok()) << status.to_string();
    ASSERT_TRUE(std::ranges::equal(out, plane));
    // What follows a plane is not the plane's.
    coded.insert(coded.end(), 7, std::byte{0x5A});
    ASSERT_EQ(*coded_plane_bytes(stage, coded, plane.size()), *size);
  }
};

TEST_P(Plane, test_plane_of_any_kind_and_length_round_trips) {
  at_every_cpu_level([&] {
    for (const PlaneKind& kind : kPlaneKinds) {
      SCOPED_TRACE(kind.name);
      const PlaneBytes all = kind.make(8192 + 400);
      for (std::size_t length = 0; length <= 1000; ++length) {
        SCOPED_TRACE(length);
        ASSERT_NO_FATAL_FAILURE(expect_round_trip(std::span(all).first(length)));
      }
      for (std::size_t length = 8192 - 66; length <= 8192 + 130; ++length) {
        SCOPED_TRACE(length);
        ASSERT_NO_FATAL_FAILURE(expect_round_trip(std::span(all).first(length)));
      }
    }
  });
}

TEST_P(Plane, test_plane_of_many_blocks_round_trips) {
  at_every_cpu_level([&] {
    for (const PlaneKind& kind : kPlaneKinds) {
      SCOPED_TRACE(kind.name);
      const PlaneBytes all = kind.make(3 * 131072 + 5000);
      for (const std::size_t length :
           {std::size_t{131071}, std::size_t{131072}, std::size_t{131073}, std::size_t{131072 + 8191},
            std::size_t{131072 + 8192}, std::size_t{262143}, std::size_t{262145}, all.size()}) {
        SCOPED_TRACE(length);
        ASSERT_NO_FATAL_FAILURE(expect_round_trip(std::span(all).first(length)));
      }
    }
  });
}

TEST_P(Plane, test_plane_at_any_alignment_round_trips) {
  at_every_cpu_level([&] {
    const Entropy stage = GetParam();
    const PlaneBytes all = gaussian_plane(20000 + 64);
    for (std::size_t shift = 0; shift < 64; ++shift) {
      const auto plane = std::span(all).subspan(shift, 20000);
      PlaneBytes coded(shift + plane_bound(stage, plane.size()));
      const std::size_t size = encode_plane(stage, plane, coded.data() + shift);
      const PlaneBytes expected = encoded(stage, plane);
      ASSERT_TRUE(std::ranges::equal(std::span(coded).subspan(shift, size), expected));
      PlaneBytes out(shift + plane.size());
      ASSERT_TRUE(
          decode_plane(stage, std::span(coded).subspan(shift, size), std::span(out).subspan(shift)).is_ok());
      ASSERT_TRUE(std::ranges::equal(std::span(out).subspan(shift), plane));
    }
  });
}

TEST_P(Plane, test_encode_stays_inside_of_the_bound) {
  at_every_cpu_level([&] {
    const Entropy stage = GetParam();
    for (const PlaneKind& kind : kPlaneKinds) {
      for (const std::size_t length :
           {1UL, 31UL, 32UL, 33UL, 100UL, 700UL, 8191UL, 8192UL, 8321UL, 140000UL}) {
        const PlaneBytes plane = kind.make(length);
        const std::size_t bound = plane_bound(stage, length);
        PlaneBytes coded(bound + 64, std::byte{0x5A});
        const std::size_t size = encode_plane(stage, plane, coded.data());
        ASSERT_LE(size, bound);
        const auto beyond = std::span(coded).subspan(bound);
        ASSERT_TRUE(std::ranges::all_of(beyond, [](std::byte it) { return it == std::byte{0x5A}; }));
      }
    }
  });
}

TEST_P(Plane, test_truncated_plane_is_corrupt) {
  const Entropy stage = GetParam();
  at_every_cpu_level([&] {
    for (const std::size_t length : {1UL, 300UL, 2000UL, 9000UL}) {
      const PlaneBytes plane = sparse_plane(length);
      const PlaneBytes coded = encoded(stage, plane);
      PlaneBytes out(length);
      for (std::size_t size = 0; size < coded.size(); ++size) {
        const core::Status status = decoded(stage, std::span(coded).first(size), out);
        ASSERT_EQ(status.code(), core::StatusCode::CorruptData) << size;
      }
    }
  });
}

// Damage may decode to other bytes; it must not reach beyond the spans (which sanitizers see).
TEST_P(Plane, test_damaged_plane_is_corrupt_or_other_bytes) {
  const Entropy stage = GetParam();
  at_every_cpu_level([&] {
    for (const PlaneKind& kind : kPlaneKinds) {
      for (const std::size_t length : {300UL, 1500UL, 9000UL}) {
        const PlaneBytes plane = kind.make(length);
        PlaneBytes coded = encoded(stage, plane);
        PlaneBytes out(length);
        // Every byte of the first 400, then fewer.
        for (std::size_t at = 0; at < coded.size(); at += at < 400 ? 1 : 17) {
          const std::byte before = coded[at];
          for (const std::byte flip : {std::byte{1}, std::byte{0x80}, std::byte{0xFF}}) {
            coded[at] = before ^ flip;
            const core::Status status = decoded(stage, coded, out);
            ASSERT_TRUE(status.is_ok() || status.code() == core::StatusCode::CorruptData);
          }
          coded[at] = before;
        }
      }
    }
  });
}

TEST_P(Plane, test_random_bytes_are_corrupt_or_a_plane) {
  const Entropy stage = GetParam();
  at_every_cpu_level([&] {
    TestRandom random(7);
    for (int round = 0; round < 3000; ++round) {
      PlaneBytes coded = make_plane(random.next() % 300, [&](std::size_t) { return random.next(); });
      PlaneBytes out(random.next() % 600);
      const core::Status status = decoded(stage, coded, out);
      ASSERT_TRUE(status.is_ok() || status.code() == core::StatusCode::CorruptData);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Stages, Plane, testing::Values(Entropy::None, Entropy::Huffman, Entropy::Zstd),
                         [](const auto& info) {
                           return std::string(info.param == Entropy::None      ? "none"
                                              : info.param == Entropy::Huffman ? "huffman"
                                                                               : "zstd");
                         });

TEST(PlaneStages, test_no_bytes_give_no_bytes) {
  for (const Entropy stage : {Entropy::None, Entropy::Huffman, Entropy::Zstd}) {
    if (!has_stage(stage)) continue;
    EXPECT_EQ(plane_bound(stage, 0), 0U);
    EXPECT_EQ(encode_plane(stage, {}, nullptr), 0U);
    EXPECT_EQ(*coded_plane_bytes(stage, {}, 0), 0U);
    EXPECT_TRUE(decode_plane(stage, {}, {}).is_ok());
  }
}

TEST(PlaneStages, test_zstd_plane_that_is_more_than_one_frame_is_corrupt) {
  GEOCOMM_NEEDS(has_stage(Entropy::Zstd), "zstd in the build (libzstd-dev)");
  const PlaneBytes plane = constant_plane(5000);
  PlaneBytes coded = encoded(Entropy::Zstd, plane);
  // A skippable frame of no bytes behind it.
  for (const unsigned byte : {0x50, 0x2A, 0x4D, 0x18, 0, 0, 0, 0})
    coded.push_back(static_cast<std::byte>(byte));
  coded[0] = static_cast<std::byte>(std::to_integer<unsigned>(coded[0]) + 8);
  PlaneBytes out(plane.size());
  EXPECT_EQ(decoded(Entropy::Zstd, coded, out).code(), core::StatusCode::CorruptData);
}

}  // namespace
}  // namespace geocomm::codec
