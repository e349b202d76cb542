// The inputs of the decoder targets: what a frame's header says, then its payload. The target writes the
// header and its checksums, which no fuzzer would guess.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/frames/frame.h"
#include "decode_check.h"
#include "fuzz_target.h"

namespace geocomm::fuzz {

struct DecodeHead {
  std::uint8_t codec;  // index into the target's codecs
  std::uint8_t dtype;
  std::uint8_t flags;  // bit 0: Rounding; the rest: Entropy
  std::uint8_t block;  // log2(block / kMinBlock)
  std::uint8_t places;
  std::uint8_t elements_high;  // ElementCount
  std::uint16_t elements_low;
};
static_assert(sizeof(DecodeHead) == 8);

// A frame with right checksums; its payload may be anything.
struct ForgedFrame {
  core::DType dtype = core::DType::Float32;
  std::size_t elements = 0;
  std::vector<std::byte> bytes;
};
ForgedFrame forge_frame(std::span<const codec::CodecId> codecs, const DecodeHead& head, Input payload);

// The head from which forge_frame() makes that frame's header; its codec is one of `codecs`.
DecodeHead head_of(std::span<const codec::CodecId> codecs, const codec::FrameView& frame);

inline constexpr codec::CodecId kCastCodecs[] = {codec::CodecId::None, codec::CodecId::Fp16,
                                                 codec::CodecId::Bf16};
inline constexpr codec::CodecId kIntCodecs[] = {codec::CodecId::Int8, codec::CodecId::Int4};
inline constexpr codec::CodecId kBitsCodecs[] = {codec::CodecId::Bit2, codec::CodecId::Bit1};
inline constexpr codec::CodecId kDeadZoneCodecs[] = {codec::CodecId::DeadZone, codec::CodecId::BitPlanes};
inline constexpr codec::CodecId kTopKCodecs[] = {codec::CodecId::TopK};
inline constexpr codec::CodecId kLosslessCodecs[] = {codec::CodecId::Lossless};
inline constexpr codec::CodecId kLocoCodecs[] = {codec::CodecId::Loco};
inline constexpr codec::CodecId kAllCodecs[] = {
    codec::CodecId::None, codec::CodecId::Fp16,     codec::CodecId::Bf16, codec::CodecId::Int8,
    codec::CodecId::Int4, codec::CodecId::Bit2,     codec::CodecId::Bit1, codec::CodecId::DeadZone,
    codec::CodecId::TopK, codec::CodecId::Lossless, codec::CodecId::Loco, codec::CodecId::BitPlanes};

}  // namespace geocomm::fuzz
