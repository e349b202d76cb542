// The codecs by families: what cuda_codec.cc, which owns the frames around them, asks of each. The file
// of a family's kernels ends with which of them run in which order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/cuda/kernels.h"
#include "codec/cuda/payload_plan.h"
#include "codec/cuda/section_space.h"
#include "codec/spec/codec_spec.h"
#include "core/dtype.h"
#include "core/status.h"

namespace geocomm::codec::cuda {

struct EncodeRun {
  const CodecSpec& spec;
  core::DType dtype = core::DType::Float32;
  ElementEncode input;
  std::uint64_t seed = 0;
  std::uint64_t first_element = 0;
  FrameHeaders headers;
  std::uint64_t* bytes_out = nullptr;  // on the device; nullptr for a batch
  Stream stream = nullptr;

  LayoutArgs layout(FrameSizes sizes) const {
    return {input.dst, input.plan, input.workspace, headers, bytes_out, sizes, nullptr, {}, false};
  }
};

struct DecodeRun {
  const CodecSpec& spec;
  Decode args;  // the plan is that of all frames
  Stream stream = nullptr;
  // Of those whose elements are put.
  std::uint32_t first_frame = 0;
  std::uint32_t frames = args.plan.frames;

  Decode part() const {
    Decode part = args;
    part.plan = args.plan.part(first_frame, frames);
    return part;
  }
};

// Decoding, the stage needs far less room.
enum class Direction : std::uint8_t { Encode, Decode };

struct CodecFamily {
  // Which codecs it has kernels for: those without a stage, those with Huffman's.
  bool takes_no_stage;
  bool takes_huffman;
  // Takes what it needs of Workspace::room.
  void (*take_room)(const CodecSpec& spec, core::DType dtype, const PayloadPlan& plan, Direction direction,
                    SpaceCutter& room);
  // The records are cleared. Writes the payloads of all frames, and their places, sizes and codecs into the
  // records; the residual; the size of it all.
  core::Status (*encode)(const EncodeRun& run);
  // The frames have been found: checks all of them.
  core::Status (*check)(const DecodeRun& run);
  // When all are sound: writes the elements of all, or of a part.
  core::Status (*put)(const DecodeRun& run);
};

// Which frames of sections become ones of None.
enum class PlainFrames : std::uint8_t {
  None,
  Named,         // those in whose records `is_plain` is set
  NamedOrLonger  // these, and those that would not be smaller than their elements
};

// Encoding. All sections and their planes are named (name_planes() in sections.cuh). Codes the planes, lays
// the frames out and fills them, those of None as well, whose residuals are then updated. What is left:
// sections that the codec writes, at `at` of frames that are not of None.
core::Status place_sections(const EncodeRun& run, const SectionSpace& space, PlainFrames plain);

// Decoding. The sections [first, end) of all frames have been walked (sections.cuh): undoes their stage.
core::Status decode_sections(const DecodeRun& run, const SectionSpace& space, std::uint32_t first,
                             std::uint32_t end);

const CodecFamily& family_of(const CodecSpec& spec);

extern const CodecFamily kElementFamily;    // None; Fp16 and Bf16 without a stage
extern const CodecFamily kCastPlaneFamily;  // these with a stage
extern const CodecFamily kBlockFamily;      // Int8, Int4, Bit2, Bit1
extern const CodecFamily kDeadZoneFamily;
extern const CodecFamily kTopKFamily;
extern const CodecFamily kLosslessFamily;
extern const CodecFamily kLocoFamily;

}  // namespace geocomm::codec::cuda
