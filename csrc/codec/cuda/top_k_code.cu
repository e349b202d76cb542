// The values of chosen elements to their form: a warp per block of values, lane u with the values 4 u .. + 3
// of each of its two rows (block_place.cuh has the same). The residual keeps what is lost.
#include "codec/cuda/block_coders.cuh"
#include "codec/cuda/block_place.cuh"
#include "codec/cuda/top_k_stages.h"

namespace geocomm::codec::cuda {
namespace {

constexpr unsigned kRows = kValueBlock / kRow;

struct ValueBlock {
  std::uint32_t frame;
  std::uint32_t index;
  std::uint32_t length;
  std::uint64_t first;  // in the space's values

  __device__ __forceinline__ unsigned offset(unsigned row) const {
    return row * kRow + 4 * (threadIdx.x % kWarp);
  }
  __device__ __forceinline__ unsigned count(unsigned row) const {
    const unsigned at = offset(row);
    return at >= length ? 0 : length - at < 4 ? length - at : 4;
  }
};

// False for the whole warp: there is no such block.
__device__ bool find_values(const TopKEncode& args, ValueBlock& block) {
  const std::uint64_t warp = std::uint64_t{blockIdx.x} * kBlockWarps + threadIdx.x / kWarp;
  block.frame = static_cast<std::uint32_t>(warp / args.space.blocks_per_frame);
  if (block.frame >= args.plan.frames) return false;
  block.index = static_cast<std::uint32_t>(warp % args.space.blocks_per_frame);
  const std::uint32_t count = args.space.frames[block.frame].head.count;
  const std::uint32_t begin = block.index * kValueBlock;
  if (begin >= count) return false;
  block.length = count - begin < kValueBlock ? count - begin : kValueBlock;
  block.first = args.space.first_value(block.frame) + begin;
  return true;
}

using Rows = Quad[kRows];

__device__ std::uint32_t peak_of(const Rows& values) {
  std::uint32_t peak = 0;
#pragma unroll
  for (unsigned row = 0; row < kRows; ++row) {
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      const std::uint32_t magnitude = __float_as_uint(values[row].v[c]) & kMagnitude;
      peak = magnitude > peak ? magnitude : peak;
    }
  }
  return __reduce_max_sync(kFullMask, peak);
}

// Each form encodes a block, all of its values finite, and leaves in `decoded` what it decodes to.

struct Int8Values {
  static constexpr bool kHasBlocks = true;
  static constexpr unsigned kScaleBytes = 2;
  static constexpr std::uint32_t kCodes = TopKSection::Plane;
  static constexpr unsigned kCodesPerByte = 1;
  using Coder = IntCoder<CodecId::Int8>;

  static __device__ std::uint32_t encode(const Rows& values, const ValueBlock&, std::uint32_t peak,
                                         std::uint32_t (&codes)[kRows], Rows& decoded) {
    const Scale scale = Coder::scale_of_peak(peak);
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      codes[row] = Coder::codes(values[row], scale);
      decoded[row] = Coder::decoded(codes[row], scale);
    }
    return scale.bits;
  }
};

// As top_k_two_level.cc.
struct Bit2Values {
  static constexpr bool kHasBlocks = true;
  static constexpr unsigned kScaleBytes = 4;
  static constexpr std::uint32_t kCodes = TopKSection::Packed;
  static constexpr unsigned kCodesPerByte = 4;

