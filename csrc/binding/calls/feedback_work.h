// An all-reduce with a codec of the caller's and, where there is one, the caller's residual.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "binding/calls/geo_work.h"
#include "binding/device/device_side.h"
#include "binding/device/host_room.h"
#include "binding/torch/python_thread.h"
#include "binding/torch/staging.h"
#include "collective/run/exchange.h"

namespace geocomm::binding {

// What one operation does with the residual, which it only reads: the new one goes to `next`, which the
// caller gave for it, or to memory of its own, which becomes the caller's as the last thing before the
// operation is done, or not at all. Written by the operation's stages, one after the other; read when the
// Work is done.
//
// On a device the stages are only enqueued. Where the device itself reduces (lend_on_device()) all stays in
// its memory. Else residual and scale are copied to the host in `pre`, and what is copied back in `post` was
// decided by the exchange's thread (decide_on_host()). Either from this rank's part of the result.
class CallerFeedback {
 public:
  // Where the exchange finds what the caller gave: on the CPU the tensors themselves. For the time of the
  // operation.
  struct OnHost {
    at::Tensor residual;
    at::Tensor next;
    at::Tensor scale;
  };

  CallerFeedback(const codec::CodecSpec& codec, float decay, std::optional<at::Tensor> residual,
                 const std::optional<at::Tensor>& next = std::nullopt,
                 std::optional<at::Tensor> scale = std::nullopt)
      : codec_(codec),
        decay_(decay),
        residual_(std::move(residual)),
        scale_(std::move(scale)),
        gave_next_(next.has_value()) {
    if (next) next_ = *next;
  }

  // This outlives the operation.
  collective::CallerCodec caller() { return {codec_, decay_, &report_}; }

  bool has_residual() const { return residual_.has_value(); }
  void append_to(Tensors& tensors) const {
    if (residual_) tensors.push_back(*residual_);
    if (gave_next_) tensors.push_back(next_);
    if (scale_) tensors.push_back(*scale_);
  }

  // `first`: the element of the tensor that the residual begins with.
  OnHost lend(std::vector<collective::StripeData>& stripes, std::uint64_t first) {
    OnHost host;
    if (!residual_) return host;
    lent_ = true;
    if (!gave_next_) next_.reset();
    host.residual = to_host(*residual_);
    if (scale_) host.scale = to_host(*scale_);
    if (gave_next_) {
      host.next = host_room_for(next_);
    } else if (on_device()) {
      host.next = to_host(*residual_);  // what is copied back if there is no exchange
    } else {
      host.next = next_ = at::empty_like(*residual_);
    }
    lend(stripes, first, host.residual, host.next, host.scale);
    return host;
  }
  // In the memory of the device, on which the operation is carried out, unless lend() comes next.
  void lend_on_device(std::vector<collective::StripeData>& stripes, std::uint64_t first) {
    if (!gave_next_) next_ = at::empty_like(*residual_);
    lend(stripes, first, *residual_, next_, scale_.value_or(at::Tensor()));
  }
  bool gave_next() const { return gave_next_; }
  // Once the device has passed the operation.
  void ended_on_device(const collective::FeedbackReport& report, bool committed) {
    const std::uint64_t wire_bytes = report_.wire_bytes;  // the exchange's
    report_ = report;
    report_.wire_bytes = wire_bytes;
    committed_ = committed;
    if (!gave_next_) next_.reset();
  }

  // On a device, in place of commit(): after the exchange, on its thread; and behind it, on the stream.
  void decide_on_host(const OnHost& host, bool succeeded) {
    if (!lent_) return;
    committed_ = succeeded && is_finite();
    if (!committed_) host.next.copy_(host.residual);
  }
  void copy_back(const OnHost& host) const {
    if (lent_) from_host(gave_next_ ? next_ : *residual_, host.next);
  }

  // The result, if it is not what the report has: all of it, or none where that is not on the host.
  void set_result(core::DType dtype, std::span<const std::byte> result) {
    report_.result_square = collective::square_of(dtype, result);
  }

  // Where the result is not finite no rank commits, since all have the same.
  void commit() {
    if (!residual_) return;
    if (lent_ && !is_finite()) return;
    if (lent_ && !gave_next_) residual_->copy_(next_);
    if (!lent_ && gave_next_) next_.copy_(*residual_);
    next_.reset();
    committed_ = true;
  }

  const collective::FeedbackReport& report() const { return report_; }
  bool committed() const { return committed_; }

 private:
  static void lend(std::vector<collective::StripeData>& stripes, std::uint64_t first,
                   const at::Tensor& residual, const at::Tensor& next, const at::Tensor& scale) {
    const collective::FeedbackSpans all{floats_of(residual), floats_of(next),
                                        scale.defined() ? floats_of(scale) : std::span<float>{}};
    for (collective::StripeData& stripe : stripes) {
      stripe.feedback = all.part(stripe.stripe.range.begin - first, stripe.stripe.range.size());
    }
  }
  bool on_device() const { return !residual_->device().is_cpu(); }
  bool is_finite() const {
    return std::isfinite(report_.input_square) && std::isfinite(report_.result_square);
  }
  static std::span<float> floats_of(const at::Tensor& tensor) {
    return {static_cast<float*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel())};
  }

  const codec::CodecSpec codec_;
  const float decay_;
  const std::optional<at::Tensor> residual_;
  const std::optional<at::Tensor> scale_;
  const bool gave_next_;
  at::Tensor next_;
  collective::FeedbackReport report_;
  bool lent_ = false;
  bool committed_ = false;
};

// The Work of that operation: `work` is what carries it out.
class FeedbackWork final : public c10d::Work {
 public:
  FeedbackWork(WorkPtr work, std::shared_ptr<const CallerFeedback> feedback)
      : work_(std::move(work)), feedback_(std::move(feedback)) {}
  // Python may be the last to let go.
  ~FeedbackWork() override {
    const GilRelease released;
    work_.reset();
  }

  // Blocks the host until the operation has ended. On a GPU that is later than what wait() waits for.
  bool succeeded() const {
    const GilRelease released;
    if (auto* const own = dynamic_cast<GeoWork*>(work_.get())) return !own->wait_for_end();
    nap_until([&] { return work_->isCompleted(); });
    return !work_->exception();
  }
  // Only when the operation is done: what became of the residual. On a GPU it blocks until then.
  const CallerFeedback& feedback() const {
    const auto* const own = dynamic_cast<GeoWork*>(work_.get());
    if (own != nullptr && own->is_on_stream()) succeeded();
    if (!work_->isCompleted()) {
      throw_status(core::StatusCode::InvalidArgument,
                   "feedback() before the operation is done: wait() first");
    }
    return *feedback_;
  }

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  Tensors result() override { return work_->result(); }
  void synchronize() override { work_->synchronize(); }
  bool wait(std::chrono::milliseconds timeout) override { return work_->wait(timeout); }
  void blockCurrentStream() override { work_->blockCurrentStream(); }
  void abort() override { work_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return work_->getFuture(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return work_->getFutureResult(); }
  float getDuration() const override { return work_->getDuration(); }
  std::uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }

 private:
  WorkPtr work_;
  const std::shared_ptr<const CallerFeedback> feedback_;
};

}  // namespace geocomm::binding
