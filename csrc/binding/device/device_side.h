// Where the stages of one operation run: on the host, or on a stream of the tensors' device.
//
// CUDA: they are enqueued, and the host waits for nothing (stream_operation.h). Where a stream cannot wait
// for the host (cuda_streams()) the stages run later, on threads, and each ends synchronised (run()).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "binding/device/cuda_streams.h"
#include "binding/operation/stream_operation.h"
#include "binding/torch/comm_error.h"
#include "binding/torch/torch_prelude.h"

namespace geocomm::binding {

// A stream of geocomm's as torch knows it.
c10::Stream own_stream(StreamDriver::Stream stream, const at::Device& device);

// Throws if the stream is being captured.
inline void refuse_capture(const c10::Stream& stream) {
  if (!stream.device().is_cuda() || !is_capturing(stream.native_handle())) return;
  throw_status(core::StatusCode::Unsupported,
               "a collective that crosses sites cannot be captured into a CUDA graph: it waits for the "
               "network. Issue it and wait for it outside, and capture what lies between");
}

class DeviceSide {
 public:
  // On streams that can wait for the host it takes all that an operation needs of the driver; where that has
  // no more, it waits for what an earlier operation gives back.
  DeviceSide(const at::Device& device, core::Deadline deadline) {
    if (device.is_cpu()) return;
    const c10::impl::VirtualGuardImpl impl(device.type());
    const auto current = impl.getStream(device);
    if (device.is_cuda()) {
      const c10::OptionalDeviceGuard guard(device);
      if (DeviceStreams* const streams = cuda_streams()) {
        refuse_capture(current);
        lease_ = std::make_shared<StreamLease>(*streams, deadline);
        if (lease_->stream() == nullptr) {
          throw_status(
              core::StatusCode::Driver,
              "CUDA has no more streams or pinned memory, and no earlier operation ended in time: wait "
              "for some before you issue more");
        }
      }
    }
    stream_ = lease_ ? own_stream(lease_->stream(), device) : impl.getStreamFromGlobalPool(device);
    issued_ = std::make_shared<c10::Event>(device.type());
    issued_->record(current);
  }

  bool is_ordered() const { return lease_ != nullptr; }
  const c10::Stream& stream() const { return *stream_; }
  // Runs what enqueues on stream(). It is never part of a graph that this thread, or another, captures.
  static void run_around(const c10::Stream& stream, const std::function<void()>& enqueue) {
    const BesideCapture beside;
    const c10::StreamGuard guard(stream);
    enqueue();
  }
  // What is enqueued on stream() from now on comes after what the caller's stream held at the beginning.
  void follow_caller() const { issued_->block(*stream_); }
  // On stream(), if is_ordered().
  std::shared_ptr<StreamOperation> operation(OperationId id, core::Deadline deadline,
                                             std::shared_ptr<OperationGroup> group, InnerUse inner) const {
    return StreamOperation::create(
        std::move(id), deadline, std::move(group), lease_, inner,
        [stream = stream()](const std::function<void()>& enqueue) { run_around(stream, enqueue); });
  }
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
  std::shared_ptr<StreamLease> lease_;
  std::optional<c10::Stream> stream_;
  std::shared_ptr<c10::Event> issued_;
};

}  // namespace geocomm::binding
