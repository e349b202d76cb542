// What a caller's thread may have set for its float instructions, and what must not change a bit.
#pragma once

#include <vector>

#include "core/float_rules.h"

namespace geocomm {

struct FloatCondition {
  const char* name;
  core::FloatControl control;
};

// The default first.
inline std::vector<FloatCondition> float_conditions() {
#if defined(__x86_64__)
  return {{"default", 0x1F80}, {"subnormals flushed", 0x9FC0}, {"rounding up", 0x5F80}, {"to zero", 0x7F80}};
#elif defined(__aarch64__)
  return {{"default", 0}, {"subnormals flushed", 1 << 24}, {"rounding up", 1 << 22}, {"to zero", 3 << 22}};
#else
  return {{"default", 0}};
#endif
}

// For the time of a scope.
class UnderCondition {
 public:
  explicit UnderCondition(const FloatCondition& condition) : before_(core::float_control()) {
    core::set_float_control(condition.control);
  }
  ~UnderCondition() { core::set_float_control(before_); }
  UnderCondition(const UnderCondition&) = delete;
  UnderCondition& operator=(const UnderCondition&) = delete;

 private:
  const core::FloatControl before_;
};

}  // namespace geocomm
