// The crcs of all payloads, in pieces: memory is read once, 16 bytes per thread and step.
//
// Thread t of a block takes the units t, t + 256, ... of a piece. Each of the four words of a unit has a
// running sum of its own, multiplied by x^(8 * 4096) from unit to unit: a linear map, four lookups of a byte
// in shared memory. In the end the four are brought together, multiplied by x^128 for each unit between the
// thread's last one and the end of the units, and added up over the block.
#include "codec/cuda/crc32c_device.cuh"
#include "codec/cuda/device.h"
#include "codec/cuda/elements.cuh"
#include "codec/cuda/kernels.h"
#include "codec/cuda/verdict.h"

namespace geocomm::codec::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kUnit = 16;
constexpr std::uint64_t kPieceBytes = std::uint64_t{64} << 10;

// Multiplication by a constant, a byte of the factor at a time.
struct LinearMap {
  std::uint32_t of_byte[4][256];
};
constexpr LinearMap make_map(std::uint32_t factor) {
  LinearMap map{};
  for (unsigned position = 0; position < 4; ++position) {
    for (unsigned byte = 0; byte < 256; ++byte) {
      map.of_byte[position][byte] = crc32c_multiply(byte << 8 * position, factor);
    }
  }
  return map;
}
struct UnitPowers {
  std::uint32_t of[kThreads];  // x^(128 i)
};
constexpr UnitPowers make_unit_powers() {
  UnitPowers powers{};
  powers.of[0] = kCrcOne;
  for (unsigned i = 1; i < kThreads; ++i) {
    powers.of[i] = crc32c_multiply(powers.of[i - 1], crc32c_x_power(8 * kUnit));
  }
  return powers;
}
__device__ const LinearMap kOverThreads = make_map(crc32c_x_power(8 * kThreads * kUnit));
__device__ const LinearMap kOverWord = make_map(crc32c_x_power(8 * 4));
__device__ const UnitPowers kUnitPowers = make_unit_powers();

__device__ __forceinline__ std::uint32_t apply(const LinearMap& map, std::uint32_t value) {
  return map.of_byte[0][value & 0xFF] ^ map.of_byte[1][value >> 8 & 0xFF] ^
         map.of_byte[2][value >> 16 & 0xFF] ^ map.of_byte[3][value >> 24];
}

__device__ __forceinline__ uint4 load_unit(const std::uint8_t* from) {
  if (is_aligned(from, kUnit)) return *reinterpret_cast<const uint4*>(from);
  return {load_u32(from), load_u32(from + 4), load_u32(from + 8), load_u32(from + 12)};
}

// This thread's part of the crc0 of whole units.
__device__ std::uint32_t sum_units(const LinearMap& over_threads, const LinearMap& over_word,
                                   const std::uint8_t* from, unsigned units) {
  if (threadIdx.x >= units) return 0;
  uint4 state = {0, 0, 0, 0};
  unsigned last = threadIdx.x;
  for (unsigned unit = threadIdx.x; unit < units; unit += kThreads) {
    const uint4 words = load_unit(from + std::uint64_t{unit} * kUnit);
    state.x = apply(over_threads, state.x) ^ words.x;
    state.y = apply(over_threads, state.y) ^ words.y;
    state.z = apply(over_threads, state.z) ^ words.z;
    state.w = apply(over_threads, state.w) ^ words.w;
    last = unit;
  }
  std::uint32_t sum = apply(over_word, state.x) ^ state.y;
  sum = apply(over_word, sum) ^ state.z;
  sum = apply(over_word, sum) ^ state.w;
  sum = apply(over_word, sum);
  return crc32c_multiply(sum, kUnitPowers.of[units - 1 - last]);
}

__global__ void __launch_bounds__(kThreads)
    sum_crcs(const std::uint8_t* bytes, PayloadPlan plan, Workspace workspace, const std::uint64_t* verdict,
             std::uint32_t pieces_per_frame) {
  __shared__ LinearMap over_threads;
  __shared__ LinearMap over_word;
  if (verdict != nullptr && is_over_for_block(verdict)) return;
  for (unsigned i = threadIdx.x; i < 4 * 256; i += kThreads) {
    over_threads.of_byte[i / 256][i % 256] = kOverThreads.of_byte[i / 256][i % 256];
    over_word.of_byte[i / 256][i % 256] = kOverWord.of_byte[i / 256][i % 256];
  }
  __syncthreads();
  const std::uint64_t jobs = std::uint64_t{plan.frames} * pieces_per_frame;
  for (std::uint64_t job = blockIdx.x; job < jobs; job += gridDim.x) {
    FrameRecord& record = workspace.records[job / pieces_per_frame];
    const std::uint8_t* payload = bytes + record.offset + sizeof(FrameHeader);
    // Irregular frames have more pieces than others.
    const std::uint64_t stride = std::uint64_t{pieces_per_frame} * kPieceBytes;
    for (std::uint64_t begin = job % pieces_per_frame * kPieceBytes; begin < record.payload_bytes;
         begin += stride) {
      const std::uint64_t left = record.payload_bytes - begin;
      const auto length = static_cast<unsigned>(left < kPieceBytes ? left : kPieceBytes);
      const unsigned units = length / kUnit;
      std::uint32_t crc = combine_all<kThreads>(sum_units(over_threads, over_word, payload + begin, units),
                                                [](std::uint32_t a, std::uint32_t b) { return a ^ b; });
      if (threadIdx.x >= kWarp) continue;
      const std::uint32_t behind = crc_zero_bytes_by_warp(static_cast<std::uint32_t>(left - length));
      if (threadIdx.x != 0) continue;
      for (unsigned i = units * kUnit; i < length; ++i) crc = crc_byte(crc, payload[begin + i]);
      atomicXor(&record.crc, crc32c_multiply(crc, behind));
    }
  }
}

}  // namespace

core::Status sum_payload_crcs(const std::uint8_t* bytes, const PayloadPlan& plan, const Workspace& workspace,
                              const std::uint64_t* verdict, Stream stream) {
  const FrameExtent& largest = plan.largest();
  const auto pieces =
      static_cast<std::uint32_t>((std::uint64_t{largest.bytes} + kPieceBytes - 1) / kPieceBytes);
  const std::uint32_t per_frame = pieces == 0 ? 1 : pieces;
  const Grid grid{persistent_blocks(std::uint64_t{plan.frames} * per_frame, 6), kThreads};
  return launch(sum_crcs, grid, stream, bytes, plan, workspace, verdict, per_frame);
}

}  // namespace geocomm::codec::cuda
