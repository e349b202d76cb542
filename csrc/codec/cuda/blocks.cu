// Int8, Int4, Bit2, Bit1: blocks to frames, what raw blocks carry, and the way to and from the Huffman stage.
// block_decode.cu has the way back to elements.
#include <cstdint>

#include "codec/cuda/block_coders.cuh"
#include "codec/cuda/block_place.cuh"
#include "codec/cuda/codec_family.h"
#include "codec/cuda/device.h"
#include "codec/cuda/huffman.cuh"
#include "codec/cuda/verdict.h"

namespace geocomm::codec::cuda {

struct BlockEncode : ElementEncode {
  std::uint64_t seed;
  std::uint64_t first_element;
  bool is_stochastic;
  std::uint8_t* staged = nullptr;  // where a stage is to have them, in the regular layout

  GEOCOMM_HOST_DEVICE std::uint8_t* quantized(std::uint64_t frame) const {
    return staged != nullptr ? staged + frame * plan.frame_stride : regular(frame);
  }

  GEOCOMM_HOST_DEVICE std::uint64_t seed_of(std::uint64_t frame) const {
    return plan.slots != nullptr ? plan.slots[frame].seed : seed;
  }
  // What the frame's first element is counted as.
  GEOCOMM_HOST_DEVICE std::uint64_t counter_of(std::uint64_t frame) const {
    return plan.slots != nullptr ? plan.slots[frame].first_element
                                 : first_element + frame * plan.frame_elements;
  }
};

// Quantizes blocks to where they lie if no block of the payload is raw. A raw block gets its scale and codes
// of zero, is counted, and its residual stays as it is: what it carries is written later
// (write_raw_blocks()), when the layout is known.

// The 64 random bits of the elements [element, element + 4).
__device__ __forceinline__ uint2 random_bits(std::uint64_t element, std::uint64_t seed) {
  if (element % 4 == 0) {
    const RandomWords words = philox(element / 8, seed);
    return element / 4 % 2 == 0 ? uint2{words.w[0], words.w[1]} : uint2{words.w[2], words.w[3]};
  }
  uint2 random = {0, 0};
#pragma unroll 1
  for (unsigned c = 0; c < 4; ++c) {
    const RandomWords words = philox((element + c) / 8, seed);
    const unsigned index = (element + c) % 8;
    const std::uint32_t low = index < 2 ? words.w[0] : words.w[1];
    const std::uint32_t high = index < 6 ? words.w[2] : words.w[3];
    const std::uint32_t bits = (index < 4 ? low : high) >> (index % 2 * 16) & 0xFFFFu;
    (c < 2 ? random.x : random.y) |= bits << (c % 2 * 16);
  }
  return random;
}

// The same for two rows of a block of 256, which begins at a multiple of 8: lanes come in pairs that need the
// same words, so each makes those of one row, and they exchange halves.
__device__ __forceinline__ void random_bits_of_rows(std::uint64_t element, std::uint64_t seed,
                                                    uint2 (&rows)[2]) {
  const bool is_odd = element / 4 % 2 != 0;
  const RandomWords words = philox((is_odd ? element + kRow : element) / 8, seed);
  const uint2 low{words.w[0], words.w[1]};
  const uint2 high{words.w[2], words.w[3]};
  const uint2 given = is_odd ? low : high;
  const uint2 got{__shfl_xor_sync(kFullMask, given.x, 1), __shfl_xor_sync(kFullMask, given.y, 1)};
  rows[0] = is_odd ? got : low;
  rows[1] = is_odd ? high : got;
}

// So many blocks fit on a multiprocessor that 40 warps have their loads under way.
inline constexpr int kBlocksAtOnce = 5;

// kHeld: blocks of at most 256 elements, whose values stay in registers between the passes over a block.
// Those of larger ones are loaded again, from the caches.
template <typename Coder, core::DType kType, bool kFeedback, bool kHeld>
__global__ void __launch_bounds__(kBlockThreads, kBlocksAtOnce) encode_blocks(BlockEncode args) {
  constexpr unsigned kMostRows = kHeld ? 2 : 1;
  constexpr unsigned kStaged = kHeld ? 2 * kRow + 2 * kStagedPad : kMaxBlock + kStagedPad;
  __shared__ __align__(16) std::uint8_t staged_of_warps[kBlockWarps][kStaged];

  BlockPlace place;
  const std::uint64_t warp = std::uint64_t{blockIdx.x} * kBlockWarps + threadIdx.x / kWarp;
  if (!find_block(args.plan, warp, place)) return;
  const unsigned pitch = args.plan.block + kStagedPad;
  std::uint8_t* staged = staged_of_warps[threadIdx.x / kWarp] + threadIdx.x % kWarp / place.lanes * pitch;

  // Behind the end of a frame of a batch.
  if (__shfl_sync(kFullMask, place.length, 0) == 0) return;
  const std::uint8_t* src = args.elements(place.frame);

  Quad held[kMostRows];
  const auto load = [&](unsigned row) {
    return load_values<kType, kFeedback>(src, args.residual_of(place.frame), place.begin + place.offset(row),
                                         place.count(row));
  };
  if constexpr (kHeld) {
#pragma unroll
    for (unsigned row = 0; row < kMostRows; ++row) {
      if (row < place.rows) held[row] = load(row);
    }
  }
  const auto for_rows = [&](auto&& body) {
    if constexpr (kHeld) {
#pragma unroll
      for (unsigned row = 0; row < kMostRows; ++row) {
        if (row < place.rows) body(row, held[row]);
      }
    } else {
      for (unsigned row = 0; row < place.rows; ++row) body(row, load(row));
    }
  };

  std::uint32_t peak = 0;
  for_rows([&](unsigned, const Quad& values) { peak = peak_with(peak, values); });
  peak = reduce_lanes(peak, place.lanes, [](std::uint32_t a, std::uint32_t b) { return a > b ? a : b; });
  const bool is_raw = peak >= kInfBits;

  Scale scale;
  if constexpr (Coder::kNeedsSum) {
    Quad sums = {};
    for_rows([&](unsigned, const Quad& values) { Coder::add(values, peak, sums); });
    scale = Coder::scale_of_sum(fold(sums, place.lanes), peak, place.length);
  } else {
    scale = Coder::scale_of_peak(peak);
  }

  [[maybe_unused]] uint2 random_of_rows[2] = {};
  // Asked for where they are needed: in registers they would push others out.
  [[maybe_unused]] const auto counter = [&] { return args.counter_of(place.frame) + place.begin; };
  [[maybe_unused]] const auto seed = [&] { return args.seed_of(place.frame); };
  [[maybe_unused]] const bool has_random =
      kHeld && args.is_stochastic && place.rows == 2 && counter() % 8 == 0;
  if constexpr (Coder::kHasRounding && kHeld) {
    if (has_random) random_bits_of_rows(counter() + place.offset(0), seed(), random_of_rows);
  }
  for_rows([&](unsigned row, const Quad& values) {
    std::uint32_t codes;
    if constexpr (Coder::kHasRounding) {
      if (args.is_stochastic) {
        const uint2 random =
            has_random ? random_of_rows[row % 2] : random_bits(counter() + place.offset(row), seed());
        codes = Coder::codes_stochastic(values, scale, random);
      } else {
        codes = Coder::codes(values, scale);
      }
    } else {
      codes = Coder::codes(values, scale);
    }
    *reinterpret_cast<std::uint32_t*>(staged + place.offset(row)) = codes;
    if constexpr (kFeedback) {
      if (!is_raw) {
        store_residual(args.residual_of(place.frame), place.begin + place.offset(row), values,
                       Coder::decoded(codes, scale), place.count(row));
      }
    }
  });
  if (place.u < kStagedPad / 4) {
    *reinterpret_cast<std::uint32_t*>(staged + args.plan.block + 4 * place.u) = 0;
  }
  __syncwarp();
  if (place.length == 0) return;

  std::uint8_t* payload = args.quantized(place.frame) + sizeof(FrameHeader);
  std::uint8_t* packed = payload + args.plan.extent(place.frame).codes_at +
                         std::uint64_t{place.index} * args.plan.block_code_bytes;
  const unsigned bytes = Coder::packed_bytes(place.length);
  if (bytes % 4 == 0 && is_aligned(packed, 4)) {
    for (unsigned at = 4 * place.u; at < bytes; at += 4 * place.lanes) {
      *reinterpret_cast<std::uint32_t*>(packed + at) = is_raw ? 0u : Coder::pack_word(staged, at, bytes);
    }
  } else {
    for (unsigned at = place.u; at < bytes; at += place.lanes) {
      packed[at] = static_cast<std::uint8_t>(is_raw ? 0u : Coder::pack_byte(staged, at, bytes));
    }
  }
  if (place.u == 0) {
    const std::uint32_t bits = is_raw ? kRawScale : scale.bits;
    payload[2 * place.index] = static_cast<std::uint8_t>(bits);
    payload[2 * place.index + 1] = static_cast<std::uint8_t>(bits >> 8);
    if (is_raw) atomicAdd(&args.workspace.records[place.frame].raw_elements, place.length);
  }
}

template <typename Coder>
core::Status launch_encode_blocks(const BlockEncode& args, core::DType dtype, Stream stream) {
  const Grid grid = grid_of_warps(warps_of(args.plan));
  return with_values(dtype, args.residual, [&]<core::DType kType, bool kFeedback>() {
    return args.plan.block <= 2 * kRow
               ? launch(encode_blocks<Coder, kType, kFeedback, true>, grid, stream, args)
               : launch(encode_blocks<Coder, kType, kFeedback, false>, grid, stream, args);
  });
}

// What raw blocks carry: their elements as they are, one block after the other, behind the codes of the
// frame.

namespace {

// A block of threads per frame. Raw blocks but the last are whole.
template <core::DType kType, bool kFeedback>
__global__ void __launch_bounds__(kBlockThreads) write_raw(BlockEncode args) {
  const std::uint32_t frame = blockIdx.x;
  const FrameRecord& record = args.workspace.records[frame];
  if (record.raw_elements == 0) return;
  const FrameExtent extent = args.plan.extent(frame);
  std::uint8_t* payload = args.placed(frame) + sizeof(FrameHeader);
  const unsigned lane = threadIdx.x % kWarp;
  BlockPlace place{kWarp, lane, args.plan.block < kRow ? 1 : args.plan.block / kRow, 0, 0, frame, 0};
  for_raw_blocks(
      extent.blocks, [payload](std::uint32_t index) { return load_u16(payload + 2 * index) == kRawScale; },
      [&](std::uint32_t index, std::uint32_t before) {
        place.index = index;
        place.length = length_of_block(args.plan, extent, index);
        place.begin = index * args.plan.block;
        const std::uint64_t at =
            record.raw_at + std::uint64_t{before} * args.plan.block * kElementBytes<kType>;
        write_raw_block<kType, kFeedback>(args, place, payload + at);
      });
}

// Where the layout is irregular; with their residuals.
core::Status write_raw_blocks(core::DType dtype, const BlockEncode& args, Stream stream) {
  return with_values(dtype, args.residual, [&]<core::DType kType, bool kFeedback>() {
    return launch(write_raw<kType, kFeedback>, Grid{args.plan.frames, kBlockThreads}, stream, args);
  });
}

// Between the frames of the block codecs and the Huffman stage: a plane per frame, decoded in the regular
// layout in the workspace, coded in the frame.

constexpr unsigned kThreads = 256;

__device__ std::uint8_t* regular_codes(const PayloadPlan& plan, const Workspace& workspace,
                                       std::uint64_t frame) {
  return workspace.room + frame * plan.frame_stride + sizeof(FrameHeader) + plan.extent(frame).codes_at;
}

__global__ void __launch_bounds__(kThreads)
    name_planes(PayloadPlan plan, Workspace workspace, HuffmanSpace space) {
  const std::uint32_t frame = blockIdx.x * kThreads + threadIdx.x;
  if (frame >= plan.frames) return;
  const FrameExtent extent = plan.extent(frame);
  space.planes[frame] = {regular_codes(plan, workspace, frame), nullptr, 0, extent.bytes - extent.codes_at,
                         frame};
}

// A warp per frame: where its plane is, and its heads. Behind a verdict, or in a frame of None, there is
// none.
__global__ void __launch_bounds__(kWarp) find_planes(Decode args, HuffmanSpace space) {
  const std::uint32_t frame = blockIdx.x;
  FrameRecord& record = args.workspace.records[frame];
  HuffmanPlane plane{nullptr, nullptr, 0, 0, frame};
  if (!is_over_for_warp(args.verdict) && record.is_plain == 0) {
    const FrameExtent extent = args.plan.extent(frame);
    plane.from = args.payload_of(frame) + extent.codes_at;
    plane.to = regular_codes(args.plan, args.workspace, frame);
    plane.bytes = extent.bytes - extent.codes_at;
    std::uint32_t coded_bytes = 0;
    const bool sound = read_plane_heads(plane.from, record.payload_bytes - extent.codes_at, plane.bytes,
                                        space.blocks + space.slot(frame, 0), coded_bytes);
    plane.coded_bytes = coded_bytes;
    if (threadIdx.x == 0) {
      record.raw_at = extent.codes_at + coded_bytes;
      if (!sound) report(args.verdict, Fault::Plane, frame);
    }
  }
  if (threadIdx.x == 0) space.planes[frame] = plane;
}

// A block of threads per frame.
__global__ void __launch_bounds__(kThreads) write_scales(ElementEncode args, HuffmanSpace space) {
  const std::uint32_t scale_bytes = args.plan.extent(blockIdx.x).codes_at;
  std::uint8_t* to = args.placed(blockIdx.x) + sizeof(FrameHeader);
  copy_bytes(to, regular_codes(args.plan, args.workspace, blockIdx.x) - scale_bytes, scale_bytes, threadIdx.x,
             kThreads);
  if (threadIdx.x == 0) space.planes[blockIdx.x].to = to + scale_bytes;
}

// Blocks have been encoded to the regular layout: codes the planes, whose sizes the layout needs; then, to
// their places, scales and coded planes.
core::Status encode_stage(const PayloadPlan& plan, const Workspace& workspace, const HuffmanSpace& space,
                          Stream stream) {
  const Grid frames = one_thread_each(plan.frames, kThreads);
  GEOCOMM_RETURN_IF_ERROR(launch(name_planes, frames, stream, plan, workspace, space));
  return encode_huffman_blocks(space, stream);
}

core::Status write_staged_frames(const ElementEncode& args, const HuffmanSpace& space, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(launch(write_scales, Grid{args.plan.frames, kThreads}, stream, args, space));
  return write_huffman_planes(space, stream);
}

// The planes of all frames to the regular layout in the workspace.
core::Status decode_stage(const Decode& args, const HuffmanSpace& space, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(launch(find_planes, Grid{args.plan.frames, kWarp}, stream, args, space));
  return decode_huffman_planes(space, args.verdict, stream);
}

// The room holds frames of the regular layout, to move encoded blocks of a payload through, or for planes
// before or behind their stage; then what comes before raw blocks; then the stage's own.

bool has_stage(const CodecSpec& spec) {
  return spec.entropy != Entropy::None;
}

struct BlockSpace {
  std::uint32_t* raw_before;  // decoding: see Decode
  HuffmanSpace huffman;
};

BlockSpace space_of(const CodecSpec& spec, const PayloadPlan& plan, Direction direction, SpaceCutter& room) {
  const bool is_moved = plan.frames > 1 && plan.slots == nullptr;
  if (is_moved || has_stage(spec)) room.take<std::uint8_t>(plan.bytes());
  BlockSpace space{room.take<std::uint32_t>(plan.blocks()), {}};
  if (has_stage(spec)) {
    space.huffman = take_huffman_space(plan.frames, plan.largest().bytes - plan.largest().codes_at,
                                       direction == Direction::Decode, room);
  }
  return space;
}

void take_room(const CodecSpec& spec, core::DType, const PayloadPlan& plan, Direction direction,
               SpaceCutter& room) {
  space_of(spec, plan, direction, room);
}

core::Status quantize(const EncodeRun& run, const BlockEncode& args) {
  switch (run.spec.id) {
    case CodecId::Int8:
      return launch_encode_blocks<IntCoder<CodecId::Int8>>(args, run.dtype, run.stream);
    case CodecId::Int4:
      return launch_encode_blocks<IntCoder<CodecId::Int4>>(args, run.dtype, run.stream);
    case CodecId::Bit2:
      return launch_encode_blocks<Bit2Coder>(args, run.dtype, run.stream);
    default:
      return launch_encode_blocks<Bit1Coder>(args, run.dtype, run.stream);
  }
}

core::Status encode(const EncodeRun& run) {
  const PayloadPlan& plan = run.input.plan;
  const Workspace& workspace = run.input.workspace;
  const BlockEncode blocks{run.input, run.seed, run.first_element, run.spec.rounding == Rounding::Stochastic};
  if (!has_stage(run.spec)) {
    GEOCOMM_RETURN_IF_ERROR(quantize(run, blocks));
    GEOCOMM_RETURN_IF_ERROR(lay_out_frames(run.layout(FrameSizes::Blocks), run.stream));
    GEOCOMM_RETURN_IF_ERROR(move_frames(blocks.dst, plan, workspace, run.stream));
    return write_raw_blocks(run.dtype, blocks, run.stream);
  }
  SpaceCutter room(workspace.room);
  const HuffmanSpace space = space_of(run.spec, plan, Direction::Encode, room).huffman;
  BlockEncode before_stage = blocks;
  before_stage.staged = workspace.room;
  GEOCOMM_RETURN_IF_ERROR(quantize(run, before_stage));
  GEOCOMM_RETURN_IF_ERROR(encode_stage(plan, workspace, space, run.stream));
  LayoutArgs layout = run.layout(FrameSizes::StagedBlocks);
  layout.planes = space.planes;
  GEOCOMM_RETURN_IF_ERROR(lay_out_frames(layout, run.stream));
  GEOCOMM_RETURN_IF_ERROR(write_staged_frames(blocks, space, run.stream));
  return write_raw_blocks(run.dtype, blocks, run.stream);
}

// With what its room holds.
Decode with_room(const CodecSpec& spec, const Decode& all, const Decode& part, HuffmanSpace* huffman) {
  Decode args = part;
  SpaceCutter room(all.workspace.room);
  const BlockSpace space = space_of(spec, all.plan, Direction::Decode, room);
  args.raw_before = space.raw_before;
  if (has_stage(spec)) args.staged = all.workspace.room;
  if (huffman != nullptr) *huffman = space.huffman;
  return args;
}

core::Status check(const DecodeRun& run) {
  HuffmanSpace huffman;
  const Decode args = with_room(run.spec, run.args, run.args, &huffman);
  if (has_stage(run.spec)) GEOCOMM_RETURN_IF_ERROR(decode_stage(args, huffman, run.stream));
  return check_blocks(run.spec.id, args, run.stream);
}

core::Status put(const DecodeRun& run) {
  return decode_blocks(run.spec.id, with_room(run.spec, run.args, run.part(), nullptr), run.stream);
}

}  // namespace

const CodecFamily kBlockFamily{true, true, take_room, encode, check, put};

}  // namespace geocomm::codec::cuda
