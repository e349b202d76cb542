// A lossy reduction of CUDA tensors whose frames are made, decoded and summed on the device: the FrameMaker
// of Exchange::plan_frames(). The frames lie in pinned memory, which kernels write and read directly: the
// threads of the WAN only see host memory, and never wait for the device nor make it wait for them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "binding/device/device_side.h"
#include "binding/operation/coding_places.h"
#include "collective/run/exchange.h"

namespace geocomm::collective::cuda {
struct DeviceFeedback;
}

namespace geocomm::binding {

// What a reduction with error feedback does about the caller's residual, which its stripes have, in the
// device's memory.
struct ResidualUse {
  bool replaces = false;  // as collective::cuda::DeviceFeedback
  // Once the device has passed all of it: what became of it.
  std::function<void(const collective::FeedbackReport& report, bool committed)> ended;
};

class DeviceReduction final : public collective::FrameMaker,
                              public std::enable_shared_from_this<DeviceReduction> {
 public:
  // While stage `pre` of a StreamOperation is enqueued (StreamOperation::current()), which the reduction then
  // belongs to. `stripes` hold addresses of device memory, which outlives the operation. `residual`: with
  // batches alone. nullptr: the host has to do it (nothing is enqueued, the operation is exact, this build's
  // kernels lack the codec, places() has it there, or no memory is left, pinned or the device's).
  static std::shared_ptr<DeviceReduction> create(collective::Exchange& exchange,
                                                 const collective::OpContext& context,
                                                 collective::ReduceOp op,
                                                 std::vector<collective::StripeData> stripes,
                                                 std::optional<ResidualUse> residual = std::nullopt);

  // Whether reductions that are created from now on take all chunks of an operation at once
  // (collective/cuda/batched_reduction.h), or one after the other. Bytes are the same. Thread-safe.
  static void use_batches(bool uses) { uses_batches_.store(uses, std::memory_order_relaxed); }
  static bool uses_batches() { return uses_batches_.load(std::memory_order_relaxed); }
  // What batches code, of this process.
  static CodingPlaces& places() {
    static CodingPlaces places;
    return places;
  }

  // Stage `pre`: encodes, where that is not left to the operation's pieces, a group each.
  void enqueue_contributions();
  // On a thread that may block.
  core::Status exchange();
  // Stage `post`: takes the results that other sites made, and ends the error feedback. What this rank
  // reduces itself is the operation's `middle`, which decodes and sums.
  void enqueue_results();

  core::Status wait_for_contributions(std::uint32_t groups, core::Deadline deadline) override;
  void contributions_arrived(std::uint32_t groups) override;
  core::Status wait_for_results(std::uint32_t groups, core::Deadline deadline) override;

 private:
  class Kernels;
  class Batched;

  DeviceReduction(collective::FrameExchange exchange, const collective::OpContext& context,
                  std::vector<collective::StripeData> stripes, StreamOperation& stream);

  bool loads_kernels();
  void enqueue_contributions(std::uint32_t group);
  void enqueue_sums(std::uint32_t group);
  std::span<std::byte> data_of(const collective::FrameChunk& chunk) const;
  collective::cuda::DeviceFeedback feedback_of(const ResidualUse& residual) const;

  const std::shared_ptr<const collective::FramePlan> plan_;
  std::function<core::Status(collective::FrameMaker&)> exchange_;  // until it ran
  const collective::OpContext context_;
  const std::vector<collective::StripeData> stripes_;
  StreamOperation& stream_;  // owns this, by way of its stages
  // One of the two.
  std::shared_ptr<Kernels> kernels_;
  std::shared_ptr<Batched> batched_;

  static inline std::atomic<bool> uses_batches_ = false;
};

}  // namespace geocomm::binding
