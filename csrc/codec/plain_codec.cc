#include "codec/plain_codec.h"

#include <cstring>

#include "codec/payload_codec.h"

namespace geocomm::codec {
namespace {

template <core::DType kType>
void encode_with_feedback(const std::byte* __restrict src, std::size_t count, float* __restrict residual,
                          std::byte* __restrict dst) {
  for (std::size_t i = 0; i < count; ++i) {
    const float value = load_element<kType>(src, i) + residual[i];
    store_element<kType>(dst, i, value);
    if constexpr (kType == core::DType::Float32) {
      residual[i] = 0.0f;
    } else {
      residual[i] = residual_of(value, widen<kType>(narrow_saturated<kType>(value)));
    }
  }
}

template <core::DType kType, Sink kSink>
void decode_loop(const std::byte* __restrict payload, std::size_t count, std::byte* __restrict dst) {
  for (std::size_t i = 0; i < count; ++i) put<kSink>(dst, i, load_element<kType>(payload, i));
}

}  // namespace

void encode_plain(core::DType dtype, const std::byte* src, std::size_t count, float* residual,
                  std::byte* dst) {
  if (count == 0) return;
  if (residual == nullptr) {
    std::memcpy(dst, src, count * core::size_of(dtype));
    return;
  }
  with_compressible(dtype,
                    [&]<core::DType kType>() { encode_with_feedback<kType>(src, count, residual, dst); });
}

void decode_plain(core::DType dtype, const std::byte* payload, std::size_t count, Sink sink, std::byte* dst) {
  if (count == 0) return;
  if (sink == sink_of(dtype)) {
    std::memcpy(dst, payload, count * core::size_of(dtype));
    return;
  }
  with_compressible(dtype, [&]<core::DType kType>() {
    with_sink(sink, [&]<Sink kSink>() { decode_loop<kType, kSink>(payload, count, dst); });
  });
}

namespace {

std::size_t bound_of(const CodecSpec&, core::DType dtype, std::size_t elements) {
  return elements * core::size_of(dtype);
}

std::size_t encode_frame(const FrameInput& input, std::byte* dst) {
  encode_plain(input.dtype, input.src, input.elements,
               reinterpret_cast<float*>(input.options.feedback.residual), dst);
  return bound_of(input.spec, input.dtype, input.elements);
}

bool is_possible_size(const CodecSpec& spec, core::DType dtype, std::size_t elements, std::size_t bytes) {
  return bytes == bound_of(spec, dtype, elements);
}

core::Status decode_frame(const FrameView& frame, Sink sink, std::byte* dst) {
  decode_plain(frame.dtype, frame.payload.data(), frame.elements, sink, dst);
  return core::Status::ok();
}

}  // namespace

const PayloadCodec kPlainCodec{bound_of, encode_frame, is_possible_size, decode_frame};

}  // namespace geocomm::codec
