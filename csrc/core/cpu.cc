#include "core/cpu.h"

#include <algorithm>
#include <array>
#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "core/str.h"

namespace geocomm::core {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"scalar", "avx2", "avx512", "neon"};

#if defined(__x86_64__)
// By hand: older compilers do not know these two names.
bool has_f16c_and_lzcnt() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & bit_F16C) == 0) return false;
  return __get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_LZCNT) != 0;
}
#endif

#if defined(__aarch64__)
constexpr std::array kLevels = {CpuLevel::Scalar, CpuLevel::Neon};
#else
constexpr std::array kLevels = {CpuLevel::Scalar, CpuLevel::Avx2, CpuLevel::Avx512};
#endif

// How many of kLevels there are. The compiler's run-time reads CPUID once and asks the operating system
// whether it saves the wide registers.
std::size_t count_levels() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt") &&
                    __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.2") &&
                    has_f16c_and_lzcnt();
  if (!avx2) return 1;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
                      __builtin_cpu_supports("avx512bitalg") && __builtin_cpu_supports("avx512vpopcntdq") &&
                      __builtin_cpu_supports("vpclmulqdq");
  return avx512 ? 3 : 2;
#elif defined(__aarch64__)
  return 2;
#else
  return 1;
#endif
}

std::atomic<CpuLevel>& level_in_use() {
  static std::atomic<CpuLevel> level{detected_cpu_level()};
  return level;
}

}  // namespace

std::span<const CpuLevel> cpu_levels() {
  static const std::size_t count = count_levels();
  return std::span(kLevels).first(count);
}

CpuLevel detected_cpu_level() {
  return cpu_levels().back();
}

CpuLevel cpu_level() {
  return level_in_use().load(std::memory_order_relaxed);
}

Status force_cpu_level(CpuLevel level) {
  if (std::ranges::find(cpu_levels(), level) == cpu_levels().end()) {
    return {StatusCode::InvalidArgument,
            str("CPU level ", to_string(level), " was asked for, but this machine has ",
                to_string(detected_cpu_level()), "; leave GEOCOMM_CPU unset for the best there is")};
  }
  level_in_use().store(level, std::memory_order_relaxed);
  return Status::ok();
}

std::string_view to_string(CpuLevel level) {
  return kNames[static_cast<std::size_t>(level)];
}

Result<CpuLevel> parse_cpu_level(std::string_view text) {
  const auto found = std::ranges::find(kNames, text);
  if (found == kNames.end()) {
    return Status(StatusCode::InvalidArgument,
                  str("'", text, "' is not a CPU level; use scalar, avx2, avx512 or neon"));
  }
  return static_cast<CpuLevel>(found - kNames.begin());
}

}  // namespace geocomm::core
