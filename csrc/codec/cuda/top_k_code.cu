// The values of chosen elements to their form: a warp per block of values, lane u with the values 4 u .. + 3
// of each of its two rows (block_place.cuh has the same). The residual keeps what is lost.
#include "codec/cuda/block_coders.cuh"
#include "codec/cuda/block_place.cuh"
#include "codec/cuda/loco.cuh"
#include "codec/cuda/sections.cuh"
#include "codec/cuda/stages.h"

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
  __device__ __forceinline__ unsigned count(unsigned row) const { return four_from(offset(row), length); }
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
  for (unsigned row = 0; row < kRows; ++row) peak = peak_with(peak, values[row]);
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

  static __device__ std::uint32_t encode(const Rows& values, const ValueBlock& block, std::uint32_t peak,
                                         std::uint32_t (&codes)[kRows], Rows& decoded) {
    const auto for_quads = [&](auto&& run) {
#pragma unroll
      for (unsigned row = 0; row < kRows; ++row) run(values[row], block.count(row));
    };
    const LevelRule rule = find_rule<true>(for_quads, block.length, peak);
    const Levels levels = find_levels(for_quads, block.length, rule);
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      codes[row] = 0;
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) {
        const std::uint32_t code = c < block.count(row) ? rule.code_of(values[row].v[c]) : 0;
        codes[row] |= code << 2 * c;
        decoded[row].v[c] = levels.value(code);
      }
    }
    return levels.low | levels.high << 16;
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
  const ResidualView residual = args.plan.residual_of(args.residual, block.frame);
#pragma unroll
  for (unsigned row = 0; row < kRows; ++row) {
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      if (c >= block.count(row)) continue;
      const float value = values[row].v[c];
      const float lost = is_finite(value) ? __fsub_rn(value, decoded[row].v[c]) : 0.0f;
      store_residual(residual, args.space.places[block.first + block.offset(row) + c], lost);
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
  const std::uint32_t before = raw_blocks_before(scales, block.index, Form::kScaleBytes);
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
  sections.section(frame, TopKSection::Head) = {reinterpret_cast<const std::uint8_t*>(&chosen.head),
                                                sizeof(TopKHead), 0, 0, 0};
  sections.name(frame, TopKSection::Index, chosen.head.index_bytes);
  sections.name(frame, TopKSection::Scales, blocks * scale_bytes(args.form));
  sections.name(frame, TopKSection::Packed, packed_bytes(args.form, count));
  if (args.form == Values::Fp32) {
    const float* values = args.space.values + args.space.first_value(frame);
    sections.section(frame, TopKSection::Packed).content = reinterpret_cast<const std::uint8_t*>(values);
  }
  sections.name(frame, TopKSection::Plane, args.form == Values::Int8 ? count : 0);
  sections.name(frame, TopKSection::Raw, chosen.raw_values * static_cast<std::uint32_t>(sizeof(float)));
  name_planes(sections, frame, false);
}

template <typename Form>
core::Status code_as(const TopKEncode& args, Stream stream) {
  const std::uint64_t warps = std::uint64_t{args.plan.frames} * args.space.blocks_per_frame;
  const Grid grid = grid_of_warps(warps);
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
  return launch(name_sections, one_thread_each(args.plan.frames, kBlockThreads), stream, args);
}

}  // namespace geocomm::codec::cuda
