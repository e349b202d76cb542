#include "codec/simd/partial_sums.h"
#include "collective/sums/feedback_kernels.h"
#include "collective/sums/float_formats_scalar.h"

namespace geocomm::collective {
namespace {

// Calls run(lane, i) for element i: in lanes, so that the loop vectorizes.
template <typename Run>
void for_lanes(std::size_t count, const Run& run) {
  const std::size_t whole = count - count % codec::kSquareSums;
  for (std::size_t i = 0; i < whole; i += codec::kSquareSums) {
    for (std::size_t lane = 0; lane < codec::kSquareSums; ++lane) run(lane, i + lane);
  }
  for (std::size_t i = whole; i < count; ++i) run(i - whole, i);
}

template <typename Format>
void enter_scaled(std::byte* elements, const float* residual, const float* scale, float decay, float* next,
                  std::size_t count, double* squares) {
  for_lanes(count, [&](std::size_t lane, std::size_t i) {
    store_at<Format>(elements, i, load_at<Format>(elements, i) / scale[i]);
    const float lost = residual[i] / scale[i];
    next[i] = lost;
    codec::add_square(squares[lane], load_at<Format>(elements, i) + decay * lost);
  });
}

template <typename Format>
void enter(const std::byte* elements, const float* residual, float decay, float* next, std::size_t count,
           double* squares) {
  for_lanes(count, [&](std::size_t lane, std::size_t i) {
    const float lost = residual[i];
    next[i] = lost;
    codec::add_square(squares[lane], load_at<Format>(elements, i) + decay * lost);
  });
}

template <typename Format>
void divide(const std::byte* src, const float* scale, std::byte* dst, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) store_at<Format>(dst, i, load_at<Format>(src, i) / scale[i]);
}

template <typename Format>
void leave(std::byte* elements, float divisor, const float* scale, std::size_t count, double* scaled,
           double* plain) {
  for_lanes(count, [&](std::size_t lane, std::size_t i) {
    store_at<Format>(elements, i, load_at<Format>(elements, i) / divisor);
    const float mean = load_at<Format>(elements, i);
    codec::add_square(scaled[lane], mean);
    store_at<Format>(elements, i, mean * scale[i]);
    codec::add_square(plain[lane], load_at<Format>(elements, i));
  });
}

template <typename Format>
void square(const std::byte* elements, std::size_t count, double* squares) {
  for_lanes(count, [&](std::size_t lane, std::size_t i) {
    codec::add_square(squares[lane], load_at<Format>(elements, i));
  });
}

template <typename Format>
constexpr FeedbackKernels kKernels = {enter_scaled<Format>, enter<Format>, divide<Format>, leave<Format>,
                                      square<Format>};
}  // namespace

constinit const FeedbackFamily FeedbackFamily::kScalar{kKernels<Float32>, kKernels<Float16>,
                                                       kKernels<BFloat16>};

}  // namespace geocomm::collective
