#include <bit>

#include "core/crc32c.h"
#include "decode_case.h"

namespace geocomm::fuzz {
namespace {

using codec::CodecId;
using codec::Entropy;
using core::DType;

constexpr DType kFloatTypes[] = {DType::Float32, DType::Float16, DType::BFloat16};

void fuzz_decoder(std::span<const CodecId> codecs, Input input) {
  InputReader reader(input);
  const auto head = reader.take<DecodeHead>();
  const ForgedFrame frame = forge_frame(codecs, head, reader.rest());
  decode_everywhere(frame.bytes, frame.dtype, frame.elements, Places::of(head.places));
}

}  // namespace

ForgedFrame forge_frame(std::span<const CodecId> codecs, const DecodeHead& head, Input payload) {
  codec::CodecSpec spec;
  spec.id = codecs[head.codec % codecs.size()];
  spec.rounding = static_cast<codec::Rounding>(head.flags & 1u);
  spec.block = codec::kMinBlock << head.block % 7u;
  const bool is_none = spec.id == CodecId::None;
  if (!is_none) spec.entropy = static_cast<Entropy>((head.flags >> 1) % 3u);
  ForgedFrame frame;
  frame.dtype = is_none ? static_cast<DType>(head.dtype % core::kDTypeCount) : kFloatTypes[head.dtype % 3u];
  frame.elements = ElementCount{head.elements_low, head.elements_high}.value();
  frame.bytes.resize(sizeof(codec::FrameHeader) + payload.size());
  codec::write_frame_header(spec, frame.dtype, static_cast<std::uint32_t>(frame.elements), payload.size(),
                            core::crc32c(payload), frame.bytes.data());
  if (!payload.empty()) {
    std::memcpy(frame.bytes.data() + sizeof(codec::FrameHeader), payload.data(), payload.size());
  }
  return frame;
}

DecodeHead head_of(std::span<const CodecId> codecs, const codec::FrameView& frame) {
  DecodeHead head{};
  while (codecs[head.codec] != frame.spec.id) ++head.codec;
  if (frame.spec.id == CodecId::None) {
    head.dtype = static_cast<std::uint8_t>(frame.dtype);
  } else {
    while (kFloatTypes[head.dtype] != frame.dtype) ++head.dtype;
  }
  head.flags = static_cast<std::uint8_t>(static_cast<unsigned>(frame.spec.rounding) |
                                         static_cast<unsigned>(frame.spec.entropy) << 1);
  head.block = static_cast<std::uint8_t>(std::countr_zero(frame.spec.block / codec::kMinBlock));
  const auto count = ElementCount::of(frame.elements);
  head.elements_low = count.low;
  head.elements_high = count.high;
  return head;
}

void fuzz_decode_cast(Input input) {
  fuzz_decoder(kCastCodecs, input);
}
void fuzz_decode_int(Input input) {
  fuzz_decoder(kIntCodecs, input);
}
void fuzz_decode_bits(Input input) {
  fuzz_decoder(kBitsCodecs, input);
}
void fuzz_decode_dead_zone(Input input) {
  fuzz_decoder(kDeadZoneCodecs, input);
}
void fuzz_decode_top_k(Input input) {
  fuzz_decoder(kTopKCodecs, input);
}
void fuzz_decode_lossless(Input input) {
  fuzz_decoder(kLosslessCodecs, input);
}
void fuzz_decode_loco(Input input) {
  fuzz_decoder(kLocoCodecs, input);
}

}  // namespace geocomm::fuzz
