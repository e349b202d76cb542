// Endpoints, sinks and data for the tests of the transport. Everything runs over real sockets on 127.0.0.1;
// with GEOCOMM_TEST_RDMA set, segments go over UCX instead (over its tcp or shared memory, as UCX_TLS says).
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/buffer.h"
#include "core/deadline.h"
#include "core/log.h"
#include "core/status.h"
#include "transport/endpoint.h"

namespace geocomm::transport::testing {

using core::Deadline;
using core::Status;
using core::StatusCode;
using namespace std::chrono_literals;

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

inline constexpr auto kPatience = 60s;
inline Deadline patience() {
  return Deadline::after(kPatience);
}

inline JobToken token(std::uint8_t fill) {
  JobToken token;
  token.fill(fill);
  return token;
}

// What every receiver can make anew out of the seed.
inline std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> data(bytes);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (std::size_t i = 0; i < bytes; i += 8) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const std::uint64_t word = state ^ (state >> 29);
    std::memcpy(data.data() + i, &word, std::min<std::size_t>(8, bytes - i));
  }
  return data;
}

inline core::Buffer buffer_of(const std::vector<std::byte>& data) {
  static core::BufferPool pool;
  core::Buffer buffer = pool.acquire(data.size());
  if (!data.empty()) std::memcpy(buffer.data(), data.data(), data.size());
  buffer.resize(data.size());
  return buffer;
}

inline OutgoingChunk chunk_of(OpKey key, const std::vector<std::byte>& data, std::uint32_t chunk = 0,
                              std::uint32_t count = 1, std::uint64_t descriptor = 7) {
  OutgoingChunk out;
  out.key = key;
  out.descriptor = descriptor;
  out.chunk = chunk;
  out.chunk_count = count;
  out.payload = buffer_of(data);
  return out;
}

// Keeps what comes; wait() until all chunks are there or an error is.
class CollectingSink : public ReceiveSink {
 public:
  explicit CollectingSink(std::uint32_t chunk_count) : data_(chunk_count), arrived_(chunk_count) {}

  core::Result<std::span<std::byte>> place(std::uint32_t chunk, std::size_t chunk_bytes) override {
    std::lock_guard lock(mutex_);
    if (refuse_place) return Status(StatusCode::OutputTooSmall, "does not fit");
    data_[chunk].resize(chunk_bytes);
    return std::span<std::byte>(data_[chunk]);
  }
  void on_chunk(std::uint32_t chunk) override {
    std::lock_guard lock(mutex_);
    EXPECT_EQ(arrived_[chunk], 0) << "chunk delivered twice";
    EXPECT_FALSE(error_.has_value()) << "chunk after an error";
    arrived_[chunk] = 1;
    ++count_;
    changed_.notify_all();
  }
  Status on_mismatch(std::uint64_t descriptor, std::uint32_t) override {
    return {StatusCode::InvalidArgument, "the peer's descriptor is " + std::to_string(descriptor)};
  }
  void on_error(const Status& status) override {
    std::lock_guard lock(mutex_);
    EXPECT_FALSE(error_.has_value()) << "two errors";
    error_ = status;
    changed_.notify_all();
  }

  Status wait(Deadline deadline = patience()) {
    std::unique_lock lock(mutex_);
    const bool done = changed_.wait_until(lock, deadline.when(),
                                          [&] { return error_.has_value() || count_ == data_.size(); });
    if (error_) return *error_;
    return done ? Status::ok() : Status(StatusCode::Timeout, "the sink waits");
  }
  // Without waiting.
  std::optional<Status> error() {
    std::lock_guard lock(mutex_);
    return error_;
  }
  std::size_t count() {
    std::lock_guard lock(mutex_);
    return count_;
  }
  std::vector<std::byte> data(std::uint32_t chunk = 0) {
    std::lock_guard lock(mutex_);
    return data_[chunk];
  }
  bool refuse_place = false;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<std::byte>> data_;
  std::vector<char> arrived_;
  std::size_t count_ = 0;
  std::optional<Status> error_;
};

