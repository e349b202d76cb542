// Int8, Int4, Bit2, Bit1: blocks of elements that share a scale. Per block: load the values and find
// their peak; from it, or from a sum, the scale; then the codes. A block stays in the first-level cache for
// all of that.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "codec/entropy/plane.h"
#include "codec/frames/payload_codec.h"
#include "codec/frames/thread_scratch.h"
#include "codec/quantizers/block/block_kernels.h"
#include "codec/quantizers/block/block_layout.h"
#include "codec/quantizers/block/block_scale.h"
#include "codec/quantizers/block/random_bits.h"
#include "codec/quantizers/cast/plain_codec.h"

namespace geocomm::codec {
namespace {

BlockLayout layout_of(const CodecSpec& spec, core::DType dtype, std::size_t elements) {
  return {spec.id, spec.block, dtype, elements};
}

Coder coder_of(const CodecSpec& spec) {
  const bool stochastic = spec.rounding == Rounding::Stochastic;
  switch (spec.id) {
    case CodecId::Int8:
      return stochastic ? Coder::Int8Stochastic : Coder::Int8;
    case CodecId::Int4:
      return stochastic ? Coder::Int4Stochastic : Coder::Int4;
    case CodecId::Bit2:
      return Coder::Bit2;
    default:
      return Coder::Bit1;
  }
}

// Encodes the blocks of one frame one after the other.
class Encoder {
 public:
  Encoder(const FrameInput& input, const BlockLayout& layout)
      : input_(input),
        layout_(layout),
        coder_(coder_of(input.spec)),
        residual_(residual_kind(input.options.feedback)),
        in_place_(input.dtype == core::DType::Float32 && residual_ == Residual::None) {}

  // Codes to `codes`, scales to `scales`, raw elements to `raw`; returns how many bytes these are.
  std::size_t run(std::byte* scales, std::byte* codes, std::byte* raw) {
    const std::byte* const raw_begin = raw;
    for (std::size_t index = 0; index < layout_.blocks(); ++index) {
      const std::size_t first = layout_.first_element(index);
      const std::size_t length = layout_.length(index);
      const BlockScale scale = encode_block(first, length, codes + layout_.code_offset(index));
      if (scale.bits == kRawScale) {
        encode_plain(input_.dtype, input_.src + layout_.raw_bytes(first), length,
                     input_.options.feedback.part(first, length), raw);
        raw += layout_.raw_bytes(length);
      }
      std::memcpy(scales + layout_.scale_offset(index), &scale.bits, sizeof(scale.bits));
    }
    return static_cast<std::size_t>(raw - raw_begin);
  }

 private:
  // Scale and codes; kRawScale and zeros where the block is raw.
  BlockScale encode_block(std::size_t first, std::size_t length, std::byte* codes) {
    const BlockKernels& kernels = block_kernels_for(length);
    const ErrorFeedback feedback = input_.options.feedback.part(first, length);
    const auto residual = static_cast<std::size_t>(residual_);
    const std::byte* src = input_.src + layout_.raw_bytes(first);
    const std::int32_t peak = kernels.load[compressible_index(input_.dtype)][residual](
        src, feedback.residual, feedback.decay, length, values_.data());
    if (peak >= static_cast<std::int32_t>(core::kFloatInfBits)) {
      std::memset(codes, 0, layout_.code_bytes(length));
      return {.bits = kRawScale};
    }
    const std::byte* values = in_place_ ? src : values_.data();
    const BlockScale scale = scale_of(kernels, values, length, peak);
    const std::byte* random = nullptr;
    if (coder_ == Coder::Int8Stochastic || coder_ == Coder::Int4Stochastic) {
      random = random_.bits(input_.options.seed, input_.options.first_element + first, length);
    }
    kernels.quantize[static_cast<std::size_t>(coder_)][residual](values, length, scale, random, codes,
                                                                 feedback.residual);
    return scale;
  }

  BlockScale scale_of(const BlockKernels& kernels, const std::byte* values, std::size_t length,
                      std::int32_t peak) const {
    const CodecId id = input_.spec.id;
    if (id == CodecId::Int8 || id == CodecId::Int4) return scale_of_peak(id, peak);
    const MomentRange range = moment_range(peak);
    const auto sum = id == CodecId::Bit1 ? kernels.sum_magnitudes : kernels.sum_squares;
    return scale_of_sum(id, sum(values, length, range.down), length, range);
  }

