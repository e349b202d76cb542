#include <immintrin.h>

#include "collective/outer/outer_simd.h"

namespace geocomm::collective {
namespace {

struct Avx2Floats {
  using Floats = __m256;
  static constexpr std::size_t kLanes = 8;
  static Floats load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Floats a) { _mm256_storeu_ps(to, a); }
  static Floats set(float a) { return _mm256_set1_ps(a); }

  class Sums {
   public:
    void add(std::size_t element, Floats values) {
      const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(values));
      const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(values, 1));
      sums_[element / 4] = sums_[element / 4] + low * low;
      sums_[element / 4 + 1] = sums_[element / 4 + 1] + high * high;
    }
    void spill(double* to) const {
      for (std::size_t part = 0; part < kSquareSums / 4; ++part) _mm256_storeu_pd(to + 4 * part, sums_[part]);
    }

   private:
    __m256d sums_[kSquareSums / 4] = {};
  };
};

}  // namespace

constinit const OuterKernels OuterKernels::kAvx2 = kOuterLoops<Avx2Floats>;

}  // namespace geocomm::collective
