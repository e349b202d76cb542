#include "codec/frames/elements.h"
#include "codec/simd/partial_sums.h"
#include "collective/sums/feedback_kernels.h"

namespace geocomm::collective {
namespace {

using codec::load_element;
using codec::store_rounded;
using core::DType;

template <DType kType>
void enter_scaled(std::byte* elements, const float* residual, const float* scale, float decay, float* next,
                  std::size_t count, double* squares) {
  codec::for_lanes(count, [&](std::size_t lane, std::size_t i) {
    store_rounded<kType>(elements, i, load_element<kType>(elements, i) / scale[i]);
    const float lost = residual[i] / scale[i];
    next[i] = lost;
    codec::add_square(squares[lane], load_element<kType>(elements, i) + decay * lost);
  });
}

template <DType kType>
void enter(const std::byte* elements, const float* residual, float decay, float* next, std::size_t count,
           double* squares) {
  codec::for_lanes(count, [&](std::size_t lane, std::size_t i) {
    const float lost = residual[i];
    next[i] = lost;
    codec::add_square(squares[lane], load_element<kType>(elements, i) + decay * lost);
  });
}

template <DType kType>
void divide(const std::byte* src, const float* scale, std::byte* dst, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    store_rounded<kType>(dst, i, load_element<kType>(src, i) / scale[i]);
}

template <DType kType>
void leave(std::byte* elements, float divisor, const float* scale, std::size_t count, double* scaled,
           double* plain) {
  codec::for_lanes(count, [&](std::size_t lane, std::size_t i) {
    store_rounded<kType>(elements, i, load_element<kType>(elements, i) / divisor);
    const float mean = load_element<kType>(elements, i);
    codec::add_square(scaled[lane], mean);
    store_rounded<kType>(elements, i, mean * scale[i]);
    codec::add_square(plain[lane], load_element<kType>(elements, i));
  });
}

template <DType kType>
void square(const std::byte* elements, std::size_t count, double* squares) {
  codec::for_lanes(count, [&](std::size_t lane, std::size_t i) {
    codec::add_square(squares[lane], load_element<kType>(elements, i));
  });
}

template <DType kType>
constexpr FeedbackKernels kKernels = {enter_scaled<kType>, enter<kType>, divide<kType>, leave<kType>,
                                      square<kType>};
}  // namespace

constinit const FeedbackFamily FeedbackFamily::kScalar{
    {kKernels<DType::Float32>, kKernels<DType::Float16>, kKernels<DType::BFloat16>}};

}  // namespace geocomm::collective
