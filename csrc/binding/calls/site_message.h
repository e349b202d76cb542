// The Work of a send or a receive inside a site. Gloo's has no Future, and learns that it is done only where
// somebody waits for it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "binding/calls/geo_work.h"
#include "binding/operation/executors.h"
#include "binding/torch/comm_error.h"

namespace geocomm::binding {

// wait() alone costs what the inner Work costs. With the first other question, a thread waits for it.
class SiteMessage final : public Completing {
 public:
  // `then` runs once, when `inner` has succeeded, before anyone learns of it.
  SiteMessage(int rank, c10d::OpType type, const at::Tensor& tensor, WorkPtr inner,
              std::function<void()> then, std::shared_ptr<ExposedTime> exposed)
      : Completing(rank, type),
        tensor_(tensor),
        message_(std::make_shared<Message>(std::move(inner), std::move(then), completion_)),
        exposed_(std::move(exposed)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    if (auto work = joined_if_any()) return work->wait(timeout);
    if (Work::isCompleted()) return Work::wait(timeout);
    try {
      message_->finish(timeout);
    } catch (...) {
      finishAndThrow(std::current_exception());
    }
    finish();
    return true;
  }
  bool isCompleted() override {
    if (Work::isCompleted()) return true;
    // Torch's flight recorder takes each message's key when it is issued, and asks once: no thread for that.
    if (key_taken_.exchange(false)) return false;
    return joined()->isCompleted();
  }
#if GEOCOMM_TORCH_SINCE(15)
  std::uint64_t getCompletionKey() const override {
    key_taken_ = true;
    return Completing::getCompletionKey();
  }
#endif
  bool isSuccess() const override {
    const auto work = joined_if_any();
    return work ? work->isSuccess() : Work::isSuccess();
  }
  std::exception_ptr exception() const override {
    const auto work = joined_if_any();
    return work ? work->exception() : Work::exception();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return joined()->getFuture(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return joined()->getFutureResult(); }
  Tensors result() override { return {tensor_}; }
  int sourceRank() const override { return message_->inner->sourceRank(); }
  void blockCurrentStream() override { wait(kNoTimeout); }
  void abort() override { message_->inner->abort(); }

 private:
  struct Message {
    Message(WorkPtr work, std::function<void()> last, std::shared_ptr<Completion> done)
        : inner(std::move(work)), completion(std::move(done)), then(std::move(last)) {}
    // Throws what the inner Work throws. A second thread waits for the first.
    void finish(std::chrono::milliseconds timeout) {
      std::lock_guard lock(mutex);
      if (finished) return;
      inner->wait(timeout);
      if (then) std::exchange(then, nullptr)();
      finished = true;
      completion->succeeded();
    }

    const WorkPtr inner;
    const std::shared_ptr<Completion> completion;
    std::mutex mutex;  // guards all below
    std::function<void()> then;
    bool finished = false;
  };

  c10::intrusive_ptr<GeoWork> joined_if_any() const {
    std::lock_guard lock(joined_mutex_);
    return joined_;
  }
  c10::intrusive_ptr<GeoWork> joined() {
    std::lock_guard lock(joined_mutex_);
    if (!joined_) {
      joined_ =
          c10::make_intrusive<GeoWork>(rank_, opType_, nullptr, 0, Tensors{}, Tensors{tensor_}, exposed_);
      if (const core::Status kept = blocking_executor().keep_one(); !kept.is_ok()) {
        joined_->complete(to_exception(kept));
        return joined_;
      }
      blocking_executor().post([work = joined_, message = message_]() mutable {
        std::exception_ptr error;
        try {
          message->finish(kNoTimeout);
        } catch (...) {
          error = std::current_exception();
        }
        message = nullptr;
        work->complete(error);
        blocking_executor().keep_no_more();
      });
    }
    return joined_;
  }

  const at::Tensor tensor_;
  const std::shared_ptr<Message> message_;
  const std::shared_ptr<ExposedTime> exposed_;
  mutable std::mutex joined_mutex_;  // guards joined_
  c10::intrusive_ptr<GeoWork> joined_;
  mutable std::atomic<bool> key_taken_{false};
};

}  // namespace geocomm::binding
