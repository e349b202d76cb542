// The threshold of TopK with Select::Global: found by sampling, and corrected from call to call.
//
// All of it is integer arithmetic or IEEE double, each operation rounded: every machine gets the same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/frames/codec.h"
#include "codec/quantizers/top_k/top_k_sampling.h"
#include "codec/spec/codec_spec.h"
#include "core/dtype.h"

namespace geocomm::codec {

// One threshold for one call, on however many frames.
class GlobalThreshold {
 public:
  // Takes options.threshold where that is a positive finite number; else finds a threshold by looking at some
  // of the elements. `src` and the residual are those of the whole call.
  GlobalThreshold(const CodecSpec& spec, core::DType dtype, const std::byte* src, std::uint64_t elements,
                  const CompressOptions& options);

  // Positive and finite.
  float value() const { return value_; }

  // The threshold for the next call, given how many elements were chosen in this one. 0 if this one, carried
  // from another call, was so far off that the next is to look for itself.
  float corrected(std::uint64_t chosen) const;

 private:
  ThresholdTarget target_;
  std::uint64_t elements_ = 0;
  bool is_carried_ = false;
  float value_ = 0;
};

}  // namespace geocomm::codec
