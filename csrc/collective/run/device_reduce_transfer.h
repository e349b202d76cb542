// A reduction over the sites whose frames an accelerator makes and uses up, in memory of its own choice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collective/run/reduce_transfer.h"

namespace geocomm::collective {

class DeviceReduceTransfer final : public ReduceTransfer {
 public:
  using ReduceTransfer::ReduceTransfer;

  // Both before begin(). Unsupported: `memory` has no more, or regions have sums. `maker` outlives
  // end().
  core::Status take_rooms(const FrameOptions& options, core::BufferPool& memory);
  void set_maker(FrameMaker& maker) { maker_ = &maker; }

 private:
  struct Group {
    std::size_t contributions_end = 0;  // in jobs_, of this group and those before
    std::size_t results_end = 0;
    std::size_t awaited = 0;  // chunks that this rank reduces; guarded by mutex_
  };

  core::Result<core::Buffer> make(std::size_t chunk, Kind kind) override;
  core::Status use(std::size_t chunk) override;
  void start() override;

  core::Status check(const core::Buffer& frame, core::DType dtype, const FrameChunk& chunk, int site) const;
  void take_arrived_groups();
  core::Status follow_contributions();
  core::Status follow_results(std::uint32_t groups);

  FrameMaker* maker_ = nullptr;
  std::vector<Group> groups_;
  std::uint32_t made_groups_ = 0;  // the waiting thread's
  // Guarded by mutex_.
  std::uint32_t arrived_groups_ = 0;
  std::size_t results_released_ = 0;  // jobs
};

}  // namespace geocomm::collective
