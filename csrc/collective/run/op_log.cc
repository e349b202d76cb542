#include "collective/run/op_log.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/fork.h"

namespace geocomm::collective {
namespace {

constinit core::PerProcess<OpLog> g_op_log;

}  // namespace

std::uint64_t OpRecord::now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

void OpRecord::issued(std::uint64_t number) {
  const std::uint64_t at = now();
  std::lock_guard lock(mutex_);
  times_.number = number;
  times_.issued = at;
}

void OpRecord::begins(const std::string& codec) {
  const std::uint64_t at = now();
  std::lock_guard lock(mutex_);
  if (times_.began == 0) times_.began = at;
  if (!codec.empty()) times_.codec = codec;
}

void OpRecord::awaits(int rank, std::string name, bool sums) {
  std::lock_guard lock(mutex_);
  const auto same = [rank](const OpTimes::Peer& peer) { return peer.rank == rank; };
  auto peer = std::ranges::find_if(times_.peers, same);
  if (peer == times_.peers.end()) {
    peer = times_.peers.insert(peer, OpTimes::Peer{.rank = rank, .name = std::move(name)});
  }
  peer->sums = peer->sums || sums;
}

std::uint64_t OpRecord::made_frame(std::uint64_t began) {
  const std::uint64_t at = now();
  std::lock_guard lock(mutex_);
  times_.encoded = std::max(times_.encoded, at);
  times_.coding_time += at - began;
  return at - began;
}

std::uint64_t OpRecord::used_frame(std::uint64_t began) {
  const std::uint64_t took = now() - began;
  std::lock_guard lock(mutex_);
  times_.coding_time += took;
  return took;
}

void OpRecord::sent(std::uint64_t raw_bytes, std::uint64_t wire_bytes) {
  std::lock_guard lock(mutex_);
  times_.raw_bytes_sent += raw_bytes;
  times_.wire_bytes_sent += wire_bytes;
}

void OpRecord::arrived(int rank, std::uint64_t raw_bytes, std::uint64_t wire_bytes) {
  const std::uint64_t at = now();
  std::lock_guard lock(mutex_);
  times_.raw_bytes_received += raw_bytes;
  times_.wire_bytes_received += wire_bytes;
  for (OpTimes::Peer& peer : times_.peers) {
    if (peer.rank != rank) continue;
    if (peer.first_in == 0) peer.first_in = at;
    peer.last_in = at;
  }
}

void OpRecord::exchanged() {
  const std::uint64_t at = now();
  std::lock_guard lock(mutex_);
  times_.exchanged = at;
}

void OpRecord::ended(bool failed) {
  const std::uint64_t at = now();
  std::lock_guard lock(mutex_);
  times_.ended = at;
  times_.failed = failed;
}

void OpRecord::wait_begins() {
  const std::uint64_t at = now();
  std::lock_guard lock(mutex_);
  if (times_.wait_began == 0) times_.wait_began = at;
}

void OpRecord::wait_ends() {
  const std::uint64_t at = now();
  std::lock_guard lock(mutex_);
  times_.wait_ended = at;
}

OpTimes OpRecord::times() const {
  std::lock_guard lock(mutex_);
  return times_;
}

void OpLog::issue(std::shared_ptr<OpRecord> record) {
  std::shared_ptr<OpRecord> oldest;  // freed without the lock
  std::lock_guard lock(mutex_);
  record->issued(++issued_);
  records_.push_back(std::move(record));
  if (records_.size() > kKept) {
    oldest = std::move(records_.front());
    records_.pop_front();
  }
}

std::vector<OpTimes> OpLog::read(std::uint64_t after) const {
  std::vector<std::shared_ptr<OpRecord>> kept;
  {
    std::lock_guard lock(mutex_);
    const std::uint64_t gone = issued_ - records_.size();
    const std::uint64_t first = std::min<std::uint64_t>(std::max(after, gone) - gone, records_.size());
    kept.assign(records_.begin() + static_cast<std::ptrdiff_t>(first), records_.end());
  }
  std::vector<OpTimes> times;
  times.reserve(kept.size());
  for (const auto& record : kept) times.push_back(record->times());
  return times;
}

OpLog& process_op_log() {
  return g_op_log.get();
}

}  // namespace geocomm::collective
