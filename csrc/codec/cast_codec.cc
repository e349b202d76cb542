#include <bit>
#include <cstdint>
#include <cstring>

#include "codec/payload_codec.h"

namespace geocomm::codec {
namespace {

template <core::DType kType, bool kFeedback>
float load_value(const std::byte* src, const float* residual, std::size_t index) {
  if constexpr (kFeedback) return load_element<kType>(src, index) + residual[index];
  return load_element<kType>(src, index);
}

// The dtype whose casts are the codec's.
constexpr core::DType format_of(CodecId id) {
  return id == CodecId::Fp16 ? core::DType::Float16 : core::DType::BFloat16;
}

// Magnitudes from `first_too_large` up to Inf are finite and would become Inf. Signed compares: SSE2 has no
// others.
template <core::DType kType, bool kFeedback>
bool all_fit(std::int32_t first_too_large, const std::byte* src, std::size_t count, const float* residual) {
  std::int32_t bad = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = load_value<kType, kFeedback>(src, residual, i);
    const std::int32_t magnitude = std::bit_cast<std::int32_t>(value) & 0x7FFFFFFF;
    bad |= static_cast<std::int32_t>(magnitude >= first_too_large) &
           static_cast<std::int32_t>(magnitude < static_cast<std::int32_t>(core::kFloatInfBits));
  }
  return bad == 0;
}

template <core::DType kFormat, core::DType kType, bool kFeedback>
void encode_loop(const std::byte* __restrict src, std::size_t count, float* __restrict residual,
                 std::byte* __restrict dst) {
  for (std::size_t i = 0; i < count; ++i) {
    const float value = load_value<kType, kFeedback>(src, residual, i);
    const std::uint16_t bits = narrow<kFormat>(value);
    std::memcpy(dst + 2 * i, &bits, 2);
    if constexpr (kFeedback) residual[i] = residual_of(value, widen<kFormat>(bits));
  }
}

template <core::DType kFormat, Sink kSink>
void decode_loop(const std::byte* __restrict payload, std::size_t count, std::byte* __restrict dst) {
  for (std::size_t i = 0; i < count; ++i) put<kSink>(dst, i, load_element<kFormat>(payload, i));
}

template <typename Run>
void with_format(CodecId id, Run&& run) {
  if (id == CodecId::Fp16) {
    run.template operator()<format_of(CodecId::Fp16)>();
  } else {
    run.template operator()<format_of(CodecId::Bf16)>();
  }
}

bool cast_fits(CodecId id, core::DType dtype, const std::byte* src, std::size_t count,
               const float* residual) {
  const std::int32_t first_too_large = id == CodecId::Fp16 ? 0x477FF000 : 0x7F7F8000;
  return with_compressible(dtype, [&]<core::DType kType>() {
    return residual != nullptr ? all_fit<kType, true>(first_too_large, src, count, residual)
                               : all_fit<kType, false>(first_too_large, src, count, residual);
  });
}

void encode_cast(CodecId id, core::DType dtype, const std::byte* src, std::size_t count, float* residual,
                 std::byte* dst) {
  with_format(id, [&]<core::DType kFormat>() {
    with_compressible(dtype, [&]<core::DType kType>() {
      if (residual != nullptr) {
        encode_loop<kFormat, kType, true>(src, count, residual, dst);
      } else {
        encode_loop<kFormat, kType, false>(src, count, residual, dst);
      }
    });
  });
}

void decode_cast(CodecId id, const std::byte* payload, std::size_t count, Sink sink, std::byte* dst) {
  with_format(id, [&]<core::DType kFormat>() {
    with_sink(sink, [&]<Sink kSink>() { decode_loop<kFormat, kSink>(payload, count, dst); });
  });
}

std::size_t bound_of(const CodecSpec&, core::DType, std::size_t elements) {
  return elements * sizeof(std::uint16_t);
}

std::size_t encode_frame(const FrameInput& input, std::byte* dst) {
  auto* residual = reinterpret_cast<float*>(input.options.feedback.residual);
  if (!cast_fits(input.spec.id, input.dtype, input.src, input.elements, residual)) return kResortToNone;
  encode_cast(input.spec.id, input.dtype, input.src, input.elements, residual, dst);
  return input.elements * sizeof(std::uint16_t);
}

bool is_possible_size(const CodecSpec&, core::DType, std::size_t elements, std::size_t bytes) {
  return bytes == elements * sizeof(std::uint16_t);
}

core::Status decode_frame(const FrameView& frame, Sink sink, std::byte* dst) {
  decode_cast(frame.spec.id, frame.payload.data(), frame.elements, sink, dst);
  return core::Status::ok();
}

}  // namespace

const PayloadCodec kCastCodec{bound_of, encode_frame, is_possible_size, decode_frame};

}  // namespace geocomm::codec
