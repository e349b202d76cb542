// The codes of BitPlanes: those of a frame, as DeadZone has them, to planes of bits and back. A block of
// threads has a frame, and goes through it a tile at a time.
#include "codec/cuda/block_scan.cuh"
#include "codec/cuda/dead_zone_stages.h"
#include "codec/cuda/sections.cuh"
#include "codec/cuda/verdict.h"

namespace geocomm::codec::cuda {
namespace {

constexpr unsigned kPlaneThreads = 512;
constexpr unsigned kOwn = 8;  // codes of a thread in a tile, whose bits are a byte
constexpr unsigned kTile = kPlaneThreads * kOwn;

__device__ __forceinline__ std::uint32_t bytes_of_bits(std::uint32_t count) {
  return (count + 7) / 8;
}

// For all threads of the block alike, whatever other blocks report meanwhile.
__device__ bool has_codes(const Decode& args, std::uint32_t frame) {
  __shared__ bool has;
  if (threadIdx.x == 0) has = *args.verdict == 0 && args.workspace.records[frame].is_plain == 0;
  __syncthreads();
  return has;
}

// Writes bits of magnitudes above `least`, and of codes below 0 if `signs` are asked for. These magnitudes
// end up at the front of `codes`, closed up: where a tile's go has been read. Returns how many they are.
__device__ std::uint32_t peel(std::uint8_t* codes, std::uint32_t count, int least, std::uint8_t* signs,
                              std::uint8_t* bits) {
  std::uint32_t end = 0;
  for (std::uint32_t first = 0; first < count; first += kTile) {
    const std::uint32_t at = first + kOwn * threadIdx.x;
    std::uint8_t magnitudes[kOwn];
    unsigned negative = 0;
    unsigned larger = 0;
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
      const int code = at + k < count ? static_cast<std::int8_t>(codes[at + k]) : 0;
      const int magnitude = code < 0 ? -code : code;
      magnitudes[k] = static_cast<std::uint8_t>(magnitude);
      negative |= code < 0 ? 1u << k : 0u;
      larger |= magnitude > least ? 1u << k : 0u;
    }
    if (at < count) {
      if (signs != nullptr) signs[at / 8] = static_cast<std::uint8_t>(negative);
      bits[at / 8] = static_cast<std::uint8_t>(larger);
    }
    std::uint32_t total;
    std::uint32_t to = end + sum_before<kPlaneThreads>(static_cast<std::uint32_t>(__popc(larger)), total);
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
      if ((larger >> k & 1u) != 0) codes[to++] = magnitudes[k];
    }
    end += total;
  }
  __syncthreads();
  return end;
}

// The way back, to other memory; the sign of none if there are no `signs`.
__device__ void fill(const std::uint8_t* larger, const std::uint8_t* bits, const std::uint8_t* signs,
                     std::uint32_t count, unsigned least, std::uint8_t* codes) {
  std::uint32_t taken = 0;
  for (std::uint32_t first = 0; first < count; first += kTile) {
    const std::uint32_t at = first + kOwn * threadIdx.x;
    const unsigned own = at < count ? bits[at / 8] : 0u;
    const unsigned negative = at < count && signs != nullptr ? signs[at / 8] : 0u;
    std::uint32_t total;
    std::uint32_t from = taken + sum_before<kPlaneThreads>(static_cast<std::uint32_t>(__popc(own)), total);
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
      if (at + k >= count) continue;
      const unsigned magnitude = (own >> k & 1u) != 0 ? larger[from++] : least;
      codes[at + k] = static_cast<std::uint8_t>((negative >> k & 1u) != 0 ? 0u - magnitude : magnitude);
    }
    taken += total;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kPlaneThreads) split(DeadZoneSpace space) {
  const std::uint32_t frame = blockIdx.x;
  const SectionSpace& sections = space.sections;
  std::uint8_t* codes = sections.content(frame, kCodes);
  std::uint32_t count = sections.section(frame, kCodes).bytes;
  __syncthreads();
  for (std::uint32_t plane = kTwos; plane <= kFours; ++plane) {
    std::uint8_t* bits = sections.content(frame, plane);
    std::uint8_t* signs = plane == kTwos ? sections.content(frame, kSigns) : nullptr;
    if (threadIdx.x == 0) {
      if (signs != nullptr) sections.name(frame, kSigns, bytes_of_bits(count));
      sections.name(frame, plane, bytes_of_bits(count));
    }
    count = peel(codes, count, static_cast<int>(plane - kTwos) + 1, signs, bits);
  }
  if (threadIdx.x != 0) return;
  sections.section(frame, kCodes).bytes = count;
  name_planes(sections, frame, false);
}

