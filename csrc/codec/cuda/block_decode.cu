// Frames of the block codecs: all is checked, then their elements are put.
#include <cstdint>

#include "codec/cuda/block_coders.cuh"
#include "codec/cuda/block_place.cuh"
#include "codec/cuda/device.h"
#include "codec/cuda/kernels.h"
#include "codec/cuda/verdict.h"

namespace geocomm::codec::cuda {

// Checks of received blocks that come before anything is written: scales, and that the raw blocks take just
// what the frame has. Where each of these has its elements is found on the way.

namespace {

// A block of threads per frame.
template <typename Coder>
__global__ void __launch_bounds__(kBlockThreads) check(Decode args) {
  if (is_over_for_block(args.verdict)) return;
  const std::uint32_t frame = blockIdx.x;
  const FrameRecord& record = args.workspace.records[frame];
  if (record.is_plain != 0) return;
  const FrameExtent extent = args.plan.extent(frame);
  const std::uint8_t* scales = args.payload_of(frame);
  std::uint32_t raw_elements = 0;
  for (std::uint32_t first = 0; first < extent.blocks; first += kBlockThreads) {
    const std::uint32_t index = first + threadIdx.x;
    const bool is_there = index < extent.blocks;
    const std::uint32_t scale = is_there ? load_u16(scales + 2 * index) : kMinScaleBits;
    const bool is_raw = scale == kRawScale;
    if (!is_raw && !is_valid_scale<Coder::kId>(scale)) report(args.verdict, Fault::Scale, frame);
    std::uint32_t total;
    const std::uint32_t before =
        sum_before<kBlockThreads>(is_raw ? length_of_block(args.plan, extent, index) : 0u, total);
    if (is_raw) args.raw_before[args.plan.slot_of_block(frame, index)] = raw_elements + before;
    raw_elements += total;
  }
  const std::uint64_t expected = record.raw_at + std::uint64_t{raw_elements} * args.plan.element_bytes;
  if (threadIdx.x == 0 && record.payload_bytes != expected) report(args.verdict, Fault::RawSize, frame);
}

}  // namespace

core::Status check_blocks(CodecId id, const Decode& args, Stream stream) {
  return with_coder(id, [&]<typename Coder>() {
    return launch(check<Coder>, Grid{args.plan.frames, kBlockThreads}, stream, args);
  });
}

// Frames of the block codecs to elements. All of the payload has been checked before.

namespace {

template <typename Coder>
__device__ void unpack(const std::uint8_t* packed, unsigned length, const BlockPlace& place,
                       std::uint8_t* staged) {
  const unsigned bytes = Coder::packed_bytes(length);
  if (bytes % 4 == 0 && is_aligned(packed, 4)) {
    for (unsigned at = 4 * place.u; at < bytes; at += 4 * place.lanes) {
      Coder::unpack_word(word_at(packed, at), staged, at, bytes);
    }
  } else {
    for (unsigned at = place.u; at < bytes; at += place.lanes) {
      Coder::unpack_byte(packed[at], staged, at, bytes);
    }
  }
}

// kSmall: blocks of at most 256 elements.
template <typename Coder, Sink kSink, bool kSmall>
__global__ void __launch_bounds__(kBlockThreads) decode(Decode args) {
  constexpr unsigned kStaged = kSmall ? 2 * kRow + 2 * kStagedPad : kMaxBlock + kStagedPad;
  __shared__ __align__(16) std::uint8_t staged_of_warps[kBlockWarps][kStaged];

  if (is_over_for_warp(args.verdict)) return;
  BlockPlace place;
  const std::uint64_t warp = std::uint64_t{blockIdx.x} * kBlockWarps + threadIdx.x / kWarp;
  if (!find_block(args.plan, warp, place)) return;
  const unsigned lane = threadIdx.x % kWarp;
  std::uint8_t* staged =
      staged_of_warps[threadIdx.x / kWarp] + lane / place.lanes * (args.plan.block + kStagedPad);
  const FrameRecord& record = args.workspace.records[place.frame];
  const std::uint8_t* payload = args.payload_of(place.frame);

  const std::uint8_t* plain = nullptr;  // the block's elements as they are
  std::uint32_t bits = 0;               // of the scale
  if (record.is_plain != 0) {
    plain = payload + std::uint64_t{place.index} * args.plan.block * args.plan.element_bytes;
  } else {
    if (place.length > 0) bits = load_u16(payload + 2 * place.index);
    if (bits == kRawScale) {
      const std::uint64_t before = args.raw_before[args.plan.slot_of_block(place.frame, place.index)];
      plain = payload + record.raw_at + before * args.plan.element_bytes;
    }
    if (plain == nullptr && place.length > 0) {
      const std::uint8_t* packed =
          args.codes(place.frame) + std::uint64_t{place.index} * args.plan.block_code_bytes;
      unpack<Coder>(packed, place.length, place, staged);
    }
  }
  __syncwarp();
  const Scale scale{bits, bfloat16_bits_to_float(bits)};
  std::uint8_t* dst = args.elements(place.frame);
  for (unsigned row = 0; row < place.rows; ++row) {
    const unsigned count = place.count(row);
    if (count == 0) break;
    const std::uint64_t element = place.begin + place.offset(row);
    if (plain != nullptr) {
      put_plain<kSink>(args.dtype, plain + std::uint64_t{place.offset(row)} * args.plan.element_bytes, dst,
                       element, count);
    } else {
      put_quad<kSink>(dst, element, Coder::decoded(word_at(staged, place.offset(row)), scale), count);
    }
  }
}

template <typename Coder>
core::Status launch_decode(const Decode& args, Stream stream) {
  const Grid grid = grid_of_warps(warps_of(args.plan));
  return with_sink(args.sink, [&]<Sink kSink>() {
    return args.plan.block <= 2 * kRow ? launch(decode<Coder, kSink, true>, grid, stream, args)
                                       : launch(decode<Coder, kSink, false>, grid, stream, args);
  });
}

}  // namespace

core::Status decode_blocks(CodecId id, const Decode& args, Stream stream) {
  return with_coder(id, [&]<typename Coder>() { return launch_decode<Coder>(args, stream); });
}

}  // namespace geocomm::codec::cuda
