#include "binding/device/cuda/kernel_images.h"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "binding/device/cuda_streams.h"
#include "binding/torch/torch_prelude.h"
#include "codec/cuda/kernel_loading.h"
#include "core/log.h"

namespace geocomm::binding {

bool has_kernels(const std::string& key, const std::function<void()>& starts) {
  static std::mutex mutex;
  static std::map<std::pair<int, std::string>, bool> known;
  static std::set<int> warned;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  std::lock_guard lock(mutex);
  const auto found = known.find({device, key});
  if (found != known.end()) return found->second;
  bool loaded = true;
  try {
    const BesideCapture beside;
    const codec::cuda::LoadsOnly loads;
    starts();
  } catch (const c10::OutOfMemoryError&) {
    return false;  // of the tensors that it works in; the next time there may be room
  } catch (const std::exception& e) {
    loaded = false;
    if (warned.insert(device).second) {
      core::log(
          core::LogLevel::Warning, "CUDA device ", device,
          " cannot run the kernels of this build, so the CPU compresses its tensors: geocomm doctor says "
          "how to build them for it (",
          e.what(), ")");
    }
  }
  known.emplace(std::pair(device, key), loaded);
  return loaded;
}

}  // namespace geocomm::binding