  const FrameInput& input_;
  const BlockLayout& layout_;
  Coder coder_;
  Residual residual_;
  bool in_place_;  // the input is the values
  RandomBits random_;
  alignas(64) std::array<std::byte, kMaxBlock * sizeof(float)> values_;
};

std::size_t usual_bound_of(const CodecSpec& spec, core::DType dtype, std::size_t elements) {
  const BlockLayout layout = layout_of(spec, dtype, elements);
  return layout.scale_bytes() + plane_bound(spec.entropy, layout.plane_bytes());
}

std::size_t bound_of(const CodecSpec& spec, core::DType dtype, std::size_t elements) {
  return usual_bound_of(spec, dtype, elements) + elements * core::size_of(dtype);
}

std::size_t encode_frame(const FrameInput& input, std::byte* dst) {
  const BlockLayout layout = layout_of(input.spec, input.dtype, input.elements);
  Encoder encoder(input, layout);
  std::byte* plane = dst + layout.scale_bytes();
  if (input.spec.entropy == Entropy::None) {
    std::byte* raw = plane + layout.plane_bytes();
    return layout.scale_bytes() + layout.plane_bytes() + encoder.run(dst, plane, raw);
  }
  // Raw elements wait behind the room that the coded plane may take.
  const auto codes = thread_scratch(ScratchUse::Codes, layout.plane_bytes());
  std::byte* raw = plane + plane_bound(input.spec.entropy, layout.plane_bytes());
  const std::size_t raw_bytes = encoder.run(dst, codes.data(), raw);
  const std::size_t coded_bytes = encode_plane(input.spec.entropy, codes, plane);
  if (raw_bytes > 0) std::memmove(plane + coded_bytes, raw, raw_bytes);
  return layout.scale_bytes() + coded_bytes + raw_bytes;
}

SizeRange possible_sizes(const CodecSpec& spec, core::DType dtype, std::size_t elements) {
  const BlockLayout layout = layout_of(spec, dtype, elements);
  const std::size_t plane = layout.plane_bytes();
  const std::size_t heads = spec.entropy == Entropy::Huffman ? plane_bound(spec.entropy, plane) - plane : 0;
  return {layout.scale_bytes() + (spec.entropy == Entropy::None ? plane : heads),
          bound_of(spec, dtype, elements)};
}

std::uint16_t scale_bits_at(const FrameView& frame, const BlockLayout& layout, std::size_t index) {
  return load_unaligned<std::uint16_t>(frame.payload.data() + layout.scale_offset(index));
}

// The bytes that the raw blocks take.
core::Result<std::size_t> check_scales(const FrameView& frame, const BlockLayout& layout) {
  std::size_t raw_elements = 0;
  for (std::size_t index = 0; index < layout.blocks(); ++index) {
    const std::uint16_t bits = scale_bits_at(frame, layout, index);
    if (bits == kRawScale) {
      raw_elements += layout.length(index);
    } else if (bits < kMinScaleBits || bits > max_scale_bits(frame.spec.id)) {
      return corrupt_frame("scale 0x", std::hex, bits, " of block ", std::dec, index, " is out of range");
    }
  }
  return layout.raw_bytes(raw_elements);
}

// The plane of the codes, decoded if it has to be.
core::Result<std::span<const std::byte>> decode_codes(const FrameView& frame,
                                                      std::span<const std::byte> coded, std::size_t bytes) {
  std::span<const std::byte> codes = coded;
  if (frame.spec.entropy != Entropy::None) {
    const auto scratch = thread_scratch(ScratchUse::Codes, bytes);
    GEOCOMM_RETURN_IF_ERROR(decode_plane(frame.spec.entropy, coded, scratch));
    codes = scratch;
  }
  return codes;
}

core::Status decode_frame(const FrameView& frame, Sink sink, std::byte* dst) {
  const BlockLayout layout = layout_of(frame.spec, frame.dtype, frame.elements);
  if (frame.payload.size() < layout.scale_bytes()) {
    return corrupt_frame("a payload that ends among its scales");
  }
  GEOCOMM_ASSIGN_OR_RETURN(const std::size_t raw_bytes, check_scales(frame, layout));
  const auto behind_scales = frame.payload.subspan(layout.scale_bytes());
  GEOCOMM_ASSIGN_OR_RETURN(const std::size_t coded_bytes,
                           coded_plane_bytes(frame.spec.entropy, behind_scales, layout.plane_bytes()));
  if (behind_scales.size() - coded_bytes != raw_bytes) {
    return corrupt_frame("payload of ", frame.payload.size(), " bytes, its blocks take ",
                         layout.scale_bytes() + coded_bytes + raw_bytes);
  }
  GEOCOMM_ASSIGN_OR_RETURN(const auto codes,
                           decode_codes(frame, behind_scales.first(coded_bytes), layout.plane_bytes()));

  const std::byte* raw = behind_scales.data() + coded_bytes;
  for (std::size_t index = 0; index < layout.blocks(); ++index) {
    const std::size_t length = layout.length(index);
    std::byte* block_dst = dst + layout.first_element(index) * element_bytes(sink);
    const std::uint16_t bits = scale_bits_at(frame, layout, index);
    if (bits == kRawScale) {
      decode_plain(frame.dtype, raw, length, sink, block_dst);
      raw += layout.raw_bytes(length);
    } else {
      block_kernels_for(length).dequantize[block_codec_index(frame.spec.id)][static_cast<std::size_t>(sink)](
          codes.data() + layout.code_offset(index), length, core::bfloat16_to_float(bits), block_dst);
    }
  }
  return core::Status::ok();
}

}  // namespace

const PayloadCodec kBlockCodec{bound_of, usual_bound_of, encode_frame, possible_sizes, decode_frame};

}  // namespace geocomm::codec
