// What a reduction over the sites does between decoding and encoding, on a CUDA device: as collective/sums,
// bit for bit. Everything is enqueued.
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
#include "core/host_device.h"
#include "core/status.h"

namespace geocomm::collective::cuda {

using codec::cuda::Stream;

// Of device memory, aligned to its elements.
struct SumPiece {
  float* sums;
  std::byte* elements;  // of the operation's dtype; where sums are finished, nullptr: they stay
  std::uint64_t count;
  const float* scale = nullptr;  // that elements are divided by before they are added; nullptr: 1
};

// Words of device memory, final before the kernel begins, that it copies to memory which the host reads.
struct Publication {
  const std::uint64_t* words_dev = nullptr;
  std::uint64_t* words = nullptr;
  std::uint32_t count = 0;

#if defined(__CUDACC__) || defined(GEOCOMM_SIMT)
  __device__ void publish() const {
    if (blockIdx.x > 0 || threadIdx.x > 0) return;
    for (std::uint32_t i = 0; i < count; ++i) words[i] = words_dev[i];
  }
#endif
};

// sums = (or +=) elements of Float32, Float16 or BFloat16.
core::Status accumulate_elements(core::DType dtype, std::span<const SumPiece> pieces, codec::Accumulate mode,
                                 Stream stream);
// sums /= divisor (unless that is 1); then elements = sums, rounded to `dtype`, a finite sum beyond its range
// to Inf as an addition would. Float32: the elements may be where the sums are.
core::Status finish_sums(core::DType dtype, std::span<const SumPiece> pieces, int divisor,
                         const Publication& publication, Stream stream);

}  // namespace geocomm::collective::cuda
