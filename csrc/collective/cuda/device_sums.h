// What a reduction over the sites does between decoding and encoding, on a CUDA device: as collective/
// reduction.h, bit for bit. Everything is enqueued; pointers are to device memory, aligned to their elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/cuda/cuda_codec.h"
#include "codec/frames/codec.h"
#include "core/dtype.h"
#include "core/status.h"

namespace geocomm::collective::cuda {

using codec::cuda::Stream;

// sums = (or +=) elements of Float32, Float16 or BFloat16.
core::Status accumulate_elements(core::DType dtype, const std::byte* elements_dev, float* sums_dev,
                                 std::uint64_t count, codec::Accumulate mode, Stream stream);
// sums /= divisor (unless that is 1).
core::Status divide(float* sums_dev, std::uint64_t count, int divisor, Stream stream);
// dst = sums, rounded to `dtype`, a finite sum beyond its range to Inf as an addition would. Float32: dst may
// be where the sums are.
core::Status store_sums(core::DType dtype, const float* sums_dev, std::byte* dst_dev, std::uint64_t count,
                        Stream stream);

}  // namespace geocomm::collective::cuda
