// What a codec does to the payload of one frame. compress() and decompress() own the frame around it: checks,
// header, crc.
#pragma once

#include <cstddef>
#include <span>

#include "codec/frames/codec.h"
#include "codec/frames/elements.h"
#include "codec/frames/frame.h"
#include "codec/spec/codec_spec.h"
#include "core/dtype.h"
#include "core/status.h"

namespace geocomm::codec {

// Input of one frame; all checked: whole elements, a dtype and settings that the codec takes, a residual that
// fits, a stage that this build has.
struct FrameInput {
  const CodecSpec& spec;
  core::DType dtype = core::DType::Float32;
  const std::byte* src = nullptr;
  std::size_t elements = 0;
  const CompressOptions& options;
};

// Bytes.
struct SizeRange {
  std::size_t least = 0;
  std::size_t most = 0;
};

struct PayloadCodec {
  // Worst case of encode(), in bytes. Cannot fail.
  std::size_t (*bound)(const CodecSpec& spec, core::DType dtype, std::size_t elements);
  // The same where no block goes raw and the frame does not become one of None: for codecs of a fixed rate
  // the exact size.
  std::size_t (*usual_bound)(const CodecSpec& spec, core::DType dtype, std::size_t elements);
  // Writes the payload to `dst`, which has room for bound(), and returns its size; updates the residual.
  // kResortToNone: the codec cannot carry this input; nothing was written, the residual is as it was, and the
  // frame becomes one of None.
  std::size_t (*encode)(const FrameInput& input, std::byte* dst);
  // Sizes that the payloads of received frames can have, as far as their headers tell.
  SizeRange (*possible_sizes)(const CodecSpec& spec, core::DType dtype, std::size_t elements);
  // Decodes to all of `dst`; checks everything that it relies on, and with Sink::AddToFloat32 writes nothing
  // before all checks have passed.
  core::Status (*decode)(const FrameView& frame, Sink sink, std::byte* dst);
};
inline constexpr std::size_t kResortToNone = ~std::size_t{0};

const PayloadCodec& payload_codec(CodecId id);

// Defined beside their code.
extern const PayloadCodec kPlainCodec;     // None
extern const PayloadCodec kCastCodec;      // Fp16, Bf16
extern const PayloadCodec kBlockCodec;     // Int8, Int4, Bit2, Bit1
extern const PayloadCodec kDeadZoneCodec;  // DeadZone
extern const PayloadCodec kTopKCodec;      // TopK
extern const PayloadCodec kLosslessCodec;  // Lossless
extern const PayloadCodec kLocoCodec;      // Loco

}  // namespace geocomm::codec
