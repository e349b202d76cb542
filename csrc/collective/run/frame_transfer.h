// A reduction over the sites whose frames someone else makes and uses up: the exchange alone.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "collective/run/planned_reduction.h"

namespace geocomm::collective {

// As Exchange::plan_frames(); `stripes` are checked.
core::Result<std::shared_ptr<FramePlan>> plan_frames(const ExchangeConfig& config, const OpContext& context,
                                                     ReduceOp op, std::span<const StripeData> stripes,
                                                     core::BufferPool& memory, const FrameOptions& options);

class FrameTransfer final : public PlannedReduction {
 public:
  // `plan` is plan_frames()'s for the same arguments. `maker` outlives end().
  FrameTransfer(std::shared_ptr<ExchangeShared> shared, const OpContext& context, ReduceOp op,
                std::span<const StripeData> stripes, std::shared_ptr<FramePlan> plan, FrameMaker& maker);

  // After a run() that succeeded: FeedbackReport's.
  std::uint64_t wire_bytes() const { return wire_bytes_; }

 private:
  struct Job {
    std::size_t chunk = 0;
    Message::Kind kind = Message::Kind::Contribution;
  };

  core::Status produce(std::size_t job) override;
  void start() override;
  core::Buffer& slot(const Message& message) override;
  core::Buffer room_for(const Message& message, std::size_t bytes) override;
  void delivered_locked(const Message& message) override;

  // Of a group.
  struct Group {
    std::size_t contributions_end = 0;  // in jobs_, of this group and those before
    std::size_t results_end = 0;
    std::size_t awaited_contributions = 0;  // guarded by mutex_
  };

  core::Status check(const Message& message);
  void take_arrived_groups();
  core::Status follow_contributions();
  core::Status follow_results(std::uint32_t groups);

  const std::shared_ptr<FramePlan> frames_;
  FrameMaker& maker_;
  std::vector<Job> jobs_;  // contributions, then results
  std::vector<Group> groups_;
  std::uint32_t made_groups_ = 0;  // the waiting thread's
  // Guarded by mutex_.
  std::uint32_t arrived_groups_ = 0;
  std::size_t results_released_ = 0;  // jobs
  std::uint64_t wire_bytes_ = 0;
};

}  // namespace geocomm::collective
