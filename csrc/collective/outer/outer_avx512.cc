#include <immintrin.h>

#include "collective/outer/outer_simd.h"

namespace geocomm::collective {
namespace {

struct Avx512Floats {
  using Floats = __m512;
  static constexpr std::size_t kLanes = 16;
  static Floats load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Floats a) { _mm512_storeu_ps(to, a); }
  static Floats set(float a) { return _mm512_set1_ps(a); }

  class Sums {
   public:
    void add(std::size_t /*element*/, Floats values) {
      const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(values));
      const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(values, 1));
      sums_[0] = sums_[0] + low * low;
      sums_[1] = sums_[1] + high * high;
    }
    void spill(double* to) const {
      _mm512_storeu_pd(to, sums_[0]);
      _mm512_storeu_pd(to + 8, sums_[1]);
    }

   private:
    __m512d sums_[2] = {};
  };
};

}  // namespace

constinit const OuterKernels OuterKernels::kAvx512 = kOuterLoops<Avx512Floats>;

}  // namespace geocomm::collective
