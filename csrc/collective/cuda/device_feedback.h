// How error feedback of a reduction ends on a CUDA device (collective/sums/feedback.h): results and residuals
// leave the units of the scales, and the new residual is kept where the result is finite. Everything is
// enqueued.
//
// Residuals and results have the bits of the host. Squares are sums of the same terms in another order, which
// depends on the elements alone; they too are finite exactly where all terms are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "collective/cuda/device_sums.h"

namespace geocomm::collective::cuda {

// Of one chunk, in device memory.
struct FeedbackPiece {
  const float* sums;      // its result: Float32, in units of the scales
  std::byte* elements;    // takes it, in the operation's dtype; may be where the sums are (Float32)
  const float* previous;  // the residual before
  float* next;            // what the codec left, times `unit` in units of the sum, in those of the scales
  const float* scale;     // or nullptr: 1
  std::uint64_t count;
  float divisor;  // of the result; 1: it has been divided
  float unit;
};

// What the host learns. In pinned memory.
struct FeedbackTotals {
  double input_square;  // see FeedbackReport
  double residual_square;
  double scaled_square;
  double result_square;
  std::uint32_t succeeded;  // by the host, before the stream comes here: not 0 if the exchange did
  std::uint32_t committed;  // not 0: `next` is the new residual
};

struct FeedbackEnd {
  Publication verdicts;             // not 0: what was received did not decode
  const double* input_squares_dev;  // of BatchFeedback, of those that contribute, then of those that own
  std::uint32_t contribution_tiles;
  std::uint32_t result_tiles;
  double result_unit;       // what squares of the latter are multiplied by
  double* squares_dev;      // room for feedback_square_count()
  std::uint32_t* turn_dev;  // 0; then whether it was committed
  FeedbackTotals* totals;
  bool restores;  // where it is not committed, `next` becomes the residual before
};

std::size_t feedback_square_count(std::span<const FeedbackPiece> pieces);
core::Status end_feedback(core::DType dtype, std::span<const FeedbackPiece> pieces, const FeedbackEnd& end,
                          Stream stream);
// Then: the residuals before become the new ones, if it was committed.
core::Status replace_residuals(std::span<const FeedbackPiece> pieces, const std::uint32_t* committed_dev,
                               Stream stream);

}  // namespace geocomm::collective::cuda
