// The inputs of the encoder targets: settings and options of compress(), and how to make its elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/spec/codec_spec.h"
#include "content.h"
#include "core/dtype.h"

namespace geocomm::fuzz {

struct EncodeHead {
  std::uint8_t codec;        // index into the target's codecs
  std::uint8_t dtype;        // None and Lossless: any; else a float's
  std::uint8_t stage;        // Entropy
  std::uint8_t block;        // log2(block / kMinBlock)
  std::uint8_t choices;      // bit 0: Rounding; bits 2, 3: Values
  std::uint8_t step;         // 0.05 to 8
  std::uint16_t k;           // 1 to 2048
  std::uint8_t residual;     // 0: none; 1: Float32; 2: BFloat16
  std::uint8_t unused_byte;  // it and unused_float keep the rest where the corpus has it
  std::uint8_t places;
  std::uint8_t elements_high;  // ElementCount
  std::uint16_t elements_low;
  std::uint16_t residual_scale;  // bfloat16: the residual is the input, backwards, times this
  float decay;
  float unused_float;
  std::uint64_t seed;
  std::uint64_t first_element;
  Fill fill;
  std::uint32_t unused;
};
static_assert(sizeof(EncodeHead) == 48);

// Settings that CodecSpec::parse() can give.
codec::CodecSpec spec_of(std::span<const codec::CodecId> codecs, const EncodeHead& head);
core::DType dtype_of(codec::CodecId id, const EncodeHead& head);

}  // namespace geocomm::fuzz
