// Kernels are loaded when they are first started, which may wait for all that the device has been given:
// behind a closed gate, for another site. So they are loaded before.
#pragma once

namespace geocomm::codec::cuda {

// While it lives, what this thread starts is loaded and not run: the kernels' arguments are not looked at.
// Driver, where the device is none that this build has kernels for.
class LoadsOnly {
 public:
  LoadsOnly() { ++count_; }
  ~LoadsOnly() { --count_; }
  LoadsOnly(const LoadsOnly&) = delete;
  LoadsOnly& operator=(const LoadsOnly&) = delete;

  static bool is_on() { return count_ > 0; }

 private:
  static inline thread_local int count_ = 0;
};

}  // namespace geocomm::codec::cuda
