// Elementwise reductions. Pure computing: no allocation, no threads; every rank gets the same bits, whatever
// float settings the calling thread has (core::FloatRules).
//
// Sums of Float32, Float16 and BFloat16 run at the speed of core::cpu_level(), with the same bits at all.
//
// Floats: Sum, Avg, Product, Min and Max; 16-bit floats are computed in float and rounded once, Float64 in
// double; a NaN among the operands makes Min and Max NaN. Integers: all; they wrap around, and Avg is the
// wrapped sum, divided towards zero. Bool: Sum and Max are or, Product and Min are and, and the bitwise ones;
// the result is 0 or 1.
#pragma once

#include <cstddef>
#include <span>

#include "codec/frames/codec.h"
#include "collective/layout/op_kind.h"
#include "core/dtype.h"
#include "core/status.h"

namespace geocomm::collective {

// Whether the two go together: InvalidArgument that says what does.
core::Status check_reduction(core::DType dtype, ReduceOp op);

// dst = sources[0] op sources[1] op ..., from left to right; Avg: the sum, divided by `divisor`. Every source
// and dst hold `elements` elements of any alignment; dst may be one of the sources (else they do not
// overlap). Preconditions: check_reduction() is Ok, at least one source.
void reduce_elements(core::DType dtype, ReduceOp op, std::span<const std::byte* const> sources,
                     std::byte* dst, std::size_t elements, int divisor);

// For sums of decoded values, kept in float. `dtype` is Float32, Float16 or BFloat16.
// sums = (or +=) elements.
void accumulate_elements(core::DType dtype, const std::byte* elements, std::span<float> sums,
                         codec::Accumulate mode);
// sums /= divisor (unless that is 1).
void divide(std::span<float> sums, int divisor);
// dst = sums, rounded to `dtype`. dst may be where the sums are (Float32).
void store_sums(core::DType dtype, std::span<const float> sums, std::byte* dst);

}  // namespace geocomm::collective
