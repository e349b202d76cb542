// The arithmetic that docs/spec/codecs.md promises: round to nearest even, subnormals kept, no traps.
//
// Threads inherit other settings: of torch.set_flush_denormal(True), of a library linked with -ffast-math, of
// fesetround(). With them a rank would get other sums and other frames than its peers.
#pragma once

#include <cstdint>

namespace geocomm::core {

// The register of this thread that holds the rounding mode and what becomes of subnormals: MXCSR on x86-64,
// FPCR on arm64. Other architectures: always 0.
using FloatControl = std::uint64_t;

// The assembly is a barrier to memory: what is loaded after it is computed after it.
inline FloatControl float_control() {
#if defined(__x86_64__)
  std::uint32_t word = 0;
  asm volatile("stmxcsr %0" : "=m"(word) : : "memory");
  return word;
#elif defined(__aarch64__)
  FloatControl word = 0;
  asm volatile("mrs %0, fpcr" : "=r"(word) : : "memory");
  return word;
#else
  return 0;
#endif
}

inline void set_float_control([[maybe_unused]] FloatControl control) {
#if defined(__x86_64__)
  const auto word = static_cast<std::uint32_t>(control);
  asm volatile("ldmxcsr %0" : : "m"(word) : "memory");
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(control) : "memory");
#endif
}

// Sets the rules for the calling thread, and at the end of the scope what was there before. Every public
// function that computes with floats has one, and so has every thread that does. A few nanoseconds.
class FloatRules {
 public:
  FloatRules() : before_(float_control()) {
    if (!is_kept()) set_float_control(kRules);
  }
  ~FloatRules() {
    if (!is_kept()) set_float_control(before_);
  }
  FloatRules(const FloatRules&) = delete;
  FloatRules& operator=(const FloatRules&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr FloatControl kRules = 0x1F80;  // all exceptions masked
  static constexpr FloatControl kSticky = 0x3F;   // exceptions that have been
#else
  static constexpr FloatControl kRules = 0;
  static constexpr FloatControl kSticky = 0;
#endif
  bool is_kept() const { return (before_ & ~kSticky) == kRules; }

  const FloatControl before_;
};

}  // namespace geocomm::core
