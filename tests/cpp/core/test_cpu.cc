#include <gtest/gtest.h>

#include <cstdlib>

#include "core/cpu.h"

namespace geocomm::core {
namespace {

constexpr CpuLevel kLevels[] = {CpuLevel::Scalar, CpuLevel::Avx2, CpuLevel::Avx512};

TEST(CpuLevel, test_force_level_up_to_the_detected_one_is_taken) {
  const CpuLevel before = cpu_level();
  for (const CpuLevel level : kLevels) {
    const Status forced = force_cpu_level(level);
    if (level <= detected_cpu_level()) {
      EXPECT_TRUE(forced.is_ok());
      EXPECT_EQ(cpu_level(), level);
    } else {
      EXPECT_EQ(forced.code(), StatusCode::InvalidArgument);
      EXPECT_EQ(cpu_level(), detected_cpu_level());
    }
  }
  EXPECT_TRUE(force_cpu_level(before).is_ok());
}

// Where the CPU is known, it says so: tests at levels above the detected one are left out without a word.
TEST(CpuLevel, test_detected_level_is_the_expected_one) {
  const char* const expected = std::getenv("GEOCOMM_EXPECTED_CPU_LEVEL");
  if (expected == nullptr) GTEST_SKIP() << "GEOCOMM_EXPECTED_CPU_LEVEL is not set";
  EXPECT_EQ(to_string(detected_cpu_level()), expected);
}

TEST(CpuLevel, test_parse_of_every_name_gives_its_level) {
  for (const CpuLevel level : kLevels) {
    const Result<CpuLevel> parsed = parse_cpu_level(to_string(level));
    ASSERT_TRUE(parsed.is_ok());
    EXPECT_EQ(*parsed, level);
  }
}

TEST(CpuLevel, test_parse_of_other_text_is_refused) {
  for (const std::string_view text : {"", "AVX2", "avx", "avx5122", "sse"}) {
    EXPECT_EQ(parse_cpu_level(text).status().code(), StatusCode::InvalidArgument);
  }
}

}  // namespace
}  // namespace geocomm::core
