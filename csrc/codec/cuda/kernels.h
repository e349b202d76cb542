// What cuda_codec.cc enqueues: the stages of both directions, each a kernel or a few. All pointers are to
// device memory.
#pragma once

#include <cstdint>

#include "codec/cuda/cuda_codec.h"
#include "codec/cuda/huffman_planes.h"
#include "codec/cuda/payload_plan.h"
#include "codec/frames/elements.h"
#include "codec/frames/frame.h"
#include "codec/payload/payload.h"
#include "codec/spec/codec_spec.h"
#include "core/dtype.h"
#include "core/status.h"

namespace geocomm::codec::cuda {

// An error-feedback residual; data is nullptr where there is none.
struct ResidualView {
  std::uint8_t* data = nullptr;
  bool is_bfloat16 = false;
  float decay = 1.0f;

  GEOCOMM_HOST_DEVICE std::uint8_t* at(std::uint64_t element) const {
    return data + element * (is_bfloat16 ? 2 : 4);
  }
};

// Encoding: clear, elements or blocks, layout, (moves, raw blocks), crc, seal.

core::Status clear_records(const PayloadPlan& plan, const Workspace& workspace, Stream stream);

struct ElementEncode {
  const std::uint8_t* src;
  std::uint8_t* dst;
  ResidualView residual;
  PayloadPlan plan;
  Workspace workspace;
};
// Elements one by one: None, Fp16, Bf16.
enum class CastPass : std::uint8_t {
  Check,    // only counts, per frame, values beyond the range of the cast
  Regular,  // encodes to the regular layout, and counts; a residual is not touched
  Placed    // encodes to where the records say, frames of None where they say so
};
core::Status encode_casts(CodecId id, core::DType dtype, CastPass pass, const ElementEncode& args,
                          Stream stream);
// None: elements with their residual added; and elements that are only copied.
core::Status encode_plain_sums(core::DType dtype, const ElementEncode& args, Stream stream);
core::Status copy_into_frames(const ElementEncode& args, Stream stream);
// Frames that the records say are of None, at their places, whatever the others are; with a residual, which
// is updated.
core::Status write_plain_sums(core::DType dtype, const ElementEncode& args, Stream stream);

// Int8 and Int4, then Bit2 and Bit1: to the regular layout; counts raw blocks.
struct BlockEncode : ElementEncode {
  std::uint64_t seed;
  std::uint64_t first_element;
  bool is_stochastic;
};
core::Status encode_int_blocks(CodecId id, core::DType dtype, const BlockEncode& args, Stream stream);
core::Status encode_bit_blocks(CodecId id, core::DType dtype, const BlockEncode& args, Stream stream);
// Where the layout is irregular: writes what raw blocks carry, and their residuals.
core::Status write_raw_blocks(core::DType dtype, const BlockEncode& args, Stream stream);

// The stage of block codecs, which have been encoded to the regular layout in the workspace: codes the
// planes, whose sizes the layout needs; then, to their places, scales and coded planes.
core::Status encode_stage(const PayloadPlan& plan, const Workspace& workspace, const HuffmanSpace& space,
                          Stream stream);
core::Status write_staged_frames(std::uint8_t* dst, const PayloadPlan& plan, const Workspace& workspace,
                                 const HuffmanSpace& space, Stream stream);

// How the sizes of frames come about.
enum class FrameSizes : std::uint8_t {
  Blocks,        // the regular size, and the elements of raw blocks; the record's raw_at is set as well
  StagedBlocks,  // up to raw_at, and the elements of raw blocks
  Casts,         // the regular size, or that of a frame of None, which the record then names
  Known          // the record's payload_bytes
};
// Sizes and offsets of all frames, from what was counted.
struct LayoutArgs {
  PayloadPlan plan;
  Workspace workspace;
  FrameSizes sizes;
  std::uint64_t* bytes_out;
};
core::Status lay_out_frames(const LayoutArgs& args, Stream stream);
// Where the layout is irregular: moves regular frames to their places, by way of the workspace.
core::Status move_frames(std::uint8_t* dst, const PayloadPlan& plan, const Workspace& workspace,
                         Stream stream);

// Adds up the records' crc of the payloads at `bytes`. Decoding: `verdict` is where to look whether there is
// any point; else nullptr.
core::Status sum_payload_crcs(const std::uint8_t* bytes, const PayloadPlan& plan, const Workspace& workspace,
                              const std::uint64_t* verdict, Stream stream);

struct SealArgs {
  std::uint8_t* dst;
  PayloadPlan plan;
  Workspace workspace;
  FrameHeader regular;  // ids, flags and block of the codec's frames
  FrameHeader plain;    // and of those of None
  bool with_checksums;
};
core::Status write_headers(const SealArgs& args, Stream stream);

// Decoding: clear, find frames, crc, check, elements or blocks. A stage does nothing once there is a verdict.

struct FindArgs {
  const std::uint8_t* payload;
  std::uint64_t payload_bytes;
  PayloadPlan plan;
  Workspace workspace;
  FrameHeader regular;
  FrameHeader plain;
  bool takes_any_rounding;
  bool has_checksums;
  std::uint64_t* verdict;
  bool may_be_longer;  // bytes behind the last frame are nobody's business
};
// Reads and checks the headers, into the records.
core::Status find_frames(const FindArgs& args, Stream stream);
// Compares the crcs that were added up with those of the headers.
core::Status check_crcs(const FindArgs& args, Stream stream);

struct Decode {
  const std::uint8_t* payload;
  std::uint8_t* dst;
  core::DType dtype;
  Sink sink;
  PayloadPlan plan;
  Workspace workspace;
  std::uint64_t* verdict;
  const std::uint8_t* staged;  // nullptr, or where the stage has put the codes, in the regular layout

  // Of a frame of blocks.
  GEOCOMM_HOST_DEVICE const std::uint8_t* codes(std::uint32_t frame) const {
    const std::uint8_t* begin =
        staged != nullptr ? staged + frame * plan.frame_stride : payload + workspace.records[frame].offset;
    return begin + sizeof(FrameHeader) + plan.extent(frame).codes_at;
  }
};
core::Status decode_elements(CodecId id, const Decode& args, Stream stream);
// Those of None, whatever the others are.
core::Status decode_plain_frames(const Decode& args, Stream stream);
// Frames of None to their own dtype.
core::Status copy_out_of_frames(const Decode& args, Stream stream);
// The planes of all frames to the regular layout in the workspace.
core::Status decode_stage(const Decode& args, const HuffmanSpace& space, Stream stream);
// Checks scales, packed bytes and sizes of all frames.
core::Status check_blocks(CodecId id, const Decode& args, Stream stream);
core::Status decode_blocks(CodecId id, const Decode& args, Stream stream);

}  // namespace geocomm::codec::cuda
