#include "emulator/wan_link.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/str.h"

namespace geocomm::emulator {
namespace {

using core::Status;
using core::StatusCode;
using std::chrono::nanoseconds;

constexpr std::uint64_t kMinQueueBytes = 256 * 1024;
constexpr double kMinRateBps = 1e3, kMaxRateBps = 1e12;
constexpr nanoseconds kMaxDelay = std::chrono::seconds(60);
constexpr nanoseconds kMaxRunLineTime = std::chrono::milliseconds(2);
constexpr nanoseconds kLeastReorderLag = std::chrono::milliseconds(2);

nanoseconds line_time(std::size_t bytes, double rate_bps) {
  return nanoseconds(std::llround(static_cast<double>(bytes) * 8e9 / rate_bps));
}

std::uint64_t bytes_in(nanoseconds time, double rate_bps) {
  return static_cast<std::uint64_t>(static_cast<double>(time.count()) * rate_bps / 8e9);
}

}  // namespace

std::uint64_t LinkParams::queue_bytes() const {
  if (queue_limit_bytes != 0) return queue_limit_bytes;
  return std::max(kMinQueueBytes, bytes_in(2 * delay, rate_bps));
}

Status LinkParams::validate() const {
  // Written so that NaN fails.
  if (!(rate_bps >= kMinRateBps && rate_bps <= kMaxRateBps)) {
    return {StatusCode::InvalidArgument,
            core::str("rate_bps is ", rate_bps, ": it must lie in [", kMinRateBps, ", ", kMaxRateBps, "]")};
  }
  if (delay < nanoseconds(0) || delay > kMaxDelay) {
    return {StatusCode::InvalidArgument,
            core::str("delay_ns is ", delay.count(), ": it must lie in [0, 60 s]")};
  }
  for (const auto& [name, value] : {std::pair{"loss", loss}, std::pair{"reorder", reorder},
                                    std::pair{"duplicate", duplicate}, std::pair{"reset", reset}}) {
    if (value >= 0 && value <= 1) continue;
    return {StatusCode::InvalidArgument, core::str(name, " is ", value, ": it must lie in [0, 1]")};
  }
  return Status::ok();
}

void Link::admit(const Frame& frame, Clock::time_point now, std::vector<SegmentRun>& runs) {
  ++counters_.packets;
  if (!params_.up) {
    counters_.dropped_down += frame.segments;
    return;
  }
  line_free_at_ = std::max(line_free_at_, now);
  const std::uint64_t queue_bytes = params_.queue_bytes();
  std::uniform_real_distribution<double> uniform(0, 1);
  const auto happens = [&](double probability) { return probability > 0 && uniform(random_) < probability; };
  SegmentRun run;
  nanoseconds run_time{0};
  const auto close_run = [&] {
    if (run.count > 0) runs.push_back(run);
    run.count = 0;
    run_time = nanoseconds(0);
  };
  for (std::size_t i = 0; i < frame.segments; ++i) {
    const std::size_t wire_bytes = frame.run_wire_bytes(i, 1);
    if (happens(params_.loss)) {
      ++counters_.dropped_loss;
      close_run();
      continue;
    }
    const std::uint64_t queued = bytes_in(line_free_at_ - now, params_.rate_bps) + wire_bytes;
    if (queued > queue_bytes) {
      ++counters_.dropped_queue;
      close_run();
      continue;
    }
    counters_.max_queue_bytes = std::max(counters_.max_queue_bytes, queued);
    const nanoseconds segment_time = line_time(wire_bytes, params_.rate_bps);
    const bool reset = frame.resettable && happens(params_.reset);
    const bool late = !reset && happens(params_.reorder);
    const bool alone = reset || late;
    if (alone) close_run();
    if (run.count > 0 && run_time + segment_time > kMaxRunLineTime) close_run();
    if (run.count == 0) run.first = i;
    ++run.count;
    run_time += segment_time;
    line_free_at_ += segment_time;
    last_due_ = std::max(last_due_, line_free_at_ + params_.delay);
    run.due = last_due_;
    ++counters_.segments;
    counters_.bytes += wire_bytes;
    if (late) {
      const auto longest = std::max(params_.delay / 2, kLeastReorderLag);
      run.due += nanoseconds(std::llround(uniform(random_) * static_cast<double>(longest.count())));
      ++counters_.reordered;
    }
    run.reset = reset;
    if (reset) ++counters_.resets;
    if (alone) close_run();
    run.reset = false;
    if (!alone && happens(params_.duplicate)) {
      close_run();
      runs.push_back({i, 1, last_due_, false});
      ++counters_.duplicated;
    }
  }
  close_run();
}

void Link::change(const LinkParams& params, Clock::time_point now) {
  if (line_free_at_ > now) {
    const double waiting =
        static_cast<double>((line_free_at_ - now).count()) * params_.rate_bps / params.rate_bps;
    line_free_at_ = now + nanoseconds(std::llround(waiting));
  }
  params_ = params;
}

}  // namespace geocomm::emulator
