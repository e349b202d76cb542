// Lossless on the device. A payload is mode | high | low | bitmap | lower high | lower low. The lower halves
// that are not zero are brought together from runs of elements, a warp each; a scan over the frame says where
// a run's begin.
#pragma once

#include <cstdint>

#include "codec/cuda/kernels.h"
#include "codec/cuda/section_space.h"
#include "core/dtype.h"
#include "core/status.h"

namespace geocomm::codec::cuda {

enum LosslessSection : std::uint32_t {
  kMode,
  kHigh,
  kLow,
  kLowerBitmap,
  kLowerHigh,
  kLowerLow,
  kLosslessSections
};

// The mode: which lower halves of words of 32 bits are carried.
enum class LowerHalves : std::uint8_t { None = 0, NotZero = 1, All = 2 };

inline constexpr std::uint32_t kRunElements = 1024;

struct LosslessSpace {
  SectionSpace sections;
  std::uint32_t* runs;  // lower halves carried: of the run, then, of those before it in its frame
  std::uint32_t runs_per_frame;
};

// Encoding: the planes of the upper halves (or of 16 bits), and the bitmap; then all sections, those of the
// lower halves as the mode has it. With a residual all frames become ones of None.
core::Status split_words(core::DType dtype, const ElementEncode& args, const LosslessSpace& space,
                         Stream stream);
core::Status split_lower_halves(core::DType dtype, const ElementEncode& args, const LosslessSpace& space,
                                Stream stream);

// Decoding: checks the mode, and finds the sections before `end`, from which on the bitmap will say the
// sizes.
core::Status walk_lossless_sections(const Decode& args, const LosslessSpace& space, std::uint32_t end,
                                    Stream stream);
// The bitmap is there: checks it, and finds the rest.
core::Status count_lower_halves(const Decode& args, const LosslessSpace& space, Stream stream);
// All is there.
core::Status join_words(const Decode& args, const LosslessSpace& space, Stream stream);

}  // namespace geocomm::codec::cuda
