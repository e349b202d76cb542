// Loco: top-k of each chunk (top_k_select) at a fixed rate. Places are in Elias-Fano, values one of two
// magnitudes and a sign, so that nothing but raw chunks makes a frame longer. After SparseLoCo (arXiv
// 2508.15706).
//
// The magnitudes are the means of the chunk's values on either side of the sum of squares over the sum: of
// what is cheap to find it comes closest to the best bound. That chunks have magnitudes of their own costs 5
// % of a frame. Of a gradient the values that are kept then lose 2 % of their energy; with magnitudes that a
// frame's chunks share it was 36 % (benchmarks/results/loco.md).
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

#include "codec/frames/elements.h"
#include "codec/frames/payload_codec.h"
#include "codec/frames/streaming.h"
#include "codec/frames/thread_scratch.h"
#include "codec/quantizers/block/block_layout.h"
#include "codec/quantizers/loco/loco_format.h"
#include "codec/quantizers/loco/loco_kernels.h"
#include "codec/quantizers/loco/loco_levels.h"
#include "codec/quantizers/select/top_k_select.h"

namespace geocomm::codec {
namespace {

using core::Status;

std::size_t bound_of(const CodecSpec& spec, core::DType, std::size_t elements) {
  return loco_layout(spec, elements).most_bytes();
}

std::size_t usual_bound_of(const CodecSpec& spec, core::DType, std::size_t elements) {
  return loco_layout(spec, elements).bytes();
}

std::size_t encode_frame(const FrameInput& input, std::byte* dst) {
  const LocoLayout layout = loco_layout(input.spec, input.elements);
  const Chosen chosen = choose_elements(input);
  const LocoHead head{static_cast<std::uint16_t>(layout.k()), 0};
  std::memcpy(dst, &head, sizeof(head));
  std::size_t end = layout.bytes();
  for (std::size_t chunk = 0; chunk < layout.chunks(); ++chunk) {
    const std::size_t first = layout.first_value(chunk);
    const std::size_t count = layout.count(chunk);
    const float* values = chosen.values + first;
    float* lost = input.options.feedback.is_on() ? chosen.lost + first : nullptr;
    std::byte* record = dst + layout.record_at(chunk);
    std::byte* places = record + sizeof(LocoLevels);
    const LocoPlaces shape = layout.places(chunk);
    loco_kernels_for(count).pack_places(chosen.places + first, shape,
                                        static_cast<std::uint32_t>(chunk * kTopKChunk), places);
    const LocoLevels levels = encode_levels(LevelBound::Energy, values, count, lost, places + shape.bytes());
    std::memcpy(record, &levels, sizeof(levels));
    if (levels.low == kRawScale) {
      std::memcpy(dst + end, values, count * sizeof(float));
      end += count * sizeof(float);
    }
  }
  keep_lost(input.options.feedback, chosen);
  return end;
}

// Which k a frame has depends on its sender's settings, so that only the outer bounds can be told.
SizeRange possible_sizes(const CodecSpec&, core::DType, std::size_t elements) {
  return {LocoLayout(1, elements).bytes(), LocoLayout(kLocoMaxK, elements).most_bytes()};
}

Status check_levels(std::span<const std::byte> payload, const LocoLayout& layout) {
  std::size_t end = layout.bytes();
  if (payload.size() < end)
    return corrupt_frame("loco: a payload of ", payload.size(), " bytes, ", end, " are needed");
  for (std::size_t chunk = 0; chunk < layout.chunks(); ++chunk) {
    const auto levels = load_unaligned<LocoLevels>(payload.data() + layout.record_at(chunk));
    if (levels.low > kRawScale || levels.high >= kRawScale) {
      return corrupt_frame("loco: a level of chunk ", chunk, " is out of range");
    }
    if (levels.low == kRawScale) end += layout.count(chunk) * sizeof(float);
  }
  return payload.size() == end
             ? Status::ok()
             : corrupt_frame("loco: a payload of ", payload.size(), " bytes, its chunks take ", end);
}

// The places of all chunks, each in its own, to this thread's scratch memory; nullptr: some chunk's are none
// that an encoder writes.
const std::uint32_t* read_places(std::span<const std::byte> payload, const LocoLayout& layout) {
  auto* places = reinterpret_cast<std::uint32_t*>(
      thread_scratch(ScratchUse::Places, layout.values() * sizeof(std::uint32_t)).data());
  for (std::size_t chunk = 0; chunk < layout.chunks(); ++chunk) {
    const LocoPlaces shape = layout.places(chunk);
    const std::byte* packed = payload.data() + layout.record_at(chunk) + sizeof(LocoLevels);
    if (!loco_kernels_for(shape.count).unpack_places(packed, shape, places + layout.first_value(chunk))) {
      return nullptr;
    }
  }
  return places;
}

// To a frame whose chunks have all been checked.
template <Sink kSink>
void put_values(const float* values, const std::uint32_t* places, std::size_t count, std::byte* dst) {
  for (std::size_t i = 0; i < count; ++i) put<kSink>(dst, places[i], values[i]);
}

// Past the caches: a chunk is put together in memory that stays in them, and is zeros again afterwards.
class StreamedChunk {
 public:
  StreamedChunk() { std::memset(memory_.data(), 0, memory_.size() * sizeof(float)); }
  void write(const float* values, const std::uint32_t* places, std::size_t count, std::size_t length,
             std::byte* dst) {
    for (std::size_t i = 0; i < count; ++i) memory_[places[i]] = values[i];
    copy_streaming(dst, reinterpret_cast<const std::byte*>(memory_.data()), length * sizeof(float));
    for (std::size_t i = 0; i < count; ++i) memory_[places[i]] = 0.0f;
  }

