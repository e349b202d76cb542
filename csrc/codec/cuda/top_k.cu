// The values of TopK to their form: a warp per block of values, lane u with the values 4 u .. + 3
// of each of its two rows (block_place.cuh has the same). The residual keeps what is lost.
#include "codec/cuda/block_coders.cuh"
#include "codec/cuda/block_place.cuh"
#include "codec/cuda/loco.cuh"
#include "codec/cuda/sections.cuh"
#include "codec/cuda/stages.h"
#include "codec/quantizers/select/top_k_select.h"

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

// By a block of threads per frame: the names of the sections; and what raw blocks carry, one after the other,
// of which all but the last have kValueBlock values.
__global__ void __launch_bounds__(kBlockThreads) finish_frames(TopKEncode args) {
  const std::uint32_t frame = blockIdx.x;
  const SectionSpace& sections = args.space.sections;
  const ChosenFrame& chosen = args.space.frames[frame];
  const std::uint32_t count = chosen.head.count;
  const std::uint32_t blocks = has_value_blocks(args.form) ? (count + kValueBlock - 1) / kValueBlock : 0;
  const float* const values = args.space.values + args.space.first_value(frame);
  if (threadIdx.x == 0) {
    sections.section(frame, TopKSection::Head) = {reinterpret_cast<const std::uint8_t*>(&chosen.head),
                                                  sizeof(TopKHead), 0, 0, 0};
    sections.name(frame, TopKSection::Index, chosen.head.index_bytes);
    sections.name(frame, TopKSection::Scales, blocks * scale_bytes(args.form));
    sections.name(frame, TopKSection::Packed, packed_bytes(args.form, count));
    if (args.form == Values::Fp32) {
      sections.section(frame, TopKSection::Packed).content = reinterpret_cast<const std::uint8_t*>(values);
    }
    sections.name(frame, TopKSection::Plane, args.form == Values::Int8 ? count : 0);
    sections.name(frame, TopKSection::Raw, chosen.raw_values * static_cast<std::uint32_t>(sizeof(float)));
    name_planes(sections, frame, false);
  }
  if (chosen.raw_values == 0) return;
  const std::uint8_t* scales = sections.content(frame, TopKSection::Scales);
  const std::uint32_t stride = scale_bytes(args.form);
  auto* const raw = reinterpret_cast<float*>(sections.content(frame, TopKSection::Raw));
  for_raw_blocks(
      blocks, [=](std::uint32_t index) { return load_u16(scales + index * stride) == kRawScale; },
      [=](std::uint32_t index, std::uint32_t before) {
        const std::uint32_t begin = index * kValueBlock;
        float* const to = raw + std::uint64_t{before} * kValueBlock;
        for (std::uint32_t i = threadIdx.x % kWarp; i < kValueBlock && begin + i < count; i += kWarp) {
          to[i] = values[begin + i];
        }
      });
}

template <typename Form>
core::Status code_as(const TopKEncode& args, Stream stream) {
  const std::uint64_t warps = std::uint64_t{args.plan.frames} * args.space.blocks_per_frame;
  const Grid grid = grid_of_warps(warps);
  if constexpr (std::is_same_v<Form, Fp32Values>) {
    if (args.residual.data == nullptr) return core::Status::ok();
  }
  return launch(code<Form>, grid, stream, args);
}

// Scales, codes and raw blocks of the values; the residual keeps what they lose. All sections are then there.
core::Status code_values(const TopKEncode& args, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(with_form(args.form, [&]<typename Form>() { return code_as<Form>(args, stream); }));
  return launch(finish_frames, Grid{args.plan.frames, kBlockThreads}, stream, args);
}

// Chunks choose, places become an index, values take their form; each part of that is a section of the frame.
// Received ones go the other way: all is checked, then zeros are put where nothing was chosen, and the values
// to their places.

SectionShape encoding_shape(const CodecSpec& spec, const PayloadPlan& plan) {
  const std::size_t limit = frame_limit(spec, plan.largest().elements);
  const auto count = static_cast<std::uint32_t>(limit);
  SectionShape shape;
  shape.count = TopKSection::Count;
  shape.planes = 1u << TopKSection::Index | (spec.values == Values::Int8 ? 1u << TopKSection::Plane : 0u);
  shape.bytes[TopKSection::Index] =
      static_cast<std::uint32_t>(max_index_bytes(limit, plan.largest().elements));
  // Floats lie in the workspace already.
  if (spec.values != Values::Fp32) shape.bytes[TopKSection::Packed] = packed_bytes(spec.values, count);
  if (spec.values == Values::Int8) shape.bytes[TopKSection::Plane] = count;
  if (has_value_blocks(spec.values)) {
    shape.bytes[TopKSection::Scales] = parts_of(limit, kValueBlock) * scale_bytes(spec.values);
    shape.bytes[TopKSection::Raw] = 4 * count;
  }
  return shape;
}

