// The rms of an input of any length, for DeadZone with Scale::Tensor. Blocks of kMaxBlock are summed as
// DeadZoneKernels says, their sums in double in order of the blocks: every machine gets the same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/frames/codec.h"
#include "core/dtype.h"

namespace geocomm::codec {

struct SquareSum {
  double sum = 0;
  std::uint64_t elements = 0;

  float rms() const;
};

// Of input + decay * residual; blocks with NaN or Inf, which go raw, do not count.
SquareSum sum_squares(core::DType dtype, const std::byte* src, std::size_t elements,
                      const ErrorFeedback& feedback);

}  // namespace geocomm::codec
