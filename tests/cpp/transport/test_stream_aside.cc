// Streams that have other threads make the calls of their large turns, with peers made by hand.
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "core/executor.h"
#include "raw_peer.h"
#include "transport/link/stream.h"
#include "transport/mux/mux.h"
#include "transport_fixture.h"

namespace geocomm::transport::testing {
namespace {

constexpr std::uint32_t kLarge = 200'000;

class CountedStream final : public Stream {
 public:
  using Stream::Stream;
  void on_ready(std::uint32_t events) override {
    ++calls;
    Stream::on_ready(events);
  }
  int calls = 0;
};

// A consumer whose memory is its own once the chunk is there: it writes there at once.
class Consumer final : public ReceiveSink {
 public:
  explicit Consumer(std::vector<std::byte> expected) : expected_(std::move(expected)) {}
  core::Result<std::span<std::byte>> place(std::uint32_t, std::size_t bytes) override {
    memory_.resize(bytes);
    return std::span(memory_);
  }
  void on_chunk(std::uint32_t) override {
    arrived = memory_ == expected_;
    std::fill(memory_.begin(), memory_.end(), std::byte{0xEE});
  }
  Status on_mismatch(std::uint64_t, std::uint32_t) override { return {StatusCode::Internal, "mismatch"}; }
  void on_error(const Status&) override {}
  bool is_untouched() const { return std::ranges::count(memory_, std::byte{0xEE}) == std::ssize(memory_); }

  std::atomic<bool> arrived{false};

 private:
  const std::vector<std::byte> expected_;
  std::vector<std::byte> memory_;
};

class StreamAside : public ::testing::Test, public StreamDelegate {
 protected:
  void SetUp() override {
    loop_ = std::move(IoLoop::create()).value();
    ASSERT_TRUE(loop_->start().is_ok());
  }
  void TearDown() override {
    release_helpers();
    on_loop([this] { streams_.clear(); });
  }
  void on_loop(const std::function<void()>& task) { ASSERT_TRUE(loop_->run(task, patience())); }

  // Opens the next data stream; returns its other end.
  RawConnection open() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    on_loop([&] {
      const Carrier carrier{static_cast<std::uint16_t>(streams_.size() + 1), 1};
      streams_.push_back(
          std::make_unique<CountedStream>(*loop_, plain_connection(Fd(ends[0])), carrier, *this, &threads_));
      EXPECT_TRUE(streams_.back()->start().is_ok());
    });
    return RawConnection(Fd(ends[1]));
  }
  // Over the first stream.
  void send(std::uint32_t bytes) {
    on_loop([&] {
      to_send_ = bytes;
      streams_[0]->wake();
    });
  }
  // Until release_helpers(), the helpers do nothing else.
  void hold_helpers() {
    for (std::size_t i = 0; i < threads_.thread_count(); ++i) {
      threads_.submit([this] { may_go_.wait(false); });
    }
  }
  void release_helpers() {
    may_go_ = true;
    may_go_.notify_all();
  }

  core::Result<SegmentCopy> begin_segment(const WireHeader& header) override { return mux_.begin(header); }
  void finish_segment(SegmentCopy copy) override {
    mux_.finish(std::move(copy), loop_->now());
    ++finished_;
  }
  Status on_packet(const WireHeader&) override { return Status::ok(); }
  void pull(const Carrier&, bool, std::vector<OutSegment>& out) override {
    if (to_send_ == 0) return;
    auto chunk = std::make_shared<OutChunk>();
    chunk->chunk = chunk_of({2, 1}, pattern(to_send_, 1));
    out.push_back({1, std::move(chunk), 0, to_send_});
    if (!endless_) to_send_ = 0;
  }
  bool has_ready(const Carrier&) const override { return to_send_ > 0; }
  void on_segment_sent(const OutSegment&) override { ++sent_; }
  void count_bytes(std::uint64_t, std::uint64_t) override {}
  void on_stream_lost(Stream& stream, const Status&) override {
    stream.close();
    ++lost_;
  }
  void on_violation(Stream& stream, const Status& why) override {
    ADD_FAILURE() << why.to_string();
    stream.close();
  }
  static void wait_for(const std::atomic<int>& count, int least) {
    const Deadline end = patience();
    while (count < least && !end.expired()) std::this_thread::sleep_for(1ms);
    ASSERT_GE(count, least);
  }

