// The codecs by families: what cuda_codec.cc, which owns the frames around them, asks of each. A family is
// one file family_*.cc, that says which kernels run in which order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/cuda/kernels.h"
#include "codec/cuda/payload_plan.h"
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
  std::uint64_t* bytes_out = nullptr;  // on the device
  Stream stream = nullptr;
};

struct DecodeRun {
  const CodecSpec& spec;
  Decode args;
  Stream stream = nullptr;
};

struct CodecFamily {
  // Which codecs it has kernels for: those without a stage, those with Huffman's.
  bool takes_no_stage;
  bool takes_huffman;
  // Bytes of Workspace::room, in either direction.
  std::size_t (*room_bytes)(const CodecSpec& spec, core::DType dtype, const PayloadPlan& plan);
  // The records are cleared. Writes the payloads of all frames, and their places, sizes and codecs into the
  // records; the residual; the size of it all.
  core::Status (*encode)(const EncodeRun& run);
  // The frames have been found. Checks all of them, then writes the elements.
  core::Status (*decode)(const DecodeRun& run);
};

const CodecFamily& family_of(const CodecSpec& spec);

extern const CodecFamily kElementFamily;    // None; Fp16 and Bf16 without a stage
extern const CodecFamily kCastPlaneFamily;  // these with a stage
extern const CodecFamily kBlockFamily;      // Int8, Int4, Bit2, Bit1
extern const CodecFamily kDeadZoneFamily;
extern const CodecFamily kTopKFamily;
extern const CodecFamily kLosslessFamily;
extern const CodecFamily kLocoFamily;

}  // namespace geocomm::codec::cuda
