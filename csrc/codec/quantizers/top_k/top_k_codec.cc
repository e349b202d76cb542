// TopK: choose (top_k_select), name the places (top_k_places), code the values (top_k_values). Memory is
// passed over once; what follows concerns the chosen elements only.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "codec/entropy/plane.h"
#include "codec/frames/elements.h"
#include "codec/frames/payload_codec.h"
#include "codec/frames/thread_scratch.h"
#include "codec/quantizers/select/top_k_select.h"
#include "codec/quantizers/top_k/top_k_format.h"
#include "codec/quantizers/top_k/top_k_places.h"
#include "codec/quantizers/top_k/top_k_values.h"

namespace geocomm::codec {
namespace {

using core::Status;

constexpr Values kForms[] = {Values::Fp32, Values::Bf16, Values::Int8, Values::Bit2};

// Of a frame in which up to `count` elements are chosen, their values in whichever of these forms.
std::size_t payload_bound(Entropy stage, std::span<const Values> forms, std::size_t count,
                          std::size_t elements) {
  std::size_t values = 0;
  for (const Values form : forms) values = std::max(values, values_bound(form, stage, count));
  return sizeof(TopKHead) + plane_bound(stage, max_index_bytes(count, elements)) + values;
}

std::size_t bound_of(const CodecSpec& spec, core::DType, std::size_t elements) {
  return payload_bound(spec.entropy, {&spec.values, 1}, frame_limit(spec, elements), elements);
}

std::size_t encode_frame(const FrameInput& input, std::byte* dst) {
  const Chosen chosen = choose_elements(input);
  const IndexMode mode = index_mode_of(chosen.count, input.elements);
  const auto index = write_places(mode, chosen.places, chosen.count, input.elements);
  TopKHead head{};
  head.count = static_cast<std::uint32_t>(chosen.count);
  head.index_bytes = static_cast<std::uint32_t>(index.size());
  head.index_mode = static_cast<std::uint8_t>(mode);
  head.values = static_cast<std::uint8_t>(input.spec.values);
  std::memcpy(dst, &head, sizeof(head));
  std::size_t end = sizeof(head);
  end += encode_plane(input.spec.entropy, index, dst + end);
  float* lost = input.options.feedback.is_on() ? chosen.lost : nullptr;
  end += encode_values(input.spec.values, input.spec.entropy, chosen.values, chosen.count, lost, dst + end);

  keep_lost(input.options.feedback, chosen);
  return end;
}

// Which elements a frame has depends on its sender's settings, so that only the outer bounds can be told.
SizeRange possible_sizes(const CodecSpec& spec, core::DType, std::size_t elements) {
  return {sizeof(TopKHead), payload_bound(spec.entropy, kForms, elements, elements)};
}

Status check_head(const TopKHead& head, std::size_t elements) {
  if (head.index_mode > static_cast<int>(IndexMode::Bitmap) || head.values > static_cast<int>(Values::Bit2) ||
      head.reserved != 0) {
    return corrupt_frame("topk: unknown mode ", int{head.index_mode}, ", values ", int{head.values},
                         ", reserved ", head.reserved);
  }
  if (!is_possible_index(head, elements)) {
    return corrupt_frame("topk: ", head.count, " places in ", head.index_bytes, " bytes for ", elements,
                         " elements");
  }
  return Status::ok();
}

Status decode_frame(const FrameView& frame, Sink sink, std::byte* dst) {
  const Entropy stage = frame.spec.entropy;
  const TopKHead head = read_top_k_head(frame.payload.data());
  GEOCOMM_RETURN_IF_ERROR(check_head(head, frame.elements));
  const auto mode = static_cast<IndexMode>(head.index_mode);
  auto rest = frame.payload.subspan(sizeof(head));
  const auto index = thread_scratch(ScratchUse::Indices, head.index_bytes);
  GEOCOMM_RETURN_IF_ERROR(take_plane(stage, rest, index));
  if (!is_valid_index(mode, index, head.count, frame.elements)) {
    return corrupt_frame("topk: places outside of the frame, or other than ", head.count);
  }
  auto* values =
      reinterpret_cast<float*>(thread_scratch(ScratchUse::Values, head.count * sizeof(float)).data());
  GEOCOMM_RETURN_IF_ERROR(decode_values(static_cast<Values>(head.values), stage, rest, head.count, values));

  if (sink != Sink::AddToFloat32 && frame.elements > 0) {
    std::memset(dst, 0, frame.elements * element_bytes(sink));
  }
  scatter(mode, index, values, sink, dst);
  return Status::ok();
}

}  // namespace

const PayloadCodec kTopKCodec{bound_of, bound_of, encode_frame, possible_sizes, decode_frame};

}  // namespace geocomm::codec