  std::shared_ptr<IoLoop> loop_;
  core::ThreadPool threads_{2, "test"};
  std::atomic<bool> may_go_{false};
  std::vector<std::unique_ptr<CountedStream>> streams_;  // the IO thread's
  core::BufferPool pool_{kMiB};
  ClosedGroups closed_groups_;
  Mux mux_{kMiB, pool_, closed_groups_, [] {}};
  std::uint32_t to_send_ = 0;  // the IO thread's
  bool endless_ = false;
  std::atomic<int> finished_{0};
  std::atomic<int> sent_{0};
  std::atomic<int> lost_{0};
};

TEST_F(StreamAside, test_small_packets_behind_large_ones_wait_for_no_helper) {
  RawConnection peer = open();
  send(kLarge);
  ASSERT_TRUE(peer.read(kHeaderBytes + kLarge).has_value());
  wait_for(sent_, 1);
  const std::vector<std::byte> data = pattern(kLarge, 1);
  ASSERT_TRUE(peer.send(testing::segment_header(1, kLarge, 1)) && peer.send(data.data(), kLarge));
  wait_for(finished_, 1);
  hold_helpers();
  send(10);
  EXPECT_TRUE(peer.read(kHeaderBytes + 10).has_value());
  ASSERT_TRUE(peer.send(testing::segment_header(2, 10, 2)) && peer.send(data.data(), 10));
  wait_for(finished_, 2);
  release_helpers();
}

TEST_F(StreamAside, test_end_of_a_stream_that_is_aside_wakes_the_io_thread_once) {
  {
    const RawConnection peer = open();
    hold_helpers();
    send(kLarge);
  }
  int calls = 0;
  for (int i = 0; i < 20; ++i) on_loop([&] { calls = streams_[0]->calls; });
  EXPECT_LE(calls, 1);
  release_helpers();
  wait_for(lost_, 1);
  on_loop([&] { EXPECT_FALSE(streams_[0]->is_open()); });
}

// Two copies of each segment at a time, in pieces of all sizes, while both streams send without end, and some
// operations are cancelled and their memory is let go.
TEST_F(StreamAside, test_copies_in_pieces_leave_the_memory_of_consumers_alone) {
  constexpr int kOps = 60;
  std::vector<RawConnection> peers;
  std::vector<std::shared_ptr<Consumer>> consumers;
  for (int i = 0; i < 2; ++i) peers.push_back(open());
  for (int i = 0; i < kOps; ++i) {
    const auto op = static_cast<std::uint64_t>(i);
    consumers.push_back(std::make_shared<Consumer>(pattern(kLarge, op)));
    ASSERT_TRUE(mux_.post({1, op}, 7, 1, consumers.back()).is_ok());
  }
  std::vector<std::thread> threads;
  for (RawConnection& peer : peers) {
    threads.emplace_back([&peer] {
      while (peer.read(kHeaderBytes)) {
      }
    });
    threads.emplace_back([&peer] {
      std::minstd_rand random(static_cast<unsigned>(peer.fd()));
      for (std::uint64_t op = 0; op < kOps; ++op) {
        const HeaderBytes header = encode_header(testing::segment_header(op, kLarge, op + 1));
        std::vector<std::byte> bytes(header.begin(), header.end());
        std::ranges::copy(pattern(kLarge, op), std::back_inserter(bytes));
        for (std::size_t at = 0; at < bytes.size();) {
          const std::size_t piece = std::min<std::size_t>(bytes.size() - at, 1 + random() % 150'000);
          if (!peer.send(bytes.data() + at, piece)) return;
          at += piece;
        }
      }
    });
  }
  on_loop([this] {
    to_send_ = kLarge;
    endless_ = true;
    for (const auto& stream : streams_) stream->wake();
  });
  for (int i = 2; i < kOps; i += 3) {
    wait_for(finished_, i);
    EXPECT_TRUE(mux_.cancel({1, static_cast<std::uint64_t>(i)}).empty());
    consumers[static_cast<std::size_t>(i)].reset();
  }
  wait_for(finished_, 2 * kOps);
  on_loop([this] { streams_.clear(); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& consumer : consumers) {
    if (!consumer) continue;
    EXPECT_TRUE(consumer->arrived);
    EXPECT_TRUE(consumer->is_untouched());
  }
}

}  // namespace
}  // namespace geocomm::transport::testing