  // The sum whose order no machine can choose: 128 partial sums, folded by halves.
  static __device__ float sum_of(const Rows& terms) {
    Quad sums;
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) sums.v[c] = __fadd_rn(terms[0].v[c], terms[1].v[c]);
    return fold(sums, kWarp);
  }
  static __device__ std::uint32_t level_of(const Rows& part, std::uint32_t members, float up) {
    const float sum = sum_of(part);
    if (members == 0) return 0;
    const float level = __fmul_rn(__fdiv_rn(sum, static_cast<float>(members)), up);
    return narrow_saturated<core::DType::BFloat16>(level);
  }

  static __device__ std::uint32_t encode(const Rows& values, const ValueBlock& block, std::uint32_t peak,
                                         std::uint32_t (&codes)[kRows], Rows& decoded) {
    // In units of the peak's power of two, so that nothing overflows.
    const std::uint32_t bits = peak >> 23;
    const std::uint32_t exponent = bits < 1 ? 1 : bits > 253 ? 253 : bits;
    const float down = __uint_as_float((254 - exponent) << 23);
    const float up = __uint_as_float(exponent << 23);
    Rows scaled;
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) {
        const std::uint32_t magnitude = __float_as_uint(values[row].v[c]) & kMagnitude;
        scaled[row].v[c] = __fmul_rn(__uint_as_float(magnitude), down);
      }
    }
    const float mean = __fdiv_rn(sum_of(scaled), static_cast<float>(block.length));
    Rows low;
    Rows high;
    std::uint32_t above = 0;
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      codes[row] = 0;
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) {
        const bool is_there = c < block.count(row);
        const bool is_high = is_there && scaled[row].v[c] >= mean;
        high[row].v[c] = is_high ? scaled[row].v[c] : 0.0f;
        low[row].v[c] = is_high ? 0.0f : scaled[row].v[c];
        above += is_high ? 1 : 0;
        const std::uint32_t negative = __float_as_uint(values[row].v[c]) >> 31;
        if (is_there) codes[row] |= ((is_high ? 1u : 0u) | negative << 1) << 2 * c;
      }
    }
    above = __reduce_add_sync(kFullMask, above);
    const std::uint32_t low_level = level_of(low, block.length - above, up);
    const std::uint32_t high_level = level_of(high, above, up);
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) {
        const std::uint32_t code = codes[row] >> 2 * c;
        const std::uint32_t level = (code & 1) != 0 ? high_level : low_level;
        decoded[row].v[c] = __uint_as_float(level << 16 | (code >> 1 & 1) << 31);
      }
    }
    return low_level | high_level << 16;
  }
};

struct Bf16Values {
  static constexpr bool kHasBlocks = false;
};
struct Fp32Values {
  static constexpr bool kHasBlocks = false;
};

template <typename Run>
decltype(auto) with_form(Values form, Run&& run) {
  switch (form) {
    case Values::Bf16:
      return run.template operator()<Bf16Values>();
    case Values::Int8:
      return run.template operator()<Int8Values>();
    case Values::Bit2:
      return run.template operator()<Bit2Values>();
    case Values::Fp32:
      break;
  }
  return run.template operator()<Fp32Values>();
}

// To the element that it was taken from.
__device__ void keep_lost(const TopKEncode& args, const ValueBlock& block, const Rows& values,
                          const Rows& decoded) {
#pragma unroll
  for (unsigned row = 0; row < kRows; ++row) {
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      if (c >= block.count(row)) continue;
      const float value = values[row].v[c];
      const float lost = is_finite(value) ? __fsub_rn(value, decoded[row].v[c]) : 0.0f;
      const std::uint64_t element =
          block.frame * args.plan.frame_elements + args.space.places[block.first + block.offset(row) + c];
      if (args.residual.is_bfloat16) {
        *reinterpret_cast<std::uint16_t*>(args.residual.at(element)) =
            narrow_saturated<core::DType::BFloat16>(lost);
      } else {
        *reinterpret_cast<float*>(args.residual.at(element)) = lost;
      }
    }
  }
}

template <typename Form>
__global__ void __launch_bounds__(kBlockThreads) code(TopKEncode args) {
  ValueBlock block;
  if (!find_values(args, block)) return;
  Rows values;
  Rows decoded;
#pragma unroll
  for (unsigned row = 0; row < kRows; ++row) {
    const auto* from =
        reinterpret_cast<const std::uint8_t*>(args.space.values + block.first + block.offset(row));
    values[row] = load_quad<core::DType::Float32>(from, block.count(row), true);
    decoded[row] = values[row];
  }
  if constexpr (Form::kHasBlocks) {
    const std::uint32_t peak = peak_of(values);
    const bool is_raw = peak >= kInfBits;
    std::uint32_t codes[kRows] = {};
    std::uint32_t scale = kRawScale;
    if (!is_raw) scale = Form::encode(values, block, peak, codes, decoded);
    std::uint8_t* scales =
        args.space.sections.content(block.frame, TopKSection::Scales) + block.index * Form::kScaleBytes;
    if (threadIdx.x % kWarp == 0) {
      if constexpr (Form::kScaleBytes == 2) {
        *reinterpret_cast<std::uint16_t*>(scales) = static_cast<std::uint16_t>(scale);
      } else {
        *reinterpret_cast<std::uint32_t*>(scales) = scale;
      }
      if (is_raw) atomicAdd(&args.space.frames[block.frame].raw_values, block.length);
    }
    std::uint8_t* to = args.space.sections.content(block.frame, Form::kCodes) +
                       block.index * (kValueBlock / Form::kCodesPerByte);
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      if (block.count(row) == 0) continue;
      if constexpr (Form::kCodesPerByte == 4) {
        to[block.offset(row) / 4] = static_cast<std::uint8_t>(codes[row]);
      } else {
        *reinterpret_cast<std::uint32_t*>(to + block.offset(row)) = codes[row];
      }
    }
  } else if constexpr (std::is_same_v<Form, Bf16Values>) {
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      std::uint8_t* to = args.space.sections.content(block.frame, TopKSection::Packed) +
                         2 * (block.index * kValueBlock + block.offset(row));
      store_quad<core::DType::BFloat16>(to, values[row], block.count(row), true);
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) {
        decoded[row].v[c] = bfloat16_bits_to_float(narrow_saturated<core::DType::BFloat16>(values[row].v[c]));
      }
    }
  }
  if (args.residual.data != nullptr) keep_lost(args, block, values, decoded);
}

