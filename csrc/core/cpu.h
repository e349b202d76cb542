// Which instruction sets the fast paths may use. Every fast path gives the bytes of the scalar one, so the
// choice is about speed only.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/status.h"

namespace geocomm::core {

enum class CpuLevel : std::uint8_t {
  Scalar = 0,  // what every machine of the architecture has
  Avx2 =
      1,  // x86-64-v3 and PCLMULQDQ: AVX2, BMI2, F16C, FMA (which geocomm never uses: it would change bits)
  Avx512 = 2,  // x86-64-v4 and VBMI, VBMI2, BITALG, VPOPCNTDQ, VPCLMULQDQ: Ice Lake, Zen 4 and later
};

// The best level of this machine. Thread-safe.
CpuLevel detected_cpu_level();

// The level in use: the detected one, or what force_cpu_level() set. Thread-safe.
CpuLevel cpu_level();

// For tests and measurements, and for GEOCOMM_CPU. Meant for before the first use; a call beside running
// codecs is safe, since all levels give the same bytes. InvalidArgument: this machine cannot run that level.
Status force_cpu_level(CpuLevel level);

// "scalar", "avx2", "avx512".
std::string_view to_string(CpuLevel level);
Result<CpuLevel> parse_cpu_level(std::string_view text);

}  // namespace geocomm::core