// Of a frame that has codes, when the plane is there: checks it, and finds the size of the next.
__device__ void count_larger(const Decode& args, const DeadZoneSpace& space, std::uint32_t frame,
                             std::uint32_t plane) {
  const SectionSpace& sections = space.sections;
  const std::uint32_t count = space.count(frame, plane);
  const std::uint32_t bytes = bytes_of_bits(count);
  const std::uint8_t* bits = sections.section(frame, plane).content;
  std::uint32_t own = 0;
  for (std::uint32_t at = threadIdx.x; at < bytes; at += kPlaneThreads) {
    own += static_cast<std::uint32_t>(__popc(bits[at]));
  }
  std::uint32_t larger;
  sum_before<kPlaneThreads>(own, larger);
  if (threadIdx.x != 0) return;
  const unsigned beyond = count % 8;
  bool is_sound = beyond == 0 || bits[bytes - 1] >> beyond == 0;
  if (plane == kTwos && beyond != 0) {
    is_sound = is_sound && sections.section(frame, kSigns).content[bytes - 1] >> beyond == 0;
  }
  if (!is_sound) report(args.verdict, Fault::Bitmap, frame);
  space.count(frame, plane + 1) = larger;
  sections.section(frame, plane + 1).bytes = plane == kFours ? larger : bytes_of_bits(larger);
}

// The next plane, or all the rest, is found.
__global__ void __launch_bounds__(kPlaneThreads)
    find_next(Decode args, DeadZoneSpace space, std::uint32_t plane) {
  const std::uint32_t frame = blockIdx.x;
  if (has_codes(args, frame)) {
    count_larger(args, space, frame, plane);
    __syncthreads();
  }
  if (threadIdx.x < kWarp) {
    walk_sections(args, space.sections, frame, plane + 1, plane == kFours ? kDeadZoneSections : plane + 2);
  }
}

// All planes are there. The codes take turns in two places, and end up where each block's were packed.
__global__ void __launch_bounds__(kPlaneThreads) join(Decode args, DeadZoneSpace space) {
  const std::uint32_t frame = blockIdx.x;
  const SectionSpace& sections = space.sections;
  if (!has_codes(args, frame)) return;
  const std::uint8_t* larger = sections.section(frame, kCodes).content;
  bool is_beyond = false;
  for (std::uint32_t at = threadIdx.x; at < space.count(frame, kCodes); at += kPlaneThreads) {
    is_beyond = is_beyond || larger[at] < 4 || larger[at] > 127;
  }
  if (is_beyond) report(args.verdict, Fault::Code, frame);
  std::uint8_t* packed = space.packed + frame * space.packed_bytes;
  for (std::uint32_t plane = kFours; plane >= kTwos; --plane) {
    std::uint8_t* to = plane == kThrees ? sections.content(frame, kCodes) : packed;
    fill(larger, sections.section(frame, plane).content,
         plane == kTwos ? sections.section(frame, kSigns).content : nullptr, space.count(frame, plane),
         plane - kTwos + 1, to);
    larger = to;
  }
  if (threadIdx.x == 0) sections.section(frame, kCodes).content = packed;
}

Grid block_per_frame(const PayloadPlan& plan) {
  return {plan.frames, kPlaneThreads};
}

}  // namespace

core::Status split_codes(const ElementEncode& args, const DeadZoneSpace& space, Stream stream) {
  return launch(split, block_per_frame(args.plan), stream, space);
}

core::Status find_codes(const DecodeRun& run, const DeadZoneSpace& space) {
  const Decode& args = run.args;
  GEOCOMM_RETURN_IF_ERROR(decode_sections(run, space.sections, kSigns, kTwos + 1));
  for (std::uint32_t plane = kTwos; plane <= kFours; ++plane) {
    const std::uint32_t end = plane == kFours ? std::uint32_t{kDeadZoneSections} : plane + 2;
    GEOCOMM_RETURN_IF_ERROR(launch(find_next, block_per_frame(args.plan), run.stream, args, space, plane));
    GEOCOMM_RETURN_IF_ERROR(decode_sections(run, space.sections, plane + 1, end));
  }
  return launch(join, block_per_frame(args.plan), run.stream, args, space);
}

}  // namespace geocomm::codec::cuda
