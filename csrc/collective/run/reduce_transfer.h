// A reduction over the sites, in flight: which frames this rank sends, relays and awaits, as reduce_plan.h
// lays it out, and whose memory they are in. Frames are made, and used up, by the derived class: of the host
// (host_reduce_transfer.h), or of an accelerator (device_reduce_transfer.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "codec/frames/frame.h"
#include "codec/spec/codec_spec.h"
#include "collective/layout/reduce_plan.h"
#include "collective/run/frame_plan.h"
#include "collective/run/transfer.h"

namespace geocomm::collective {

// The codec of an operation: its caller's, else that of its policy, where the dtype and the reduction allow
// it.
codec::CodecSpec reduction_codec(const ExchangeConfig& config, const OpContext& context, ReduceOp op);

class ReduceTransfer : public Transfer {
 public:
  // `stripes` are checked (Exchange::reduce()).
  ReduceTransfer(std::shared_ptr<ExchangeShared> shared, const OpContext& context, ReduceOp op,
                 std::span<const StripeData> stripes);

  std::shared_ptr<const FramePlan> frames() const { return frames_; }
  // After a run() that succeeded: FeedbackReport's.
  std::uint64_t wire_bytes() const { return wire_bytes_; }

 protected:
  using Kind = Message::Kind;
  // A frame that this rank makes and sends.
  struct Job {
    std::size_t chunk = 0;
    Kind kind = Kind::Contribution;
  };

  // Both in tasks. The frame of a job, or of the sum of this rank's region, once its operands are there.
  virtual core::Result<core::Buffer> make(std::size_t chunk, Kind kind) = 0;
  // All that the chunk awaits is there. Of chunks that this rank reduces or receives.
  virtual core::Status use(std::size_t chunk) = 0;
  void start() override;

  // To be called once chunks have their groups: results are jobs of their own, or not.
  void plan_jobs(bool with_results);
  // One of what the chunk awaits is there. `mutex_` must be held.
  void arrived_locked(std::size_t chunk);
  // That is an operand of the sum that this rank makes. `mutex_` must be held.
  void operand_arrived_locked(std::size_t chunk);
  // How many of those are awaited; guarded by mutex_.
  std::uint32_t& operands_awaited(std::size_t chunk) {
    return frames_->chunks[chunk].adds ? to_add_[chunk] : awaited_[chunk];
  }
  // `mutex_` must not be held.
  core::Status send_frame(std::size_t chunk, Kind kind, const core::Buffer& frame);
  // Whether the frame, sealed and whole, is what the chunk needs from that site.
  core::Result<codec::FrameView> check_frame(std::span<const std::byte> frame, core::DType dtype,
                                             const FrameChunk& chunk, int site) const;

  const codec::CodecSpec& codec() const { return frames_->codec; }
  // What a chunk's owner sends, and who adds up for it: sums that are to be quantized again keep their
  // precision until then.
  core::DType result_dtype() const { return codec().is_exact() ? context().dtype : core::DType::Float32; }
  std::string site_peer_name(const FrameChunk& chunk, int site) const;

  const ReduceOp op_;
  const std::vector<StripeData> stripes_;
  const std::shared_ptr<FramePlan> frames_ = std::make_shared<FramePlan>();
  const ReduceScheme* scheme_ = nullptr;  // the policy's; null: there is one site
  std::vector<Job> jobs_;                 // contributions, then results
  // Per chunk: frames, and what derived classes add; guarded by mutex_.
  std::vector<std::uint32_t> awaited_;

 private:
  using FrameName = std::pair<std::size_t, std::uint32_t>;  // peer that it comes from, number
  // Where a chunk's frames go, but for those that this rank relays.
  struct Route {
    std::vector<Target> contributions;
    std::vector<Target> sums;  // of this rank's region
    std::vector<Target> results;
    std::vector<Target>& of(Kind kind) {
      if (kind == Kind::Contribution) return contributions;
      return kind == Kind::Sum ? sums : results;
    }
  };

  void plan_routes();
  void plan_chunk(const PlannedChunk& planned, const Route& route);
  void count_awaited();
  std::vector<Peer> make_peers() const;
  // The ranks whose frames are in a sum for this one.
  std::set<int> added_up_by(const Message& sum) const;
  core::Status add(std::size_t chunk);
  core::Status produce(std::size_t job) override;
  core::Result<std::span<std::byte>> place(std::size_t peer, std::uint32_t number,
                                           std::size_t bytes) override;
  Arrival on_arrival(std::size_t peer, std::uint32_t number) override;
  // Whether a frame of `bytes` may be that message: before any memory is taken for it.
  core::Status check_size(std::size_t peer, std::uint32_t number, std::size_t bytes) const;
  // Where a frame that is delivered lies.
  core::Buffer& slot(const Message& message);
  // Whether `rank` sends it without waiting for anybody.
  bool is_owed(const Message& message, int rank) const {
    return message.kind == Kind::Contribution && message.origin == config().topology.site_of(rank);
  }
  std::uint64_t raw_bytes(std::size_t chunk) const {
    return frames_->chunks[chunk].range.size() * core::size_of(context().dtype);
  }

  std::vector<PeerPlan> messages_;
  std::vector<Route> routes_;          // per chunk
  std::vector<std::uint32_t> to_add_;  // per chunk: operands of the region's sum; guarded by mutex_
  std::vector<std::size_t> ready_;     // chunks to use that await nothing: the group has one site
  std::map<FrameName, std::vector<Target>> relays_;
  // Guarded by mutex_.
  std::vector<std::vector<bool>> placed_;      // per peer and message
  std::map<FrameName, core::Buffer> relayed_;  // being received, for other ranks alone
  std::uint64_t wire_bytes_ = 0;
};

}  // namespace geocomm::collective
