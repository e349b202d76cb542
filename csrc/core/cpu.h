// Which instruction sets the fast paths may use. Every fast path gives the bytes of the scalar one, so the
// choice is about speed only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/status.h"

namespace geocomm::core {

enum class CpuLevel : std::uint8_t {
  Scalar = 0,  // what every machine of the architecture has
  Avx2 =
      1,  // x86-64-v3 and PCLMULQDQ: AVX2, BMI2, F16C, FMA (which geocomm never uses: it would change bits)
  Avx512 = 2,  // x86-64-v4 and VBMI, VBMI2, BITALG, VPOPCNTDQ, VPCLMULQDQ: Ice Lake, Zen 4 and later
  Neon = 3,    // every arm64
};

// Those that this machine runs, from the scalar one to the best. Thread-safe.
std::span<const CpuLevel> cpu_levels();

// The best level of this machine. Thread-safe.
CpuLevel detected_cpu_level();

// The level in use: the detected one, or what force_cpu_level() set. Thread-safe.
CpuLevel cpu_level();

// For tests and measurements, and for GEOCOMM_CPU. Meant for before the first use; a call beside running
// codecs is safe, since all levels give the same bytes. InvalidArgument: this machine cannot run that level.
Status force_cpu_level(CpuLevel level);

// The inner loops of one kind are a table of functions for each level: a type that declares
// `static const Loops kScalar, kAvx2, kAvx512, kNeon;`, each defined in a file that is compiled for its
// level. The scalar table is the reference, which the others equal bit for bit. What declares no kNeon has
// none yet. Returns that of the level in use.
template <typename Loops>
const Loops& at_cpu_level() {
#if defined(__x86_64__)
  switch (cpu_level()) {
    case CpuLevel::Avx512:
      return Loops::kAvx512;
    case CpuLevel::Avx2:
      return Loops::kAvx2;
    case CpuLevel::Scalar:
    case CpuLevel::Neon:
      break;
  }
#elif defined(__aarch64__)
  if constexpr (requires { Loops::kNeon; }) {
    if (cpu_level() == CpuLevel::Neon) return Loops::kNeon;
  }
#endif
  return Loops::kScalar;
}

// For tables that take whole steps of elements, but for the scalar one: calls run(loops, first, count) for as
// many as that are, then for the rest.
template <typename Loops, typename Run>
void in_steps(std::size_t count, std::size_t step, const Run& run) {
  const std::size_t whole = count - count % step;
  if (whole > 0) run(at_cpu_level<Loops>(), std::size_t{0}, whole);
  if (whole < count) run(Loops::kScalar, whole, count - whole);
}

// "scalar", "avx2", "avx512", "neon".
std::string_view to_string(CpuLevel level);
Result<CpuLevel> parse_cpu_level(std::string_view text);

}  // namespace geocomm::core