// One operation of `chunks` chunks of `bytes` each, which must arrive as they were sent.
inline void expect_transfer(Channel& from, Channel& to, std::uint64_t op, std::size_t bytes,
                            std::uint32_t chunks = 1) {
  auto sink = std::make_shared<CollectingSink>(chunks);
  ASSERT_TRUE(to.post_receive({1, op}, 7, chunks, sink).is_ok());
  for (std::uint32_t i = 0; i < chunks; ++i) {
    ASSERT_TRUE(from.send(chunk_of({1, op}, pattern(bytes, op * 100 + i), i, chunks)).is_ok());
  }
  const Status status = sink->wait();
  ASSERT_TRUE(status.is_ok()) << status.to_string();
  for (std::uint32_t i = 0; i < chunks; ++i) EXPECT_EQ(sink->data(i), pattern(bytes, op * 100 + i)) << bytes;
}

// Completion of one or more sends; the callbacks may come after it is gone.
class SentLatch {
 public:
  std::function<void(const Status&)> callback() {
    return [state = state_](const Status& status) {
      std::lock_guard lock(state->mutex);
      state->results.push_back(status);
      state->changed.notify_all();
    };
  }
  // `count` results, or at the deadline what there is.
  std::vector<Status> wait(std::size_t count, Deadline deadline = patience()) {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait_until(lock, deadline.when(), [&] { return state_->results.size() >= count; });
    return state_->results;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Status> results;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Sends with at most 64 chunks that the kernel has not taken yet, so that a long transfer needs little
// memory.
class BoundedSender {
 public:
  // Timeout where none of them is taken.
  Status send(Channel& channel, OutgoingChunk chunk) {
    std::unique_lock lock(state_->mutex);
    if (!state_->changed.wait_until(lock, patience().when(), [&] { return state_->queued < 64; })) {
      return {StatusCode::Timeout, "the kernel takes nothing"};
    }
    ++state_->queued;
    lock.unlock();
    return channel.send(std::move(chunk), [state = state_](const Status&) {
      std::lock_guard taken(state->mutex);
      --state->queued;
      state->changed.notify_all();
    });
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t queued = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

inline bool over_rdma() {
  return std::getenv("GEOCOMM_TEST_RDMA") != nullptr;
}

// What an endpoint needs for RDMA on a machine that has none.
inline RdmaOptions rdma_of_tests() {
  RdmaOptions options;
#ifdef GEOCOMM_UCX_PLUGIN
  options.library = GEOCOMM_UCX_PLUGIN;
#endif
  options.trusted = true;
  options.allow_tcp = true;
  return options;
}

// What this process may have open, for its time.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t most) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit now{most, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &now), 0);
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

inline std::unique_ptr<Endpoint> make_endpoint(EndpointOptions options = {}) {
  core::set_log_level(core::LogLevel::Error);
  if (over_rdma()) options.rdma = rdma_of_tests();
  auto endpoint = Endpoint::create(options);
  EXPECT_TRUE(endpoint.is_ok()) << endpoint.status().to_string();
  return endpoint.is_ok() ? std::move(endpoint).value() : nullptr;
}

inline PeerAddress address_of(const Endpoint& endpoint, std::string description) {
  return {endpoint.id(), "127.0.0.1", endpoint.port(), std::move(description), "", over_rdma()};
}

// Two endpoints in this process; `low` has the smaller id and waits, `high` dials.
struct Pair {
  explicit Pair(EndpointOptions options = {}) : Pair(options, options) {}
  Pair(EndpointOptions first, EndpointOptions second) {
    low = make_endpoint(first);
    high = make_endpoint(second);
    if (low->id() > high->id()) std::swap(low, high);
  }
  void connect(bool wait = true, int path_channels = 1) {
    PeerAddress to_high = address_of(*high, "rank 1 (high)");
    PeerAddress to_low = address_of(*low, "rank 0 (low)");
    to_high.path_channels = to_low.path_channels = path_channels;
    low_channel = *low->connect(to_high, token(1));
    high_channel = *high->connect(to_low, token(1));
    if (!wait) return;
    ASSERT_TRUE(low_channel->wait_ready(patience()).is_ok()) << low_channel->status().to_string();
    ASSERT_TRUE(high_channel->wait_ready(patience()).is_ok()) << high_channel->status().to_string();
  }

  std::unique_ptr<Endpoint> low;
  std::unique_ptr<Endpoint> high;
  std::shared_ptr<Channel> low_channel;
  std::shared_ptr<Channel> high_channel;
};

}  // namespace geocomm::transport::testing
