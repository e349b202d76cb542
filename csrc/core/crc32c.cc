#include "core/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#include "core/cpu.h"
#include "core/crc32c_kernels.h"
#include "core/crc32c_polynomial.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#define GEOCOMM_CRC32_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define GEOCOMM_CRC32_TARGET __attribute__((target("+crc")))
#endif

namespace geocomm::core {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as little-endian");

using Table = std::array<std::uint32_t, 256>;

// tables[k][b]: the state after byte b followed by k zero bytes.
constexpr std::array<Table, 8> make_slices() {
  std::array<Table, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t state = byte;
    for (int bit = 0; bit < 8; ++bit) state = crc32c_times_x(state);
    tables[0][byte] = state;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}
constexpr std::array<Table, 8> kSlices = make_slices();

std::uint64_t load64(const std::byte* from) {
  std::uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

std::uint32_t update_portable(std::uint32_t state, const std::byte* data, std::size_t size) {
  for (; size >= 8; data += 8, size -= 8) {
    const std::uint64_t word = load64(data) ^ state;
    state = 0;
    for (int k = 0; k < 8; ++k) state ^= kSlices[7 - k][(word >> (8 * k)) & 0xFF];
  }
  for (; size > 0; ++data, --size) {
    state = (state >> 8) ^ kSlices[0][(state ^ static_cast<std::uint32_t>(*data)) & 0xFF];
  }
  return state;
}

#ifdef GEOCOMM_CRC32_TARGET
#if defined(__x86_64__)
bool has_instruction() {
  return __builtin_cpu_supports("sse4.2");
}
GEOCOMM_CRC32_TARGET std::uint64_t step(std::uint64_t state, std::uint64_t word) {
  return _mm_crc32_u64(state, word);
}
GEOCOMM_CRC32_TARGET std::uint32_t step_byte(std::uint32_t state, std::byte byte) {
  return _mm_crc32_u8(state, static_cast<std::uint8_t>(byte));
}
#else
// Armv8.0 may lack it; 8.1 has it.
bool has_instruction() {
  return (::getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}
GEOCOMM_CRC32_TARGET std::uint64_t step(std::uint64_t state, std::uint64_t word) {
  return __crc32cd(static_cast<std::uint32_t>(state), word);
}
GEOCOMM_CRC32_TARGET std::uint32_t step_byte(std::uint32_t state, std::byte byte) {
  return __crc32cb(state, static_cast<std::uint8_t>(byte));
}
#endif

// The instruction has a latency of three cycles and a throughput of one, so three chains run side by side. A
// chain's state is moved over the chains behind it by linear maps, one table lookup per byte of state.
constexpr std::size_t kChainBytes = 1024;
using ShiftMap = std::array<Table, 4>;

constexpr ShiftMap make_shift(std::size_t zero_bytes) {
  std::array<std::uint32_t, 32> of_bit{};
  for (std::size_t bit = 0; bit < 32; ++bit) {
    std::uint32_t state = std::uint32_t{1} << bit;
    for (std::size_t i = 0; i < zero_bytes; ++i) state = (state >> 8) ^ kSlices[0][state & 0xFF];
    of_bit[bit] = state;
  }
  ShiftMap map{};
  for (std::size_t k = 0; k < 4; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      for (std::size_t bit = 0; bit < 8; ++bit) {
        if ((byte >> bit) & 1) map[k][byte] ^= of_bit[8 * k + bit];
      }
    }
  }
  return map;
}
constexpr ShiftMap kShiftOneChain = make_shift(kChainBytes);

std::uint32_t shift_one_chain(std::uint32_t state) {
  return kShiftOneChain[0][state & 0xFF] ^ kShiftOneChain[1][(state >> 8) & 0xFF] ^
         kShiftOneChain[2][(state >> 16) & 0xFF] ^ kShiftOneChain[3][state >> 24];
}

GEOCOMM_CRC32_TARGET std::uint32_t update_by_instruction(std::uint32_t state, const std::byte* data,
                                                         std::size_t size) {
  std::uint64_t first = state;
  for (; size >= 3 * kChainBytes; data += 3 * kChainBytes, size -= 3 * kChainBytes) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t i = 0; i < kChainBytes; i += 8) {
      first = step(first, load64(data + i));
      second = step(second, load64(data + kChainBytes + i));
      third = step(third, load64(data + 2 * kChainBytes + i));
    }
    const std::uint32_t two =
        shift_one_chain(static_cast<std::uint32_t>(first)) ^ static_cast<std::uint32_t>(second);
    first = shift_one_chain(two) ^ static_cast<std::uint32_t>(third);
  }
  for (; size >= 8; data += 8, size -= 8) first = step(first, load64(data));
  auto last = static_cast<std::uint32_t>(first);
  for (; size > 0; ++data, --size) last = step_byte(last, *data);
  return last;
}
#endif

std::uint32_t update(std::uint32_t state, const std::byte* data, std::size_t size) {
#ifdef GEOCOMM_CRC32_TARGET
  static const bool kHasInstruction = has_instruction();
  if (kHasInstruction) return update_by_instruction(state, data, size);
#endif
  return update_portable(state, data, size);
}

constexpr Crc32cLoop kLoops{update};

}  // namespace

constinit const Crc32cLoop Crc32cLoop::kScalar = kLoops;

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t previous) {
  return ~at_cpu_level<Crc32cLoop>().update(~previous, data.data(), data.size());
}

std::uint32_t crc32c_portable(std::span<const std::byte> data, std::uint32_t previous) {
  return ~update_portable(~previous, data.data(), data.size());
}

}  // namespace geocomm::core
