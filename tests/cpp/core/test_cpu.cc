#include <gtest/gtest.h>

#include <cstdlib>

#include "core/cpu.h"

namespace geocomm::core {
namespace {

#if defined(__aarch64__)
constexpr CpuLevel kOthers[] = {CpuLevel::Avx2, CpuLevel::Avx512};
#else
constexpr CpuLevel kOthers[] = {CpuLevel::Neon};
#endif

TEST(CpuLevel, test_levels_go_from_the_scalar_one_to_the_detected_one) {
  EXPECT_EQ(cpu_levels().front(), CpuLevel::Scalar);
  EXPECT_EQ(cpu_levels().back(), detected_cpu_level());
}

TEST(CpuLevel, test_level_of_another_architecture_is_refused_and_leaves_the_level) {
  const CpuLevel before = cpu_level();
  for (const CpuLevel level : kOthers) {
    EXPECT_EQ(force_cpu_level(level).code(), StatusCode::InvalidArgument) << to_string(level);
    EXPECT_EQ(cpu_level(), before);
  }
}

TEST(CpuLevel, test_force_level_of_this_machine_is_taken) {
  const CpuLevel before = cpu_level();
  for (const CpuLevel level : cpu_levels()) {
    EXPECT_TRUE(force_cpu_level(level).is_ok());
    EXPECT_EQ(cpu_level(), level);
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
  for (const CpuLevel level : {CpuLevel::Scalar, CpuLevel::Avx2, CpuLevel::Avx512, CpuLevel::Neon}) {
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