// A sender may have chosen all elements of a frame, and has not said beforehand in which form.
SectionShape decoding_shape(const PayloadPlan& plan) {
  SectionShape shape;
  shape.count = TopKSection::Count;
  shape.planes = 1u << TopKSection::Index | 1u << TopKSection::Plane;
  shape.bytes[TopKSection::Index] =
      static_cast<std::uint32_t>(max_index_bytes(plan.largest().elements, plan.largest().elements));
  shape.bytes[TopKSection::Plane] = plan.largest().elements;
  shape.is_received = true;
  return shape;
}

TopKEncodeSpace take_encoding(const CodecSpec& spec, const PayloadPlan& plan, SpaceCutter& room) {
  TopKEncodeSpace space{};
  const std::size_t limit = frame_limit(spec, plan.largest().elements);
  space.chunks_per_frame = parts_of(plan.largest().elements, kTopKChunk);
  space.chunk_limit = static_cast<std::uint32_t>(chunk_limit(spec));
  space.values_per_frame = static_cast<std::uint32_t>(SpaceCutter::aligned(limit));
  space.blocks_per_frame = parts_of(limit, kValueBlock);
  const std::uint64_t values = std::uint64_t{plan.frames} * space.values_per_frame;
  space.chunks = room.take<ChunkRecord>(std::uint64_t{plan.frames} * space.chunks_per_frame);
  space.frames = room.take<ChosenFrame>(plan.frames);
  space.values = room.take<float>(values);
  space.places = room.take<std::uint32_t>(values);
  space.sections = take_section_space(encoding_shape(spec, plan), plan, true, room);
  return space;
}

TopKDecodeSpace take_decoding(const PayloadPlan& plan, SpaceCutter& room) {
  TopKDecodeSpace space{};
  const SectionShape shape = decoding_shape(plan);
  space.tiles_per_frame = parts_of(shape.bytes[TopKSection::Index], kIndexTile);
  space.blocks_per_frame = parts_of(plan.largest().elements, kValueBlock);
  space.heads = room.take<TopKHead>(plan.frames);
  space.tiles = room.take<IndexTile>(std::uint64_t{plan.frames} * space.tiles_per_frame);
  space.raw_before = room.take<std::uint32_t>(std::uint64_t{plan.frames} * space.blocks_per_frame);
  space.sections = take_section_space(shape, plan, true, room);
  return space;
}

void take_room(const CodecSpec& spec, core::DType, const PayloadPlan& plan, Direction direction,
               SpaceCutter& room) {
  if (direction == Direction::Encode) {
    take_encoding(spec, plan, room);
  } else {
    take_decoding(plan, room);
  }
}

core::Status encode(const EncodeRun& run) {
  const ElementEncode& input = run.input;
  SpaceCutter room(input.workspace.room);
  const TopKEncodeSpace space = take_encoding(run.spec, input.plan, room);
  const TopKEncode args{input.src, input.residual, input.plan, space, run.spec.values};
  GEOCOMM_RETURN_IF_ERROR(choose_elements(run.dtype, args, run.stream));
  GEOCOMM_RETURN_IF_ERROR(write_places(args, run.stream));
  GEOCOMM_RETURN_IF_ERROR(code_values(args, run.stream));
  return place_sections(run, space.sections, PlainFrames::None);
}

core::Status check(const DecodeRun& run) {
  SpaceCutter room(run.args.workspace.room);
  const TopKDecodeSpace space = take_decoding(run.args.plan, room);
  const TopKDecode args{run.args, space};
  GEOCOMM_RETURN_IF_ERROR(expect_heads(args, run.stream));
  GEOCOMM_RETURN_IF_ERROR(read_heads(args, run.stream));
  GEOCOMM_RETURN_IF_ERROR(decode_sections(run, space.sections, TopKSection::Index, TopKSection::Raw));
  GEOCOMM_RETURN_IF_ERROR(check_scales(args, run.stream));
  return check_places(args, run.stream);
}

core::Status put(const DecodeRun& run) {
  SpaceCutter room(run.args.workspace.room);
  return put_chosen({run.part(), take_decoding(run.args.plan, room)}, run.stream);
}

}  // namespace

const CodecFamily kTopKFamily{false, true, take_room, encode, check, put};

}  // namespace geocomm::codec::cuda
