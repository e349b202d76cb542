// What a reduction over the sites does between decoding and encoding, on a CUDA device: as collective/
// reduction.h, bit for bit. Everything is enqueued.
//
// A call takes all pieces of an operation. Where they are several their list is read by the device, until the
// stream has passed: it lies in its memory, or in pinned memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/cuda/cuda_codec.h"
#include "codec/frames/codec.h"
#include "core/dtype.h"
#include "core/status.h"

namespace geocomm::collective::cuda {

using codec::cuda::Stream;

// Of device memory, aligned to its elements.
struct SumPiece {
  float* sums;
  std::byte* elements;  // of the operation's dtype; where sums are finished, nullptr: they stay
  std::uint64_t count;
};

// sums = (or +=) elements of Float32, Float16 or BFloat16.
core::Status accumulate_elements(core::DType dtype, std::span<const SumPiece> pieces, codec::Accumulate mode,
                                 Stream stream);
// sums /= divisor (unless that is 1); then elements = sums, rounded to `dtype`, a finite sum beyond its range
// to Inf as an addition would. Float32: the elements may be where the sums are.
core::Status finish_sums(core::DType dtype, std::span<const SumPiece> pieces, int divisor, Stream stream);

// Words of device memory to memory that the host reads.
core::Status publish_words(const std::uint64_t* words_dev, std::uint64_t* words, std::uint32_t count,
                           Stream stream);

}  // namespace geocomm::collective::cuda
