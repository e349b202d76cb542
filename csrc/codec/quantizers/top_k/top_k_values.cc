#include "codec/quantizers/top_k/top_k_values.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "codec/frames/elements.h"
#include "codec/frames/payload_codec.h"
#include "codec/quantizers/top_k/top_k_two_level.h"
#include "core/half.h"

namespace geocomm::codec {
namespace {

using core::DType;
using core::Status;

Status wrong_size(std::size_t bytes, std::size_t count) {
  return corrupt_frame(bytes, " bytes cannot be ", count, " values");
}

CodecSpec int8_spec(Entropy stage) {
  CodecSpec spec;
  spec.id = CodecId::Int8;
  spec.entropy = stage;
  return spec;
}

// Int8 is the codec of that name. Its own error feedback says what is lost: a residual of -0 changes no
// input, not even -0.
std::size_t encode_int8(Entropy stage, const float* values, std::size_t count, float* lost, std::byte* dst) {
  const CodecSpec spec = int8_spec(stage);
  CompressOptions options;
  if (lost != nullptr) {
    std::fill_n(lost, count, -0.0f);
    options.feedback = {reinterpret_cast<std::byte*>(lost), DType::Float32, count};
  }
  return kBlockCodec.encode(
      {spec, DType::Float32, reinterpret_cast<const std::byte*>(values), count, options}, dst);
}

Status decode_int8(Entropy stage, std::span<const std::byte> coded, std::size_t count, float* values) {
  FrameView frame;
  frame.spec = int8_spec(stage);
  frame.elements = static_cast<std::uint32_t>(count);
  frame.payload = coded;
  const SizeRange sizes = kBlockCodec.possible_sizes(frame.spec, frame.dtype, count);
  if (coded.size() < sizes.least || coded.size() > sizes.most) return wrong_size(coded.size(), count);
  return kBlockCodec.decode(frame, Sink::Float32, reinterpret_cast<std::byte*>(values));
}

std::size_t encode_bf16(const float* values, std::size_t count, float* lost, std::byte* dst) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t bits = core::float_to_bfloat16_saturated(values[i]);
    std::memcpy(dst + 2 * i, &bits, sizeof(bits));
    if (lost != nullptr) lost[i] = residual_of(values[i], core::bfloat16_to_float(bits));
  }
  return 2 * count;
}

std::size_t encode_fp32(const float* values, std::size_t count, float* lost, std::byte* dst) {
  std::memcpy(dst, values, count * sizeof(float));
  if (lost != nullptr) std::fill_n(lost, count, 0.0f);
  return count * sizeof(float);
}

template <DType kType>
Status decode_cast(std::span<const std::byte> coded, std::size_t count, float* values) {
  if (coded.size() != count * core::size_of(kType)) return wrong_size(coded.size(), count);
  for (std::size_t i = 0; i < count; ++i) values[i] = load_element<kType>(coded.data(), i);
  return Status::ok();
}

}  // namespace

std::size_t values_bound(Values form, Entropy stage, std::size_t count) {
  switch (form) {
    case Values::Bf16:
      return 2 * count;
    case Values::Int8:
      return count == 0 ? 0 : kBlockCodec.bound(int8_spec(stage), DType::Float32, count);
    case Values::Bit2:
      return two_level_bound(count);
    case Values::Fp32:
      break;
  }
  return count * sizeof(float);
}

std::size_t encode_values(Values form, Entropy stage, const float* values, std::size_t count, float* lost,
                          std::byte* dst) {
  if (count == 0) return 0;
  switch (form) {
    case Values::Bf16:
      return encode_bf16(values, count, lost, dst);
    case Values::Int8:
      return encode_int8(stage, values, count, lost, dst);
    case Values::Bit2:
      return encode_two_level(values, count, lost, dst);
    case Values::Fp32:
      break;
  }
  return encode_fp32(values, count, lost, dst);
}

Status decode_values(Values form, Entropy stage, std::span<const std::byte> coded, std::size_t count,
                     float* values) {
  if (count == 0) return coded.empty() ? Status::ok() : wrong_size(coded.size(), count);
  switch (form) {
    case Values::Bf16:
      return decode_cast<DType::BFloat16>(coded, count, values);
    case Values::Int8:
      return decode_int8(stage, coded, count, values);
    case Values::Bit2:
      return decode_two_level(coded, count, values);
    case Values::Fp32:
      break;
  }
  return decode_cast<DType::Float32>(coded, count, values);
}

}  // namespace geocomm::codec
