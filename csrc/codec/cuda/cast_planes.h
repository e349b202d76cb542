// Fp16 and Bf16 with a stage: the casts as words of 16 bits in two sections, of which the high bytes are a
// plane.
#pragma once

#include <cstdint>

#include "codec/cuda/kernels.h"
#include "codec/cuda/section_space.h"
#include "core/dtype.h"
#include "core/status.h"

namespace geocomm::codec::cuda {

enum CastSection : std::uint32_t { kHighBytes, kLowBytes, kCastSections };

// Encoding: both sections, and the residual. Frames that the cast cannot carry become ones of None: with a
// residual those that CastPass::Check has found, which are left out; else it finds them on the way.
core::Status split_casts(CodecId id, core::DType dtype, const ElementEncode& args, const SectionSpace& space,
                         Stream stream);
// Decoding: finds both; elements, when both are there.
core::Status walk_cast_sections(const Decode& args, const SectionSpace& space, Stream stream);
core::Status join_casts(CodecId id, const Decode& args, const SectionSpace& space, Stream stream);

}  // namespace geocomm::codec::cuda
