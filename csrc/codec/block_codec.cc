#include <array>
#include <cstdint>
#include <cstring>

#include "codec/block_layout.h"
#include "codec/payload_codec.h"
#include "codec/plain_codec.h"
#include "codec/quantize.h"
#include "codec/random_bits.h"
#include "core/str.h"

namespace geocomm::codec {
namespace {

bool is_raw(std::int32_t peak_bits) {
  return peak_bits >= static_cast<std::int32_t>(core::kFloatInfBits);
}

std::int32_t load_values(core::DType dtype, const std::byte* src, const float* residual, std::size_t count,
                         float* values) {
  return with_compressible(dtype, [&]<core::DType kType>() {
    return residual != nullptr ? load_block<kType, true>(src, residual, count, values)
                               : load_block<kType, false>(src, nullptr, count, values);
  });
}

// Room for one block on the stack.
struct Scratch {
  alignas(64) std::array<float, kMaxBlock> values;
  alignas(64) std::array<std::int8_t, kMaxBlock> codes;
};

template <int kMax>
void quantize(const CodecSpec& spec, const Scratch& scratch, std::size_t count, const BlockScale& scale,
              const std::uint16_t* random, std::int8_t* codes, float* residual) {
  const float* values = scratch.values.data();
  if (spec.rounding == Rounding::Nearest) {
    if (residual != nullptr) {
      quantize_block<kMax, Rounding::Nearest, true>(values, count, scale, nullptr, codes, residual);
    } else {
      quantize_block<kMax, Rounding::Nearest, false>(values, count, scale, nullptr, codes, nullptr);
    }
  } else if (residual != nullptr) {
    quantize_block<kMax, Rounding::Stochastic, true>(values, count, scale, random, codes, residual);
  } else {
    quantize_block<kMax, Rounding::Stochastic, false>(values, count, scale, random, codes, nullptr);
  }
}

template <int kMax>
std::size_t encode(const CodecSpec& spec, core::DType dtype, const std::byte* src, std::size_t count,
                   const CompressOptions& options, std::byte* dst) {
  const BlockLayout layout(spec.id, spec.block, dtype, count);
  Scratch scratch;
  BlockRandom random;
  std::size_t end = layout.raw_offset();
  for (std::size_t index = 0; index < layout.blocks(); ++index) {
    const std::size_t first = layout.first_element(index);
    const std::size_t length = layout.length(index);
    const std::byte* block_src = src + layout.raw_bytes(first);
    float* residual =
        options.feedback.is_on() ? reinterpret_cast<float*>(options.feedback.residual) + first : nullptr;
    std::byte* codes = dst + layout.code_offset(index);
    const std::int32_t peak = load_values(dtype, block_src, residual, length, scratch.values.data());
    std::uint16_t scale_bits = kRawScale;
    if (is_raw(peak)) {
      std::memset(codes, 0, layout.code_bytes(length));
      encode_plain(dtype, block_src, length, residual, dst + end);
      end += layout.raw_bytes(length);
    } else {
      const BlockScale scale = scale_of<kMax>(peak);
      scale_bits = scale.bits;
      const std::uint16_t* bits = spec.rounding == Rounding::Stochastic
                                      ? random.fill(options.seed, options.first_element + first, length)
                                      : nullptr;
      if constexpr (kMax == kMaxInt8) {
        quantize<kMax>(spec, scratch, length, scale, bits, reinterpret_cast<std::int8_t*>(codes), residual);
      } else {
        quantize<kMax>(spec, scratch, length, scale, bits, scratch.codes.data(), residual);
        pack_int4(scratch.codes.data(), length, codes);
      }
    }
    std::memcpy(dst + layout.scale_offset(index), &scale_bits, sizeof(scale_bits));
  }
  return end;
}

template <int kMax>
core::Status check_scales(const BlockLayout& layout, const FrameView& frame) {
  std::size_t raw_elements = 0;
  for (std::size_t index = 0; index < layout.blocks(); ++index) {
    const auto bits = load_unaligned<std::uint16_t>(frame.payload.data() + layout.scale_offset(index));
    if (bits == kRawScale) {
      raw_elements += layout.length(index);
    } else if (bits < kMinScaleBits || bits > max_scale_bits<kMax>()) {
      return {core::StatusCode::CorruptData, core::str("codec frame: scale 0x", std::hex, bits, " of block ",
                                                       std::dec, index, " is out of range")};
    }
  }
  const std::size_t expected = layout.raw_offset() + layout.raw_bytes(raw_elements);
  if (frame.payload.size() == expected) return core::Status::ok();
  return {core::StatusCode::CorruptData,
          core::str("codec frame: payload of ", frame.payload.size(), " bytes, its blocks take ", expected)};
}

template <int kMax, Sink kSink>
void decode(const BlockLayout& layout, const FrameView& frame, std::byte* dst) {
  const std::byte* raw = frame.payload.data() + layout.raw_offset();
  for (std::size_t index = 0; index < layout.blocks(); ++index) {
    const std::size_t length = layout.length(index);
    std::byte* block_dst = dst + layout.first_element(index) * element_bytes(kSink);
    const std::byte* codes = frame.payload.data() + layout.code_offset(index);
    const auto bits = load_unaligned<std::uint16_t>(frame.payload.data() + layout.scale_offset(index));
    if (bits == kRawScale) {
      decode_plain(frame.dtype, raw, length, kSink, block_dst);
      raw += layout.raw_bytes(length);
    } else if constexpr (kMax == kMaxInt8) {
      dequantize_int8<kSink>(codes, length, core::bfloat16_to_float(bits), block_dst);
    } else {
      dequantize_int4<kSink>(codes, length, core::bfloat16_to_float(bits), block_dst);
    }
  }
}

template <int kMax>
core::Status check_and_decode(const FrameView& frame, Sink sink, std::byte* dst) {
  const BlockLayout layout(frame.spec.id, frame.spec.block, frame.dtype, frame.elements);
  GEOCOMM_RETURN_IF_ERROR(check_scales<kMax>(layout, frame));
  with_sink(sink, [&]<Sink kSink>() { decode<kMax, kSink>(layout, frame, dst); });
  return core::Status::ok();
}

std::size_t bound_of(const CodecSpec& spec, core::DType dtype, std::size_t elements) {
  return BlockLayout(spec.id, spec.block, dtype, elements).max_bytes();
}

std::size_t encode_frame(const FrameInput& input, std::byte* dst) {
  if (input.spec.id == CodecId::Int8) {
    return encode<kMaxInt8>(input.spec, input.dtype, input.src, input.elements, input.options, dst);
  }
  if (input.spec.id == CodecId::Int4) {
    return encode<kMaxInt4>(input.spec, input.dtype, input.src, input.elements, input.options, dst);
  }
  return kResortToNone;
}

bool is_possible_size(const CodecSpec& spec, core::DType dtype, std::size_t elements, std::size_t bytes) {
  const BlockLayout layout(spec.id, spec.block, dtype, elements);
  return bytes >= layout.min_bytes() && bytes <= layout.max_bytes() &&
         (bytes - layout.min_bytes()) % core::size_of(dtype) == 0;
}

core::Status decode_frame(const FrameView& frame, Sink sink, std::byte* dst) {
  return frame.spec.id == CodecId::Int8 ? check_and_decode<kMaxInt8>(frame, sink, dst)
                                        : check_and_decode<kMaxInt4>(frame, sink, dst);
}

}  // namespace

const PayloadCodec kBlockCodec{bound_of, encode_frame, is_possible_size, decode_frame};

}  // namespace geocomm::codec
