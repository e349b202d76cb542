// The group, the device and the program's stream of one rank, for tests of operations on streams.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>

#include "binding/operation/stream_operation.h"
#include "device_model.h"

namespace geocomm::binding {

using core::Status;
using core::StatusCode;
using OperationPtr = std::shared_ptr<StreamOperation>;

struct StatusError : std::runtime_error {
  explicit StatusError(const Status& status) : std::runtime_error(status.to_string()), code(status.code()) {}
  StatusCode code;
};

inline StatusCode code_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const StatusError& e) {
    return e.code;
  } catch (const std::exception&) {
    return StatusCode::Internal;
  }
  return StatusCode::Ok;
}

inline std::exception_ptr end_of(const OperationPtr& operation) {
  operation->end();
  return operation->error();
}

struct ModelGroup final : OperationGroup {
  Status failure() const override { return Status::ok(); }
  void failed(const std::exception_ptr&) override { ++failures; }
  std::exception_ptr to_exception(Status status, const OperationId&) const override {
    return std::make_exception_ptr(StatusError(status));
  }
  std::exception_ptr named(const std::exception_ptr& error, const OperationId&) const override {
    return error;
  }
  std::atomic<int> failures{0};
};

// What a rank has: its device, its place in a group, and a stream that its program computes on.
struct ModelRank {
  explicit ModelRank(std::size_t queues) : device(queues) {}

  // As the program does: behind what the stream `compute` holds.
  OperationPtr issue(
      InnerUse inner, std::function<void(StreamDriver::Stream)> pre = nullptr,
      std::function<void(StreamDriver::Stream)> post = nullptr, const std::function<void()>& submit = [] {}) {
    const auto soon = core::Deadline::after(std::chrono::seconds(20));
    const auto operation =
        StreamOperation::create({}, soon, group, std::make_shared<StreamLease>(streams, soon), inner,
                                [](const std::function<void()>& run) { run(); });
    const auto stream = operation->stream();
    Steps steps;
    steps.pre = [this, stream, pre = std::move(pre)] {
      device.wait(stream, device.record(compute));
      if (pre) pre(stream);
    };
    if (post) steps.post = [stream, post = std::move(post)] { post(stream); };
    operation->set_steps(std::move(steps));
    const auto event = std::make_shared<DeviceModel::Event>();
    operation->when_enqueued(
        [this, stream, event](const std::exception_ptr&) { *event = device.record(stream); });
    finished[operation.get()] = event;
    order.issue(operation, submit);
    return operation;
  }
  // Work::wait(): the host goes on, the stream `compute` waits.
  void wait(const OperationPtr& operation) {
    order.use(operation);
    device.wait(compute, *finished.at(operation.get()));
  }

  DeviceModel device;
  DeviceStreams streams{device};
  EnqueueOrder order;
  StreamDriver::Stream compute = device.create_stream();
  const std::shared_ptr<ModelGroup> group = std::make_shared<ModelGroup>();
  std::map<StreamOperation*, std::shared_ptr<DeviceModel::Event>> finished;
};

}  // namespace geocomm::binding
