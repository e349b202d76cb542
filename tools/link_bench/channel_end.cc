#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "core/buffer.h"
#include "core/deadline.h"
#include "core/log.h"
#include "link_bench/bench_process.h"
#include "transport/endpoint.h"

namespace geocomm::link_bench {

using core::Status;
using transport::Channel;
using transport::OpKey;

namespace {

constexpr std::uint32_t kChunks = 64;
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
// Receives are posted so far ahead, as overlapping collectives do.
constexpr std::uint64_t kPostedAhead = 4;
// What may wait for the kernel, as collectives have it.
constexpr std::size_t kMostQueuedChunks = 64;
constexpr std::uint64_t kGroup = 1;
constexpr std::chrono::seconds kPatience{20};

std::uint64_t word_at(std::uint32_t chunk, std::size_t i) {
  return (chunk * kChunkBytes + i) * 0x9E3779B97F4A7C15ULL;
}

void fill(std::span<std::byte> bytes, std::uint32_t chunk) {
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t word = word_at(chunk, i);
    std::memcpy(bytes.data() + i, &word, sizeof word);
  }
}

// Where all operations go: each chunk has its place, whatever operation it is of.
struct Arrivals {
  std::vector<std::byte> memory = std::vector<std::byte>(kChunks * kChunkBytes);
  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::uint64_t finished = 0;  // operations
  std::atomic<bool> over{false};
  std::unique_ptr<Meter> meter;
};

class Sink final : public transport::ReceiveSink {
 public:
  explicit Sink(std::shared_ptr<Arrivals> arrivals) : arrivals_(std::move(arrivals)) {}

  core::Result<std::span<std::byte>> place(std::uint32_t chunk, std::size_t chunk_bytes) override {
    return std::span(arrivals_->memory).subspan(chunk * kChunkBytes, chunk_bytes);
  }
  void on_chunk(std::uint32_t) override {
    std::lock_guard lock(arrivals_->mutex);
    if (arrivals_->meter) (void)arrivals_->meter->count(kChunkBytes);
    if (++chunks_ < kChunks) return;
    ++arrivals_->finished;
    arrivals_->changed.notify_all();
  }
  Status on_mismatch(std::uint64_t, std::uint32_t) override { stop("another operation came than was sent"); }
  void on_error(const Status& status) override {
    if (!arrivals_->over) stop(status.to_string());
  }

 private:
  const std::shared_ptr<Arrivals> arrivals_;
  std::uint32_t chunks_ = 0;
};

class ChannelEnd final : public End {
 public:
  ChannelEnd(const Settings& settings, bool parent, const Partner& partner)
      : sends_(parent || settings.both_ways), receives_(!parent || settings.both_ways) {
    core::set_log_level(core::LogLevel::Error);
    transport::EndpointOptions options;
    options.bind_address = "127.0.0.1";
    options.streams = settings.streams;
    options.tls_threads =
        settings.tls_threads.value_or(transport::tls_threads_beside(std::thread::hardware_concurrency()));
    options.keys = parent ? settings.keys_a : settings.keys_b;
    auto endpoint = transport::Endpoint::create(options);
    if (!endpoint.is_ok()) stop(endpoint.status().to_string());
    endpoint_ = std::move(endpoint).value();
    struct Address {
      transport::ProcessId id;
      std::uint16_t port;
    };
    const Address own{endpoint_->id(), endpoint_->port()};
    partner.tell(&own, sizeof own);
    Address other{};
    partner.hear(&other, sizeof other);
    auto channel = endpoint_->connect({other.id, "127.0.0.1", other.port, "the other end"}, {});
    if (!channel.is_ok()) stop(channel.status().to_string());
    channel_ = *channel;
    if (const Status status = channel_->wait_ready(core::Deadline::after(kPatience)); !status.is_ok()) {
      stop(status.to_string());
    }
    check();
  }

  ~ChannelEnd() override {
    endpoint_->abort({core::StatusCode::Aborted, "the measurement is over"});
    for (std::thread& thread : threads_) thread.join();
  }

  void start(const Window& window) override {
    if (receives_) {
      {
        std::lock_guard lock(arrivals_->mutex);
        arrivals_->meter = std::make_unique<Meter>(window);
      }
      threads_.push_back(bench_thread([this] { receive(); }));
    }
    if (sends_) threads_.push_back(bench_thread([this] { send(); }));
  }

  Moved received() override {
    std::lock_guard lock(arrivals_->mutex);
    arrivals_->over = true;
    arrivals_->changed.notify_all();
    return receives_ ? arrivals_->meter->moved() : Moved{};
  }

 private:
  void check() {
    if (sends_) {
      for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        core::Buffer buffer = pool_.sized(kChunkBytes);
        fill(buffer.span(), chunk);
        chunks_.push_back(std::move(buffer));
      }
      if (!send_operation(1)) stop(channel_->status().to_string());
    }
    if (!receives_) return;
    post(1);
    std::unique_lock lock(arrivals_->mutex);
    if (!arrivals_->changed.wait_for(lock, kPatience, [&] { return arrivals_->finished == 1; })) {
      stop("the first operation does not arrive");
    }
    std::vector<std::byte> expected(kChunkBytes);
    for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      fill(expected, chunk);
      if (std::memcmp(expected.data(), arrivals_->memory.data() + chunk * kChunkBytes, kChunkBytes) != 0) {
        stop("other bytes arrived than were sent");
      }
    }
  }

  void post(std::uint64_t op) {
    (void)channel_->post_receive({kGroup, op}, 0, kChunks, std::make_shared<Sink>(arrivals_));
  }

  // False when it is over.
  bool send_operation(std::uint64_t op) {
    for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      {
        std::unique_lock lock(queued_->mutex);
        if (!queued_->changed.wait_for(lock, kPatience,
                                       [&] { return queued_->chunks < kMostQueuedChunks; })) {
          return false;
        }
        ++queued_->chunks;
      }
      transport::OutgoingChunk out;
      out.key = {kGroup, op};
      out.chunk = chunk;
      out.chunk_count = kChunks;
      out.payload = chunks_[chunk];
      const auto on_sent = [queued = queued_](const Status&) {
        std::lock_guard lock(queued->mutex);
        --queued->chunks;
        queued->changed.notify_all();
      };
      if (!channel_->send(std::move(out), on_sent).is_ok()) return false;
    }
    return true;
  }

  void send() {
    for (std::uint64_t op = 2; !arrivals_->over && send_operation(op); ++op) {
    }
  }

  void receive() {
    std::uint64_t posted = 1;
    std::unique_lock lock(arrivals_->mutex);
    while (!arrivals_->over) {
      while (posted < arrivals_->finished + kPostedAhead) {
        lock.unlock();
        post(++posted);
        lock.lock();
      }
      arrivals_->changed.wait(lock,
                              [&] { return arrivals_->over || posted < arrivals_->finished + kPostedAhead; });
    }
  }

  struct Queued {
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t chunks = 0;  // given to the channel, not yet taken by the kernel
  };

  const bool sends_;
  const bool receives_;
  const std::shared_ptr<Queued> queued_ = std::make_shared<Queued>();
  core::BufferPool pool_;
  std::vector<core::Buffer> chunks_;
  const std::shared_ptr<Arrivals> arrivals_ = std::make_shared<Arrivals>();
  std::unique_ptr<transport::Endpoint> endpoint_;
  std::shared_ptr<Channel> channel_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<End> make_channel_end(const Settings& settings, bool parent, const Partner& partner) {
  return std::make_unique<ChannelEnd>(settings, parent, partner);
}

}  // namespace geocomm::link_bench
