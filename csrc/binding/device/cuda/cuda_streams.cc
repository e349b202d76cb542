#include "binding/device/cuda_streams.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <map>
#include <mutex>

namespace geocomm::binding {
namespace {

// The driver is there whenever a device is; it is asked for by name, so that the module loads without.
template <typename Function>
Function driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned kSinceCuda = 12000;
  if (cudaGetDriverEntryPointByVersion(name, &found, kSinceCuda, cudaEnableDefault, &result) != cudaSuccess ||
      result != cudaDriverEntryPointSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  return reinterpret_cast<Function>(found);
}

using StreamValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

// Unified addressing: the host's address of pinned memory is the device's.
CUdeviceptr device_address(const std::uint32_t* word) {
  return reinterpret_cast<CUdeviceptr>(word);
}

class CudaDriver final : public StreamDriver {
 public:
  explicit CudaDriver(int device) : device_(device) {}

  // Of the highest priority: a stage is short, and other sites wait for it. Not ordered behind the default
  // stream, as most streams are not.
  Stream create_stream() override {
    int least = 0;
    int greatest = 0;
    cudaStream_t stream = nullptr;
    if (cudaDeviceGetStreamPriorityRange(&least, &greatest) != cudaSuccess ||
        cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest) != cudaSuccess) {
      (void)cudaGetLastError();
      return nullptr;
    }
    return stream;
  }
  std::byte* allocate_pinned(std::size_t bytes) override {
    void* memory = nullptr;
    if (cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess) {
      (void)cudaGetLastError();
      return nullptr;
    }
    return static_cast<std::byte*>(memory);
  }
  // A thread of geocomm's own calls it, which has no device yet.
  void free_pinned(std::byte* memory) override {
    const BesideCapture beside;
    if (cudaSetDevice(device_) == cudaSuccess) (void)cudaFreeHost(memory);
    (void)cudaGetLastError();
  }
  bool enqueue_wait(Stream stream, const std::uint32_t* word, std::uint32_t value) override {
    static const auto wait = driver_function<StreamValue>("cuStreamWaitValue32");
    return wait != nullptr && wait(static_cast<CUstream>(stream), device_address(word), value,
                                   CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS;
  }
  bool enqueue_write(Stream stream, std::uint32_t* word, std::uint32_t value) override {
    static const auto write = driver_function<StreamValue>("cuStreamWriteValue32");
    return write != nullptr && write(static_cast<CUstream>(stream), device_address(word), value,
                                     CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS;
  }
  bool has_failed(Stream stream) override {
    const BesideCapture beside;
    const cudaError_t state = cudaStreamQuery(static_cast<cudaStream_t>(stream));
    (void)cudaGetLastError();
    return state != cudaSuccess && state != cudaErrorNotReady;
  }

 private:
  const int device_;
};

// By a gate that is open and a signal, on the stream and words that the first operation takes then: from then
// on there is one slot, for which others can wait.
bool works(DeviceStreams& device) {
  const StreamLease lease(device, core::Deadline::after(std::chrono::milliseconds(0)));
  if (lease.stream() == nullptr) return false;
  StreamGate gate(lease, StreamWord::Over);
  StreamSignal signal(lease, StreamWord::Finish);
  gate.open();
  const bool enqueued = gate.enqueue() && signal.enqueue();
  return cudaStreamSynchronize(static_cast<cudaStream_t>(lease.stream())) == cudaSuccess && enqueued &&
         signal.is_given();
}

}  // namespace

DeviceStreams* cuda_streams() {
  static std::mutex mutex;
  static auto* known = new std::map<int, DeviceStreams*>;  // never freed: the real driver may be gone by then
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return nullptr;
  std::lock_guard lock(mutex);
  const auto found = known->find(device);
  if (found != known->end()) return found->second;
  auto* streams = new DeviceStreams(*new CudaDriver(device));
  const BesideCapture beside;
  if (!works(*streams)) streams = nullptr;
  (void)cudaGetLastError();
  known->emplace(device, streams);
  return streams;
}

bool is_capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

BesideCapture::BesideCapture() : mode_(cudaStreamCaptureModeRelaxed) {
  auto mode = cudaStreamCaptureModeRelaxed;
  if (cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess) mode_ = mode;
}

BesideCapture::~BesideCapture() {
  auto mode = static_cast<cudaStreamCaptureMode>(mode_);
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
}

}  // namespace geocomm::binding
