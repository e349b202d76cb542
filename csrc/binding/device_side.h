// Where the stages of one operation run: on the host, or on a stream of the tensors' device.
//
// CUDA: everything is enqueued when the operation is issued, and the host waits for nothing
// (StreamOperation). Where a stream cannot wait for the host (StreamGate::is_supported()) the stages run
// later, on threads, and each ends synchronised (run()).
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "binding/comm_error.h"
#include "binding/stream_gate.h"
#include "binding/torch_prelude.h"

namespace geocomm::binding {

// Neither spins nor holds a lock of the driver.
template <typename F>
void nap_until(F&& is_done) {
  constexpr std::chrono::microseconds kFirstNap{20};
  constexpr std::chrono::microseconds kLongestNap{500};
  for (auto nap = kFirstNap; !is_done(); nap = std::min(nap * 2, kLongestNap)) {
    std::this_thread::sleep_for(nap);
  }
}
// Until the device has passed the event.
inline void wait_on_host(const c10::Event& event) {
  nap_until([&] { return event.query(); });
}

// One operation of which everything is enqueued on a stream when it is issued:
//
//   stream:  pre · ready │gate│ post · finish
//   host:               exchange, opens the gate
//
// The exchange is handed to its thread before the gate is closed: whatever makes the device wait for itself
// from then on (an allocation, an inner backend that connects) finds it on its way. The exchange itself needs
// nothing of the device but that `ready` passes.
class StreamOperation {
 public:
  explicit StreamOperation(const c10::Stream& stream)
      : stream_(stream), ready_(stream.device_type()), finish_(stream.device_type()) {
    for (auto& gate : gates_) {
      gate = StreamGate::create();
      if (!gate)
        throw_status(core::StatusCode::Driver, "no pinned memory is left for CUDA streams to wait on");
    }
  }
  ~StreamOperation() { open(); }
  StreamOperation(const StreamOperation&) = delete;
  StreamOperation& operator=(const StreamOperation&) = delete;

  // The operation that this thread is enqueueing, else nullptr.
  static StreamOperation*& current() {
    thread_local StreamOperation* operation = nullptr;
    return operation;
  }

  const c10::Stream& stream() const { return stream_; }
  static constexpr std::size_t kGates = 2;
  StreamGate& gate(std::size_t index) { return *gates_[index]; }
  void close(std::size_t gate_index) {
    if (gates_[gate_index]->enqueue(stream_.native_handle())) return;
    throw_status(core::StatusCode::Driver, "CUDA refused to make a stream wait for the host");
  }

  // By the thread that enqueues, in this order, once each. `error`: what stopped it.
  void mark_ready() { ready_.record(stream_); }
  void mark_finish(std::exception_ptr error) {
    finish_.record(stream_);
    std::lock_guard lock(mutex_);
    error_ = std::move(error);
    enqueued_ = true;
    changed_.notify_all();
  }

  // Before mark_finish(). `memory` is let go once the device has passed `finish`; `check` is asked then
  // whether what the device did was sound.
  void hold(std::shared_ptr<void> memory) { held_.push_back(std::move(memory)); }
  void check_at_end(std::function<core::Status()> check) { check_ = std::move(check); }

  // What stopped the enqueueing, if anything did.
  std::exception_ptr error() {
    std::lock_guard lock(mutex_);
    return error_;
  }

  // By threads that may block. Runs the exchange once `ready` has passed, then opens all gates.
  core::Status run(const std::function<core::Status()>& exchange) {
    wait_on_host(ready_);
    core::Status status = exchange ? exchange() : core::Status::ok();
    open();
    return status;
  }
  // After run(), or instead of it: opens the gates and waits for `finish`.
  std::exception_ptr end(std::exception_ptr failure) {
    open();
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return enqueued_; });
      if (error_ && !failure) failure = error_;
    }
    try {
      wait_on_host(finish_);
      if (!failure && check_) throw_if_error(check_());
    } catch (...) {  // a kernel, anybody's, has failed; or what was received does not decode
      if (!failure) failure = std::current_exception();
    }
    held_.clear();
    return failure;
  }
  void open() {
    for (const auto& gate : gates_) {
      if (gate) gate->open();
    }
  }

 private:
  const c10::Stream stream_;
  std::array<std::shared_ptr<StreamGate>, kGates> gates_;
  c10::Event ready_;
  c10::Event finish_;
  std::vector<std::shared_ptr<void>> held_;
  std::function<core::Status()> check_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  bool enqueued_ = false;
  std::exception_ptr error_;
};

class DeviceSide {
 public:
  explicit DeviceSide(const at::Device& device) {
    if (device.is_cpu()) return;
    const c10::impl::VirtualGuardImpl impl(device.type());
    const auto current = impl.getStream(device);
    if (device.is_cuda()) {
      const c10::OptionalDeviceGuard guard(device);
      ordered_ = StreamGate::is_supported();
      if (ordered_ && StreamGate::is_capturing(current.native_handle())) {
        throw_status(core::StatusCode::Unsupported,
                     "a collective that crosses sites cannot be captured into a CUDA graph: it waits for the "
                     "network. Capture what lies between the collectives");
      }
    }
    stream_ = impl.getStreamFromGlobalPool(device);
    issued_ = std::make_shared<c10::Event>(device.type());
    issued_->record(current);
  }

  bool is_ordered() const { return ordered_; }
  const c10::Stream& stream() const { return *stream_; }
  // What is enqueued on stream() from now on comes after what the caller's stream held at the beginning.
  void follow_caller() const { issued_->block(*stream_); }
  // The allocator may give a tensor's memory away only when stream() has passed this point, too.
  void keep_for_stream(const Tensors& tensors) const {
    const c10::impl::VirtualGuardImpl impl(stream_->device_type());
    for (const auto& tensor : tensors) {
      if (tensor.defined() && tensor.device() == stream_->device()) {
        impl.recordDataPtrOnStream(tensor.storage().data_ptr(), *stream_);
      }
    }
  }

  // Runs a stage on this thread; the host may read and write what it left.
  template <typename F>
  void run(F&& stage) const {
    if (!stream_) {
      stage();
      return;
    }
    const c10::StreamGuard guard(*stream_);
    issued_->block(*stream_);
    stage();
    stream_->synchronize();
  }

 private:
  bool ordered_ = false;
  std::optional<c10::Stream> stream_;
  std::shared_ptr<c10::Event> issued_;
};

}  // namespace geocomm::binding