 private:
  alignas(64) std::array<float, kTopKChunk> memory_;
};

Status decode_frame(const FrameView& frame, Sink sink, std::byte* dst) {
  const auto head = load_unaligned<LocoHead>(frame.payload.data());
  if (head.k < 1 || head.k > kLocoMaxK || head.reserved != 0) {
    return corrupt_frame("loco: k of ", head.k, ", reserved ", head.reserved);
  }
  const LocoLayout layout(head.k, frame.elements);
  GEOCOMM_RETURN_IF_ERROR(check_levels(frame.payload, layout));
  const std::uint32_t* places = read_places(frame.payload, layout);
  if (places == nullptr)
    return corrupt_frame("loco: places that do not ascend in their chunk, or are not as many as it gives");

  std::optional<StreamedChunk> streamed;
  if (sink == Sink::StreamedFloat32) streamed.emplace();
  alignas(64) std::array<float, kLocoMaxK> values;
  const std::byte* raw = frame.payload.data() + layout.bytes();
  for (std::size_t chunk = 0; chunk < layout.chunks(); ++chunk) {
    const std::size_t count = layout.count(chunk);
    const std::byte* record = frame.payload.data() + layout.record_at(chunk);
    const auto levels = load_unaligned<LocoLevels>(record);
    if (levels.low == kRawScale) {
      std::memcpy(values.data(), raw, count * sizeof(float));
      raw += count * sizeof(float);
    } else {
      loco_kernels_for(count).decode(record + sizeof(levels) + layout.places(chunk).bytes(), count, levels,
                                     values.data());
    }
    const std::uint32_t* own = places + layout.first_value(chunk);
    std::byte* to = dst + chunk * kTopKChunk * element_bytes(sink);
    if (streamed) {
      streamed->write(values.data(), own, count, layout.length(chunk), to);
      continue;
    }
    if (sink != Sink::AddToFloat32) std::memset(to, 0, layout.length(chunk) * element_bytes(sink));
    with_sink(sink, [&]<Sink kSink>() { put_values<kSink>(values.data(), own, count, to); });
  }
  return Status::ok();
}

}  // namespace

const PayloadCodec kLocoCodec{bound_of, usual_bound_of, encode_frame, possible_sizes, decode_frame};

}  // namespace geocomm::codec
