// Fp16, Bf16: elements rounded to 16-bit words. With a stage the words go as two planes, of which the high
// bytes are coded.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "codec/entropy/plane.h"
#include "codec/frames/payload_codec.h"
#include "codec/frames/thread_scratch.h"
#include "codec/quantizers/cast/cast_kernels.h"

namespace geocomm::codec {
namespace {

constexpr std::size_t kWordBytes = sizeof(std::uint16_t);
// Words between the cast and the split, which stay in the first-level cache.
constexpr std::size_t kPiece = 4096;
using Piece = std::array<std::byte, kPiece * kWordBytes>;

// The dtype whose casts are the codec's.
constexpr core::DType format_of(CodecId id) {
  return id == CodecId::Fp16 ? core::DType::Float16 : core::DType::BFloat16;
}

bool all_fit(const FrameInput& input) {
  const ErrorFeedback& feedback = input.options.feedback;
  const auto residual = static_cast<std::size_t>(residual_kind(feedback));
  bool fits = true;
  cast_in_steps(input.elements, [&](const CastKernels& kernels, std::size_t first, std::size_t count) {
    const std::byte* src = input.src + first * core::size_of(input.dtype);
    fits &= kernels.all_fit[compressible_index(input.dtype)][residual](
        src, feedback.part(first, count).residual, feedback.decay, count,
        first_too_large(format_of(input.spec.id)));
  });
  return fits;
}

// The elements [begin, begin + count) to words. Returns whether all fitted.
bool encode_words(const FrameInput& input, std::size_t begin, std::size_t count, std::byte* words) {
  const ErrorFeedback& feedback = input.options.feedback;
  const std::size_t format = cast_format_index(format_of(input.spec.id));
  const auto residual = static_cast<std::size_t>(residual_kind(feedback));
  bool fits = true;
  cast_in_steps(count, [&](const CastKernels& kernels, std::size_t first, std::size_t length) {
    const std::byte* src = input.src + (begin + first) * core::size_of(input.dtype);
    fits &= kernels.encode[format][compressible_index(input.dtype)][residual](
        src, feedback.part(begin + first, length).residual, feedback.decay, length,
        words + first * kWordBytes);
  });
  return fits;
}

// The same to two planes.
bool encode_planes(const FrameInput& input, std::byte* high, std::byte* low) {
  alignas(64) Piece words;
  bool fits = true;
  for (std::size_t begin = 0; begin < input.elements && fits; begin += kPiece) {
    const std::size_t count = std::min(kPiece, input.elements - begin);
    fits = encode_words(input, begin, count, words.data());
    cast_in_steps(count, [&](const CastKernels& kernels, std::size_t first, std::size_t length) {
      kernels.split(words.data() + first * kWordBytes, length, high + begin + first, low + begin + first);
    });
  }
  return fits;
}

void decode_planes(const FrameView& frame, const std::byte* high, const std::byte* low, Sink sink,
                   std::byte* dst) {
  alignas(64) Piece words;
  for (std::size_t begin = 0; begin < frame.elements; begin += kPiece) {
    const std::size_t count = std::min(kPiece, frame.elements - begin);
    cast_in_steps(count, [&](const CastKernels& kernels, std::size_t first, std::size_t length) {
      kernels.join(high + begin + first, low + begin + first, length, words.data() + first * kWordBytes);
    });
    decode_words(format_of(frame.spec.id), words.data(), count, sink, dst + begin * element_bytes(sink));
  }
}

std::size_t bound_of(const CodecSpec& spec, core::DType, std::size_t elements) {
  return elements + plane_bound(spec.entropy, elements);
}

std::size_t encode_frame(const FrameInput& input, std::byte* dst) {
  // Without a residual it is enough to find out on the way.
  if (input.options.feedback.is_on() && !all_fit(input)) return kResortToNone;
  const std::size_t elements = input.elements;
  if (input.spec.entropy == Entropy::None) {
    return encode_words(input, 0, elements, dst) ? elements * kWordBytes : kResortToNone;
  }
  const auto planes = thread_scratch(ScratchUse::Codes, 2 * elements);
  const auto high = planes.first(elements);
  const auto low = planes.subspan(elements);
  if (!encode_planes(input, high.data(), low.data())) return kResortToNone;
  const std::size_t coded_bytes = encode_plane(input.spec.entropy, high, dst);
  if (elements > 0) std::memcpy(dst + coded_bytes, low.data(), elements);
  return coded_bytes + elements;
}

SizeRange possible_sizes(const CodecSpec& spec, core::DType dtype, std::size_t elements) {
  if (spec.entropy == Entropy::None) return {elements * kWordBytes, elements * kWordBytes};
  return {elements, bound_of(spec, dtype, elements)};
}

core::Status decode_frame(const FrameView& frame, Sink sink, std::byte* dst) {
  const std::size_t elements = frame.elements;
  if (frame.spec.entropy == Entropy::None) {
    decode_words(format_of(frame.spec.id), frame.payload.data(), elements, sink, dst);
    return core::Status::ok();
  }
  GEOCOMM_ASSIGN_OR_RETURN(const std::size_t coded_bytes,
                           coded_plane_bytes(frame.spec.entropy, frame.payload, elements));
  if (frame.payload.size() - coded_bytes != elements) {
    return corrupt_frame("payload of ", frame.payload.size(), " bytes, its planes take ", coded_bytes,
                         " and ", elements);
  }
  const auto high = thread_scratch(ScratchUse::Codes, elements);
  GEOCOMM_RETURN_IF_ERROR(decode_plane(frame.spec.entropy, frame.payload.first(coded_bytes), high));
  decode_planes(frame, high.data(), frame.payload.data() + coded_bytes, sink, dst);
  return core::Status::ok();
}

}  // namespace

const PayloadCodec kCastCodec{bound_of, bound_of, encode_frame, possible_sizes, decode_frame};

}  // namespace geocomm::codec
