#include "binding/stream_gate.h"

#ifdef GEOCOMM_WITH_CUDA

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

namespace geocomm::binding {
namespace {

using WaitValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

// The driver is there whenever a device is; it is asked for by name, so that the module loads without.
WaitValue wait_value() {
  static const WaitValue function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    constexpr unsigned kSinceCuda = 12000;
    if (cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, kSinceCuda, cudaEnableDefault,
                                         &result) != cudaSuccess ||
        result != cudaDriverEntryPointSuccess) {
      (void)cudaGetLastError();
      return WaitValue{nullptr};
    }
    return reinterpret_cast<WaitValue>(found);
  }();
  return function;
}

// Words that gates wait for, 64 bytes apart. A word only ever grows, so it can serve the next gate while a
// stream has not looked at it yet.
class Words {
 public:
  struct Word {
    std::uint32_t* address = nullptr;
    std::uint32_t next = 1;
  };

  static Words& instance() {
    static auto* words = new Words;  // never freed: the driver may be gone by then
    return *words;
  }

  // nullptr address: no pinned memory.
  Word take() {
    std::lock_guard lock(mutex_);
    if (free_.empty()) grow();
    if (free_.empty()) return {};
    Word word = free_.back();
    free_.pop_back();
    return word;
  }

  void give_back(Word word) {
    std::lock_guard lock(mutex_);
    free_.push_back(word);
  }

 private:
  void grow() {
    constexpr std::size_t kWords = 256;
    constexpr std::size_t kStride = 64 / sizeof(std::uint32_t);
    void* memory = nullptr;
    const unsigned flags = cudaHostAllocPortable | cudaHostAllocMapped;
    if (cudaHostAlloc(&memory, kWords * kStride * sizeof(std::uint32_t), flags) != cudaSuccess) {
      (void)cudaGetLastError();
      return;
    }
    auto* first = static_cast<std::uint32_t*>(memory);
    for (std::size_t i = 0; i < kWords; ++i) {
      first[i * kStride] = 0;
      free_.push_back({first + i * kStride});
    }
  }

  std::mutex mutex_;  // guards free_
  std::vector<Word> free_;
};

bool enqueue_wait(void* stream, std::uint32_t* word, std::uint32_t value) {
  const WaitValue wait = wait_value();
  if (wait == nullptr) return false;
  // Unified addressing: the host's address of pinned memory is the device's. "Reached" is a signed distance,
  // so the count may wrap around.
  return wait(static_cast<CUstream>(stream), reinterpret_cast<CUdeviceptr>(word), value,
              CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS;
}

}  // namespace

bool StreamGate::is_supported() {
  static std::mutex mutex;
  static std::map<int, bool> known;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  std::lock_guard lock(mutex);
  const auto found = known.find(device);
  if (found != known.end()) return found->second;
  // A gate that is open already, on a stream of its own.
  bool works = false;
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess) {
    const Words::Word word = Words::instance().take();
    if (word.address != nullptr) {
      works = enqueue_wait(stream, word.address, *word.address);
      Words::instance().give_back(word);
    }
    (void)cudaStreamDestroy(stream);
  }
  (void)cudaGetLastError();
  known[device] = works;
  return works;
}

std::shared_ptr<StreamGate> StreamGate::create() {
  const Words::Word word = Words::instance().take();
  if (word.address == nullptr) return nullptr;
  return std::shared_ptr<StreamGate>(new StreamGate(word.address, word.next));
}

bool StreamGate::enqueue(void* stream) {
  return enqueue_wait(stream, word_, value_);
}

bool StreamGate::is_capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

void StreamGate::open() {
  // What the device is to see behind the gate was written before.
  std::atomic_ref<std::uint32_t>(*word_).store(value_, std::memory_order_release);
}

StreamGate::~StreamGate() {
  open();
  Words::instance().give_back({word_, value_ + 1});
}

}  // namespace geocomm::binding

#else

namespace geocomm::binding {

bool StreamGate::is_supported() {
  return false;
}
std::shared_ptr<StreamGate> StreamGate::create() {
  return nullptr;
}
bool StreamGate::enqueue(void*) {
  return false;
}
bool StreamGate::is_capturing(void*) {
  return false;
}
void StreamGate::open() {}
StreamGate::~StreamGate() = default;

}  // namespace geocomm::binding

#endif
