// A chunk of Loco and its record, as the device finds them: a warp per chunk.
#pragma once

#include <cstdint>

#include "codec/cuda/device.h"
#include "codec/cuda/payload_plan.h"
#include "codec/quantizers/loco/loco_format.h"

namespace geocomm::codec::cuda {

inline constexpr unsigned kLocoThreads = 256;
inline constexpr unsigned kLocoWarps = kLocoThreads / kWarp;

__device__ __forceinline__ std::uint32_t loco_share(std::uint32_t k, std::uint32_t length) {
  return (k * length + kTopKChunk - 1) / kTopKChunk;
}

// As LocoPlaces has it.
struct PlaceShape {
  std::uint32_t count;
  std::uint32_t low_bits;
  std::uint32_t highs_at;  // bit
  std::uint32_t high_bits;
  std::uint32_t bytes;
};
__device__ __forceinline__ PlaceShape shape_of(std::uint32_t length, std::uint32_t count) {
  PlaceShape shape{};
  shape.count = count;
  shape.low_bits = 31u - static_cast<std::uint32_t>(__clz(static_cast<int>(length / count)));
  shape.highs_at = count * shape.low_bits;
  shape.high_bits = count + ((length - 1) >> shape.low_bits);
  shape.bytes = (shape.highs_at + shape.high_bits + 7) / 8;
  return shape;
}

__device__ __forceinline__ std::uint32_t record_bytes_of(std::uint32_t length, std::uint32_t count) {
  return static_cast<std::uint32_t>(sizeof(LocoLevels)) + shape_of(length, count).bytes + (count + 3) / 4;
}
// Of a whole chunk.
__device__ __forceinline__ std::uint32_t record_bytes_of(std::uint32_t k) {
  return record_bytes_of(kTopKChunk, k);
}
// Of all records of a frame.
__device__ __forceinline__ std::uint32_t records_bytes_of(std::uint32_t k, std::uint32_t elements) {
  const std::uint32_t rest = elements % kTopKChunk;
  return elements / kTopKChunk * record_bytes_of(k) +
         (rest == 0 ? 0 : record_bytes_of(rest, loco_share(k, rest)));
}

struct LocoChunk {
  std::uint32_t frame;
  std::uint32_t index;   // in the frame
  std::uint32_t length;  // elements
  std::uint32_t begin;   // element, of the frame
};

// This warp's. False for all its lanes: there is none.
__device__ __forceinline__ bool find_chunk(const PayloadPlan& plan, LocoChunk& chunk) {
  const std::uint64_t element = (std::uint64_t{blockIdx.x} * kLocoWarps + threadIdx.x / kWarp) * kTopKChunk;
  if (element >= plan.elements) return false;
  const std::uint32_t index = plan.frame_of_element(element);
  chunk.frame = plan.first_frame + index;
  chunk.begin = static_cast<std::uint32_t>(element - index * plan.frame_elements);
  const std::uint32_t elements = plan.extent(chunk.frame).elements;
  if (chunk.begin >= elements) return false;
  chunk.index = chunk.begin / kTopKChunk;
  const std::uint32_t left = elements - chunk.begin;
  chunk.length = left < kTopKChunk ? left : kTopKChunk;
  return true;
}

inline Grid grid_of_chunks(const PayloadPlan& plan) {
  return one_thread_each((plan.elements + kTopKChunk - 1) / kTopKChunk * kWarp, kLocoThreads);
}

}  // namespace geocomm::codec::cuda
