// Where lossy reductions of CUDA tensors are coded, as measured (geocomm/group/planning/coding_place.py): on
// the device, or on the host. Both give the same bytes, so that ranks may differ. Knows nothing of torch.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace geocomm::binding {

// Thread-safe.
class CodingPlaces {
 public:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  // The device codes operations of at least so many bytes of this rank's elements.
  void set_least_bytes(const std::string& codec, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    least_bytes_[codec] = bytes;
  }
  // A codec that nobody has measured is coded where the tensors are.
  bool is_on_device(const std::string& codec, std::uint64_t bytes) const {
    const std::lock_guard lock(mutex_);
    const auto found = least_bytes_.find(codec);
    return found == least_bytes_.end() || (found->second != kNever && bytes >= found->second);
  }

 private:
  mutable std::mutex mutex_;  // guards least_bytes_
  std::map<std::string, std::uint64_t> least_bytes_;
};

}  // namespace geocomm::binding
