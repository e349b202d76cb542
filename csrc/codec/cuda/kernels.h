// What cuda_codec.cc enqueues: the stages of both directions, each a kernel or a few. All pointers are to
// device memory.
#pragma once

#include <cstdint>

#include "codec/cuda/cuda_codec.h"
#include "codec/cuda/huffman_planes.h"
#include "codec/cuda/payload_plan.h"
#include "codec/cuda/section_space.h"
#include "codec/frames/elements.h"
#include "codec/frames/frame.h"
#include "codec/payload/payload.h"
#include "codec/spec/codec_spec.h"
#include "core/dtype.h"
#include "core/status.h"

namespace geocomm::codec::cuda {

// Encoding: clear, elements or blocks, layout, (moves, raw blocks), crc, seal.
// `table`: of a batch, the slots, where the host has written them; they become those of the workspace.
core::Status clear_records(const PayloadPlan& plan, const Workspace& workspace, const FrameSlot* table,
                           Stream stream);
// Elements of a frame whose squares are added up together: their order depends on no device.
inline constexpr std::uint64_t kFeedbackTile = 16384;
// The same of a batch whose residuals begin apart (BatchFeedback::squares_dev).
struct EnterFeedback {
  PayloadPlan plan;
  Workspace workspace;
  const FrameSlot* table;
  float decay;
  bool scales_elements;
  std::uint32_t tiles_per_frame;
  double* squares;
  std::uint32_t* cleared;
};
core::Status enter_feedback(core::DType dtype, const EnterFeedback& args, Stream stream);
// Of a batch that has been encoded: its frames to where they are asked for.
core::Status copy_frames_outside(const PayloadPlan& plan, const Workspace& workspace, Stream stream);

struct ElementEncode {
  const std::uint8_t* src;
  std::uint8_t* dst;
  ResidualView residual;  // of a batch: its data is not nullptr if the slots have residuals
  PayloadPlan plan;
  Workspace workspace;

  GEOCOMM_HOST_DEVICE const std::uint8_t* elements(std::uint64_t frame) const {
    return plan.elements_at(src, plan.element_bytes, frame);
  }
  GEOCOMM_HOST_DEVICE ResidualView residual_of(std::uint64_t frame) const {
    return plan.residual_of(residual, frame);
  }
  // Where the frame lies: once all are laid out; if all are regular.
  GEOCOMM_HOST_DEVICE std::uint8_t* placed(std::uint64_t frame) const {
    return plan.frame_at(dst, workspace.records[frame].offset, frame);
  }
  GEOCOMM_HOST_DEVICE std::uint8_t* regular(std::uint64_t frame) const {
    return plan.frame_at(dst, frame * plan.frame_stride, frame);
  }
};
// Elements one by one: None, Fp16, Bf16.
enum class CastPass : std::uint8_t {
  Check,    // only counts, per frame, values beyond the range of the cast
  Regular,  // encodes to the regular layout, and counts; a residual is not touched
  Placed    // encodes to where the records say, frames of None where they say so
};
core::Status encode_casts(CodecId id, core::DType dtype, CastPass pass, const ElementEncode& args,
                          Stream stream);
// Frames that the records say are of None, at their places, whatever the others are; with a residual, which
// is updated.
core::Status write_plain_sums(core::DType dtype, const ElementEncode& args, Stream stream);

// How the sizes of frames come about.
enum class FrameSizes : std::uint8_t {
  Blocks,        // the regular size, and the elements of raw blocks; the record's raw_at is set as well
  StagedBlocks,  // the scales, a coded plane, and the elements of raw blocks; sets raw_at as well
  Casts,         // the regular size, or that of a frame of None, which the record then names
  Sections       // what the sections take, which are told their places; or that of a frame of None
};
// What the headers of a call's frames have in common.
struct FrameHeaders {
  FrameHeader regular;  // ids, flags and block of the codec's frames
  FrameHeader plain;    // and of those of None
  bool with_checksums;

  // Whether they are written as soon as sizes are known: no crc is waited for, and no frame moves.
  GEOCOMM_HOST_DEVICE bool come_with_layout(const PayloadPlan& plan) const {
    return !with_checksums && (plan.frames == 1 || plan.slots != nullptr);
  }
};
// Sizes and offsets of all frames, from what was counted.
struct LayoutArgs {
  std::uint8_t* dst;
  PayloadPlan plan;
  Workspace workspace;
  FrameHeaders headers;
  std::uint64_t* bytes_out;  // nullptr for a batch
  FrameSizes sizes;
  const HuffmanPlane* planes;  // StagedBlocks
  SectionSpace sections;       // Sections
  bool must_shrink;            // frames of sections that would not be smaller than their elements are of None
};
core::Status lay_out_frames(const LayoutArgs& args, Stream stream);
// Where the layout of a payload is irregular: moves regular frames to their places, by way of the workspace.
core::Status move_frames(std::uint8_t* dst, const PayloadPlan& plan, const Workspace& workspace,
                         Stream stream);

// Adds up the records' crc of the payloads at `bytes`. Decoding: `verdict` is where to look whether there is
// any point; else nullptr.
core::Status sum_payload_crcs(const std::uint8_t* bytes, const PayloadPlan& plan, const Workspace& workspace,
                              const std::uint64_t* verdict, Stream stream);

// Unless they came with the layout, when the crcs are there.
core::Status write_headers(std::uint8_t* dst, const PayloadPlan& plan, const Workspace& workspace,
                           const FrameHeaders& headers, Stream stream);

// Decoding: clear, find frames, crc, check, elements or blocks. A stage does nothing once there is a verdict.

struct FindArgs {
  const std::uint8_t* payload;
  std::uint64_t payload_bytes;
  const FrameSlot* table;  // of a batch, as clear_records() has it; nullptr: a payload
  PayloadPlan plan;
  Workspace workspace;
  FrameHeaders headers;
  bool takes_any_rounding;
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
  std::uint32_t target_bytes;  // of an element there
  core::DType dtype;
  Sink sink;
  PayloadPlan plan;
  Workspace workspace;
  std::uint64_t* verdict;
  const std::uint8_t* staged;  // nullptr, or where the stage has put the codes, in the regular layout
  std::uint32_t* raw_before;   // of a raw block: elements in raw blocks of its frame before it

  GEOCOMM_HOST_DEVICE std::uint8_t* elements(std::uint64_t frame) const {
    return plan.elements_at(dst, target_bytes, frame);
  }
  // Of a frame that has been found.
  GEOCOMM_HOST_DEVICE const std::uint8_t* payload_of(std::uint64_t frame) const {
    return plan.frame_at(payload, workspace.records[frame].offset, frame) + sizeof(FrameHeader);
  }
  // Of a frame of blocks.
  GEOCOMM_HOST_DEVICE const std::uint8_t* codes(std::uint32_t frame) const {
    const std::uint8_t* begin =
        staged != nullptr ? staged + frame * plan.frame_stride + sizeof(FrameHeader) : payload_of(frame);
    return begin + plan.extent(frame).codes_at;
  }
};
// Of blocks. Checks scales and sizes of all frames, and finds what raw blocks come before which.
core::Status check_blocks(CodecId id, const Decode& args, Stream stream);
core::Status decode_blocks(CodecId id, const Decode& args, Stream stream);

}  // namespace geocomm::codec::cuda
