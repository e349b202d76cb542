// Fp16 and Bf16: every element cast to 16 bits, round to nearest even.
#pragma once

#include <cstddef>

#include "codec/codec_spec.h"
#include "codec/elements.h"
#include "core/dtype.h"

namespace geocomm::codec {

// Whether no finite value (residual added, nullptr: none) would become Inf.
bool cast_fits(CodecId id, core::DType dtype, const std::byte* src, std::size_t count, const float* residual);

// Writes 2 * count bytes. Precondition: cast_fits().
void encode_cast(CodecId id, core::DType dtype, const std::byte* src, std::size_t count, float* residual,
                 std::byte* dst);

void decode_cast(CodecId id, const std::byte* payload, std::size_t count, Sink sink, std::byte* dst);

}  // namespace geocomm::codec
