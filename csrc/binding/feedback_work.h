// An all-reduce with a codec of the caller's and, where there is one, the caller's residual.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "binding/gil_release.h"
#include "binding/staging.h"
#include "collective/exchange.h"

namespace geocomm::binding {

// What one operation does with the residual. It works on another tensor than the caller's: on `next`, which
// the caller gave to take the new residual, or on a copy, which becomes the caller's as the last thing before
// the operation is done, or not at all. Written by the operation's stages, one after the other; read when the
// Work is done.
class CallerFeedback {
 public:
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

  // What is encoded is in units of the caller's scales: `part`, this rank's of the tensor, to them and back.
  void divide(const at::Tensor& part) const {
    if (scale_) part.narrow(0, 0, scale_->numel()).div_(*scale_);
  }
  void multiply(const at::Tensor& part) {
    if (!scale_) return;
    const auto own = part.narrow(0, 0, scale_->numel());
    scaled_square_ = collective::square_of(moved_dtype(own.scalar_type()), bytes_of(own));
    own.mul_(*scale_);
  }

  // `first`: the element of the tensor that the residual begins with.
  void lend(std::vector<collective::LaneData>& lanes, std::uint64_t first) {
    if (!residual_) return;
    if (gave_next_) {
      next_.copy_(*residual_);
    } else {
      next_ = residual_->clone();
    }
    if (scale_) next_.div_(*scale_);
    lent_ = true;
    const std::span all(static_cast<float*>(next_.data_ptr()), static_cast<std::size_t>(next_.numel()));
    for (collective::LaneData& lane : lanes) {
      lane.residual = all.subspan(lane.lane.range.begin - first, lane.lane.range.size());
    }
  }

  // `result`: all elements of the result, or none where they are not on the host. Where one is not finite no
  // rank commits, since all have the same.
  void commit(core::DType dtype, std::span<const std::byte> result) {
    result_square_ = collective::square_of(dtype, result);
    if (!residual_) return;
    if (lent_ && (!std::isfinite(report_.input_square) || !std::isfinite(result_square_))) return;
    if (lent_ && scale_) next_.mul_(*scale_);
    if (lent_ && !gave_next_) residual_->copy_(next_);
    if (!lent_ && gave_next_) next_.copy_(*residual_);
    next_.reset();
    committed_ = true;
  }

  const collective::FeedbackReport& report() const { return report_; }
  double result_square() const { return result_square_; }
  double scaled_square() const { return scaled_square_; }
  bool committed() const { return committed_; }

 private:
  const codec::CodecSpec codec_;
  const float decay_;
  const std::optional<at::Tensor> residual_;
  const std::optional<at::Tensor> scale_;
  const bool gave_next_;
  at::Tensor next_;
  collective::FeedbackReport report_;
  double result_square_ = 0;
  double scaled_square_ = 0;
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

  // Only when the operation is done: what became of the residual.
  const CallerFeedback& feedback() const {
    if (!work_->isCompleted()) {
      throw_status(core::StatusCode::InvalidArgument,
                   "feedback() before the operation is done: wait() first");
    }
    return *feedback_;
  }

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
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
