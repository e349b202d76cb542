#include "collective/run/frame_plan.h"

#include <algorithm>
#include <map>

#include "codec/payload/expected_size.h"

namespace geocomm::collective {

using core::Buffer;
using core::DType;

namespace {

constexpr std::size_t kWritten = 256;  // that a device writes at once
constexpr std::size_t kRead = 16;      // as ArrivalRoom has it

std::size_t aligned(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// What frames take but for few: a little more than those of normal numbers.
std::size_t usual_bytes(const codec::CodecSpec& codec, DType dtype, std::size_t elements) {
  constexpr double kMargin = 1.03;
  const double expected = codec::expected_bytes_per_element(codec, dtype) * static_cast<double>(elements);
  return std::min(codec::compress_bound(codec, dtype, elements),
                  sizeof(codec::FrameHeader) + static_cast<std::size_t>(kMargin * expected));
}

// Of frames that come, with `on_arrival`, what they usually take, at the end of the piece.
void cut_rooms(FramePlan& plan, DType dtype, bool on_arrival, core::BufferPool& memory) {
  std::size_t arrivals = 0;
  const auto for_each_room = [&](const auto& give) {
    const auto comes = [&](Buffer& frame, DType type, std::size_t elements) {
      if (on_arrival) {
        arrivals += aligned(usual_bytes(plan.codec, type, elements), kRead);
      } else {
        give(frame, type, elements);
      }
    };
    arrivals = 0;
    for (FrameChunk& chunk : plan.chunks) {
      const std::size_t elements = chunk.range.size();
      if (chunk.contributes) give(chunk.contribution, dtype, elements);
      for (std::size_t site = 0; site < chunk.frames.size(); ++site) {
        if (site != plan.own_site) comes(chunk.frames[site], dtype, elements);
      }
      if (chunk.owns) give(chunk.result, DType::Float32, elements);
      if (chunk.has_result && !chunk.owns) comes(chunk.result, DType::Float32, elements);
    }
  };
  const auto bound = [&](DType type, std::size_t elements) {
    return aligned(codec::compress_bound(plan.codec, type, elements), kWritten);
  };
  std::size_t bytes = 0;
  for_each_room([&](Buffer&, DType type, std::size_t elements) { bytes += bound(type, elements); });
  const Buffer slab = memory.sized(bytes + arrivals);
  std::size_t used = 0;
  for_each_room([&](Buffer& frame, DType type, std::size_t elements) {
    frame = slab.part(used, bound(type, elements));
    frame.resize(0);
    used += bound(type, elements);
  });
  plan.arrivals = on_arrival ? std::make_shared<ArrivalRoom>(slab.part(used, arrivals), memory) : nullptr;
  // Everyone adds the same bytes of this rank, itself included.
  for (FrameChunk& chunk : plan.chunks) {
    if (chunk.reduces && chunk.contributes) chunk.frames[plan.own_site] = chunk.contribution;
  }
}

}  // namespace

// Stripes have different peers: a group has a part of each, so that all links are busy.
void cut_groups(FramePlan& plan, DType dtype, const FrameOptions& options) {
  constexpr std::size_t kMostGroups = 8;
  if (!options.group_bytes) return;
  std::map<std::size_t, std::size_t> ends;  // of the stripes
  for (const FrameChunk& chunk : plan.chunks) {
    ends[chunk.stripe] = std::max(ends[chunk.stripe], chunk.range.end);
  }
  std::size_t elements = 0;
  for (const auto& [stripe, end] : ends) elements += end;
  plan.groups = static_cast<std::uint32_t>(std::clamp<std::size_t>(
      elements * core::size_of(dtype) / options.group_bytes(plan.codec), 1, kMostGroups));
  for (FrameChunk& chunk : plan.chunks) {
    chunk.group = static_cast<std::uint32_t>(chunk.range.begin * plan.groups / ends[chunk.stripe]);
  }
}

void cut_groups_and_rooms(FramePlan& plan, DType dtype, const FrameOptions& options,
                          core::BufferPool& memory) {
  cut_groups(plan, dtype, options);
  cut_rooms(plan, dtype, options.places_on_arrival, memory);
}

}  // namespace geocomm::collective
