#include "codec/quantizers/cast/plain_codec.h"

#include <cstring>

#include "codec/frames/payload_codec.h"
#include "codec/frames/streaming.h"
#include "codec/quantizers/cast/cast_kernels.h"

namespace geocomm::codec {
namespace {

template <core::DType kType, Residual kResidual>
void encode_with_feedback(const std::byte* __restrict src, std::size_t count, std::byte* __restrict residual,
                          float decay, std::byte* __restrict dst) {
  for (std::size_t i = 0; i < count; ++i) {
    const float value = load_value<kType, kResidual>(src, residual, decay, i);
    store_element<kType>(dst, i, value);
    if constexpr (kType == core::DType::Float32) {
      store_residual<kResidual>(residual, i, value, value);
    } else {
      store_residual<kResidual>(residual, i, value, widen<kType>(narrow_saturated<kType>(value)));
    }
  }
}

}  // namespace

void encode_plain(core::DType dtype, const std::byte* src, std::size_t count, const ErrorFeedback& feedback,
                  std::byte* dst) {
  if (count == 0) return;
  if (!feedback.is_on()) {
    std::memcpy(dst, src, count * core::size_of(dtype));
    return;
  }
  with_compressible(dtype, [&]<core::DType kType>() {
    with_residual(residual_kind(feedback), [&]<Residual kResidual>() {
      encode_with_feedback<kType, kResidual>(src, count, feedback.residual, feedback.decay, dst);
    });
  });
}

void decode_plain(core::DType dtype, const std::byte* payload, std::size_t count, Sink sink, std::byte* dst) {
  if (count == 0) return;
  if (sink == Sink::StreamedFloat32 && dtype == core::DType::Float32) {
    copy_streaming(dst, payload, count * sizeof(float));
    return;
  }
  if (sink == sink_of(dtype)) {
    std::memcpy(dst, payload, count * core::size_of(dtype));
    return;
  }
  if (dtype != core::DType::Float32) {
    decode_words(dtype, payload, count, sink, dst);
    return;
  }
  with_sink(sink, [&]<Sink kSink>() {
    const std::byte* __restrict from = payload;
    std::byte* __restrict to = dst;
    for (std::size_t i = 0; i < count; ++i) put<kSink>(to, i, load_element<core::DType::Float32>(from, i));
  });
}

namespace {

std::size_t bound_of(const CodecSpec&, core::DType dtype, std::size_t elements) {
  return elements * core::size_of(dtype);
}

std::size_t encode_frame(const FrameInput& input, std::byte* dst) {
  encode_plain(input.dtype, input.src, input.elements, input.options.feedback, dst);
  return bound_of(input.spec, input.dtype, input.elements);
}

SizeRange possible_sizes(const CodecSpec& spec, core::DType dtype, std::size_t elements) {
  const std::size_t bytes = bound_of(spec, dtype, elements);
  return {bytes, bytes};
}

core::Status decode_frame(const FrameView& frame, Sink sink, std::byte* dst) {
  decode_plain(frame.dtype, frame.payload.data(), frame.elements, sink, dst);
  return core::Status::ok();
}

}  // namespace

const PayloadCodec kPlainCodec{bound_of, bound_of, encode_frame, possible_sizes, decode_frame};

}  // namespace geocomm::codec