// What raw blocks carry, one after the other: all but the last have kValueBlock values.
template <typename Form>
__global__ void __launch_bounds__(kBlockThreads) copy_raw(TopKEncode args) {
  ValueBlock block;
  if (!find_values(args, block)) return;
  if (args.space.frames[block.frame].raw_values == 0) return;
  const std::uint8_t* scales = args.space.sections.content(block.frame, TopKSection::Scales);
  if (load_u16(scales + block.index * Form::kScaleBytes) != kRawScale) return;
  std::uint32_t before = 0;
  for (std::uint32_t i = threadIdx.x % kWarp; i < block.index; i += kWarp) {
    before += load_u16(scales + i * Form::kScaleBytes) == kRawScale ? 1 : 0;
  }
  before = __reduce_add_sync(kFullMask, before);
  auto* to = reinterpret_cast<float*>(args.space.sections.content(block.frame, TopKSection::Raw)) +
             std::uint64_t{before} * kValueBlock;
  for (std::uint32_t i = threadIdx.x % kWarp; i < block.length; i += kWarp) {
    to[i] = args.space.values[block.first + i];
  }
}

// A thread per frame.
__global__ void __launch_bounds__(kBlockThreads) name_sections(TopKEncode args) {
  const std::uint32_t frame = blockIdx.x * kBlockThreads + threadIdx.x;
  if (frame >= args.plan.frames) return;
  const SectionSpace& sections = args.space.sections;
  ChosenFrame& chosen = args.space.frames[frame];
  const std::uint32_t count = chosen.head.count;
  const std::uint32_t blocks = has_value_blocks(args.form) ? (count + kValueBlock - 1) / kValueBlock : 0;
  const auto name = [&](std::uint32_t section, const void* content, std::uint32_t bytes) {
    sections.section(frame, section) = {static_cast<const std::uint8_t*>(content), bytes, 0, 0, 0};
  };
  const auto own = [&](std::uint32_t section, std::uint32_t bytes) {
    name(section, sections.content(frame, section), bytes);
  };
  name(TopKSection::Head, &chosen.head, sizeof(TopKHead));
  own(TopKSection::Index, chosen.head.index_bytes);
  own(TopKSection::Scales, blocks * scale_bytes(args.form));
  if (args.form == Values::Fp32) {
    name(TopKSection::Packed, args.space.values + args.space.first_value(frame),
         packed_bytes(args.form, count));
  } else {
    own(TopKSection::Packed, packed_bytes(args.form, count));
  }
  own(TopKSection::Plane, args.form == Values::Int8 ? count : 0);
  own(TopKSection::Raw, chosen.raw_values * static_cast<std::uint32_t>(sizeof(float)));
}

template <typename Form>
core::Status code_as(const TopKEncode& args, Stream stream) {
  const std::uint64_t warps = std::uint64_t{args.plan.frames} * args.space.blocks_per_frame;
  const Grid grid{(warps + kBlockWarps - 1) / kBlockWarps, kBlockThreads};
  if constexpr (std::is_same_v<Form, Fp32Values>) {
    if (args.residual.data == nullptr) return core::Status::ok();
  }
  GEOCOMM_RETURN_IF_ERROR(launch(code<Form>, grid, stream, args));
  if constexpr (Form::kHasBlocks) return launch(copy_raw<Form>, grid, stream, args);
  return core::Status::ok();
}

}  // namespace

core::Status code_values(const TopKEncode& args, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(with_form(args.form, [&]<typename Form>() { return code_as<Form>(args, stream); }));
  const Grid grid{(std::uint64_t{args.plan.frames} + kBlockThreads - 1) / kBlockThreads, kBlockThreads};
  return launch(name_sections, grid, stream, args);
}

}  // namespace geocomm::codec::cuda
