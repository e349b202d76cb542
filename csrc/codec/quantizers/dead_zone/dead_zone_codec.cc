// DeadZone and BitPlanes. Payload: the steps of all blocks | the plane of the bitmap | the codes that are not
// zero, as a plane or as planes of bits | the elements of the raw blocks. docs/spec/codecs.md has the table.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "codec/entropy/plane.h"
#include "codec/frames/bitmap.h"
#include "codec/frames/payload_codec.h"
#include "codec/frames/thread_scratch.h"
#include "codec/quantizers/block/block_kernels.h"
#include "codec/quantizers/block/block_layout.h"
#include "codec/quantizers/block/block_scale.h"
#include "codec/quantizers/cast/plain_codec.h"
#include "codec/quantizers/dead_zone/bit_planes.h"
#include "codec/quantizers/dead_zone/dead_zone_kernels.h"
#include "core/cpu.h"
#include "core/half.h"

namespace geocomm::codec {
namespace {

using core::Status;

constexpr std::uint16_t kMaxStepBits = 0x7BFF;  // 255/128 * 2^120: any code times it is finite

BlockLayout layout_of(const CodecSpec& spec, core::DType dtype, std::size_t elements) {
  return BlockLayout(spec.id, spec.block, dtype, elements);
}

std::size_t padded(std::size_t elements) {
  return (elements + kDeadZoneUnit - 1) / kDeadZoneUnit * kDeadZoneUnit;
}

// Room for one block: v, and what the frame's last block needs where it ends inside of a kernel's unit.
struct Scratch {
  alignas(64) std::array<std::byte, kMaxBlock * sizeof(float)> values;
  alignas(64) std::array<std::byte, kMaxBlock * sizeof(float)> elements;
  alignas(64) std::array<std::byte, kMaxBlock * sizeof(float)> residual;
};

// `bytes` of `from` and zeros up to `padded_bytes`.
const std::byte* pad_with_zeros(const std::byte* from, std::size_t bytes, std::size_t padded_bytes,
                                std::byte* to) {
  std::memcpy(to, from, bytes);
  std::memset(to + bytes, 0, padded_bytes - bytes);
  return to;
}

// One block of input: v as floats, and where its residual goes.
struct Block {
  const std::byte* values = nullptr;
  std::size_t count = 0;  // padded
  std::int32_t peak = 0;
  std::byte* residual = nullptr;
};

Block load_block(const BlockKernels& kernels, core::DType dtype, const std::byte* src, std::size_t length,
                 const ErrorFeedback& feedback, Scratch& scratch) {
  Block block{nullptr, padded(length), 0, feedback.residual};
  if (block.count != length) {
    const std::size_t size = core::size_of(dtype);
    src = pad_with_zeros(src, length * size, block.count * size, scratch.elements.data());
    if (feedback.is_on()) {
      const std::size_t residual_size = core::size_of(feedback.dtype);
      pad_with_zeros(feedback.residual, length * residual_size, block.count * residual_size,
                     scratch.residual.data());
      block.residual = scratch.residual.data();
    }
  }
  const bool is_as_it_is = dtype == core::DType::Float32 && !feedback.is_on();
  block.values = is_as_it_is ? src : scratch.values.data();
  block.peak = kernels.load[compressible_index(dtype)][static_cast<std::size_t>(residual_kind(feedback))](
      src, block.residual, feedback.decay, block.count, scratch.values.data());
  return block;
}

// The step of a block of `length` finite values, as bf16.
std::uint16_t step_bits(const BlockKernels& kernels, float factor, const Block& block, std::size_t length) {
  const MomentRange range = moment_range(block.peak);
  const float mean = kernels.sum_squares(block.values, block.count, range.down) / static_cast<float>(length);
  const std::uint16_t bits = core::float_to_bfloat16(std::sqrt(mean) * range.up * factor);
  return std::clamp(bits, kMinScaleBits, kMaxStepBits);
}

// Whether the code of the largest value, and so every code, is at most 127.
bool fits(std::int32_t peak, float inverse) {
  return std::bit_cast<float>(peak) * inverse - 0.1f < 127.5f;
}

std::size_t codes_bound(const CodecSpec& spec, std::size_t codes) {
  return spec.id == CodecId::BitPlanes ? bit_planes_bound(spec.entropy, codes)
                                       : plane_bound(spec.entropy, codes);
}

// The 64 bytes behind `codes` may be written as well.
std::size_t encode_codes(const CodecSpec& spec, std::span<std::byte> codes, std::byte* dst) {
  return spec.id == CodecId::BitPlanes ? encode_bit_planes(spec.entropy, codes, dst)
                                       : encode_plane(spec.entropy, codes, dst);
}

// Off the front of `coded`.
Status take_codes(const CodecSpec& spec, std::span<const std::byte>& coded, std::span<std::byte> codes) {
  return spec.id == CodecId::BitPlanes ? take_bit_planes(spec.entropy, coded, codes)
                                       : take_plane(spec.entropy, coded, codes);
}

std::size_t usual_bound_of(const CodecSpec& spec, core::DType dtype, std::size_t elements) {
  return layout_of(spec, dtype, elements).scale_bytes() + plane_bound(spec.entropy, bitmap_bytes(elements)) +
         codes_bound(spec, elements);
}

std::size_t bound_of(const CodecSpec& spec, core::DType dtype, std::size_t elements) {
  return usual_bound_of(spec, dtype, elements) + elements * core::size_of(dtype);
}

std::size_t encode_frame(const FrameInput& input, std::byte* dst) {
  if (input.elements == 0) return 0;
  const BlockKernels& blocks = core::at_cpu_level<BlockKernels>();
  const BlockLayout layout = layout_of(input.spec, input.dtype, input.elements);
  const ErrorFeedback& feedback = input.options.feedback;
  const auto quantize =
      core::at_cpu_level<DeadZoneKernels>().quantize[static_cast<std::size_t>(residual_kind(feedback))];
  const auto bitmap = thread_scratch(ScratchUse::Bitmap, bitmap_bytes(input.elements));
  const auto codes = thread_scratch(ScratchUse::Values, input.elements);
  Scratch scratch;
  std::size_t code_count = 0;
  bool any_raw = false;
  for (std::size_t index = 0; index < layout.blocks(); ++index) {
    const std::size_t first = layout.first_element(index);
    const std::size_t length = layout.length(index);
    const ErrorFeedback part = feedback.part(first, length);
    const Block block =
        load_block(blocks, input.dtype, input.src + layout.raw_bytes(first), length, part, scratch);
    std::uint16_t bits = kRawScale;
    DeadZoneStep step;
    if (block.peak < static_cast<std::int32_t>(core::kFloatInfBits)) {
      const std::uint16_t own = step_bits(blocks, input.spec.step, block, length);
      step.step = core::bfloat16_to_float(own);
      step.inverse = 1.0f / step.step;
      if (fits(block.peak, step.inverse)) bits = own;
    }
    if (bits == kRawScale) {
      any_raw = true;
      std::memset(bitmap.data() + first / 8, 0, bitmap_bytes(length));
    } else {
      code_count += quantize(block.values, block.count, step, block.residual, bitmap.data() + first / 8,
                             codes.data() + code_count);
      if (part.is_on() && block.count != length) {
        std::memcpy(part.residual, block.residual, length * core::size_of(part.dtype));
      }
    }
    std::memcpy(dst + layout.scale_offset(index), &bits, sizeof(bits));
  }
  std::size_t end = layout.scale_bytes();
  end += encode_plane(input.spec.entropy, bitmap, dst + end);
  end += encode_codes(input.spec, codes.first(code_count), dst + end);
  for (std::size_t index = 0; any_raw && index < layout.blocks(); ++index) {
    if (load_unaligned<std::uint16_t>(dst + layout.scale_offset(index)) != kRawScale) continue;
    const std::size_t first = layout.first_element(index);
    const std::size_t length = layout.length(index);
    encode_plain(input.dtype, input.src + layout.raw_bytes(first), length, feedback.part(first, length),
                 dst + end);
    end += layout.raw_bytes(length);
  }
  return end;
}

SizeRange possible_sizes(const CodecSpec& spec, core::DType dtype, std::size_t elements) {
  if (elements == 0) return {0, 0};
  return {layout_of(spec, dtype, elements).scale_bytes() + 1, bound_of(spec, dtype, elements)};
}

// The steps are in range, and raw blocks have no bits set; returns the raw elements' count.
core::Result<std::size_t> check_blocks(const BlockLayout& layout, const FrameView& frame,
                                       std::span<const std::byte> bitmap) {
  std::size_t raw_elements = 0;
  for (std::size_t index = 0; index < layout.blocks(); ++index) {
    const auto bits = load_unaligned<std::uint16_t>(frame.payload.data() + layout.scale_offset(index));
    const std::size_t length = layout.length(index);
    if (bits == kRawScale) {
      if (count_bits(bitmap.subspan(layout.first_element(index) / 8, bitmap_bytes(length))) != 0) {
        return corrupt_frame("raw block ", index, " has codes as well");
      }
      raw_elements += length;
    } else if (bits < kMinScaleBits || bits > kMaxStepBits) {
      return corrupt_frame("step 0x", std::hex, bits, " of block ", std::dec, index, " is out of range");
    }
  }
  return raw_elements;
}

void decode_blocks(const BlockLayout& layout, const FrameView& frame, const std::byte* bitmap,
                   const std::byte* codes, const std::byte* raw, Sink sink, std::byte* dst) {
  const std::size_t size = element_bytes(sink);
  const auto& dequantize = core::at_cpu_level<DeadZoneKernels>().dequantize;
  const auto whole_units = dequantize[static_cast<std::size_t>(sink)];
  // The last one is decoded to a room of its own, and copied.
  const auto last_unit =
      dequantize[static_cast<std::size_t>(sink == Sink::StreamedFloat32 ? Sink::Float32 : sink)];
  for (std::size_t index = 0; index < layout.blocks(); ++index) {
    const std::size_t first = layout.first_element(index);
    const std::size_t length = layout.length(index);
    std::byte* to = dst + first * size;
    const auto bits = load_unaligned<std::uint16_t>(frame.payload.data() + layout.scale_offset(index));
    if (bits == kRawScale) {
      decode_plain(frame.dtype, raw, length, sink, to);
      raw += layout.raw_bytes(length);
      continue;
    }
    const float step = core::bfloat16_to_float(bits);
    const std::size_t whole = length / kDeadZoneUnit * kDeadZoneUnit;
    const std::size_t rest = length - whole;
    codes += whole_units(bitmap + first / 8, codes, whole, step, to);
    if (rest > 0) {
      std::array<std::byte, kDeadZoneUnit * sizeof(float)> unit;
      pad_with_zeros(to + whole * size, rest * size, unit.size(), unit.data());
      codes += last_unit(bitmap + (first + whole) / 8, codes, kDeadZoneUnit, step, unit.data());
      std::memcpy(to + whole * size, unit.data(), rest * size);
    }
  }
}

Status decode_frame(const FrameView& frame, Sink sink, std::byte* dst) {
  if (frame.elements == 0) return Status::ok();
  const BlockLayout layout = layout_of(frame.spec, frame.dtype, frame.elements);

  auto rest = frame.payload.subspan(layout.scale_bytes());
  const auto bitmap = thread_scratch(ScratchUse::Bitmap, bitmap_bytes(frame.elements));
  GEOCOMM_RETURN_IF_ERROR(take_plane(frame.spec.entropy, rest, bitmap));
  if (has_bits_beyond(bitmap, frame.elements)) {
    return corrupt_frame("the bitmap has bits beyond ", frame.elements, " elements");
  }
  std::memset(bitmap.data() + bitmap.size(), 0, kDeadZoneUnit / 8);  // the kernels take whole units
  GEOCOMM_ASSIGN_OR_RETURN(const std::size_t raw_elements, check_blocks(layout, frame, bitmap));

  const auto codes = thread_scratch(ScratchUse::Values, frame.elements).first(count_bits(bitmap));
  GEOCOMM_RETURN_IF_ERROR(take_codes(frame.spec, rest, codes));
  if (rest.size() != layout.raw_bytes(raw_elements)) {
    return corrupt_frame(rest.size(), " bytes after the planes, the raw blocks take ",
                         layout.raw_bytes(raw_elements));
  }
  decode_blocks(layout, frame, bitmap.data(), codes.data(), rest.data(), sink, dst);
  return Status::ok();
}

}  // namespace

const PayloadCodec kDeadZoneCodec{bound_of, usual_bound_of, encode_frame, possible_sizes, decode_frame};

}  // namespace geocomm::codec
