// Links outlive their connections: every byte arrives, once, whatever the network does to TCP.
#include <dirent.h>

#include <algorithm>
#include <thread>

#include "fault_proxy.h"
#include "tls_fixture.h"
#include "transport_fixture.h"

namespace geocomm::transport::testing {
namespace {

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* const dir = ::opendir("/proc/self/fd");
  while (::readdir(dir) != nullptr) ++count;
  ::closedir(dir);
  return count;
}

// Two endpoints whose connections all pass a proxy: `high` dials `low` through it.
class LinkResume : public ::testing::Test {
 protected:
  void start(EndpointOptions options = {}) {
    if (options.streams == 0) options.streams = 4;
    if (with_tls_) {
      authority_.write_keys(keys_a_, "geocomm://job/a");
      authority_.write_keys(keys_b_, "geocomm://job/b");
    }
    pair_ = std::make_unique<Pair>(secured(options, keys_a_), secured(options, keys_b_));
    proxy_ = std::make_unique<FaultProxy>(pair_->low->port());
  }
  EndpointOptions secured(EndpointOptions options, const Folder& keys) const {
    if (with_tls_) options.keys = keys.path();
    options.tls_threads = tls_threads_;
    return options;
  }
  void connect() {
    PeerAddress through = address_of(*pair_->low, "rank 0 (low)");
    through.port = proxy_->port();
    pair_->low_channel = *pair_->low->connect(address_of(*pair_->high, "rank 1 (high)"), token(1));
    pair_->high_channel = *pair_->high->connect(through, token(1));
    ASSERT_TRUE(low().wait_ready(patience()).is_ok()) << low().status().to_string();
    ASSERT_TRUE(high().wait_ready(patience()).is_ok()) << high().status().to_string();
  }
  void TearDown() override {
    // Before the proxy, so that nobody waits for a network that is gone.
    if (pair_) pair_->high.reset();
    if (pair_) pair_->low.reset();
  }
  Channel& low() { return *pair_->low_channel; }
  Channel& high() { return *pair_->high_channel; }

  // `ops` operations of three chunks both ways, posted early or late; every byte is checked.
  void exchange(std::uint64_t first_op, std::uint64_t ops, std::size_t chunk_bytes) {
    const auto run = [&](Channel& channel, std::uint64_t out_seed, std::uint64_t in_seed, bool late) {
      BoundedSender sender;
      std::vector<std::shared_ptr<CollectingSink>> sinks;
      const auto post = [&](std::uint64_t op) {
        sinks.push_back(std::make_shared<CollectingSink>(3));
        EXPECT_TRUE(channel.post_receive({9, op}, op, 3, sinks.back()).is_ok());
      };
      for (std::uint64_t op = first_op; op < first_op + ops; ++op) {
        if (!late) post(op);
        for (std::uint32_t chunk = 0; chunk < 3; ++chunk) {
          const auto data = pattern(chunk_bytes + op % 7, out_seed + 10 * op + chunk);
          EXPECT_TRUE(sender.send(channel, chunk_of({9, op}, data, chunk, 3, op)).is_ok());
        }
        if (late && op % 2 == 1) {
          post(op - 1);
          post(op);
        }
      }
      for (std::uint64_t i = 0; i < ops; ++i) {
        const Status status = sinks[i]->wait();
        ASSERT_TRUE(status.is_ok()) << status.to_string() << " in operation " << first_op + i;
        for (std::uint32_t chunk = 0; chunk < 3; ++chunk) {
          const std::uint64_t op = first_op + i;
          EXPECT_EQ(sinks[i]->data(chunk), pattern(chunk_bytes + op % 7, in_seed + 10 * op + chunk)) << op;
        }
      }
    };
    std::thread other([&] { run(high(), 1'000'000, 2'000'000, true); });
    run(low(), 2'000'000, 1'000'000, false);
    other.join();
  }
  void wait_for_open(std::size_t connections) {
    if (over_rdma()) connections = 2;
    const auto end = Deadline::after(20s);
    while (proxy_->open() < connections && !end.expired()) std::this_thread::sleep_for(1ms);
    EXPECT_GE(proxy_->open(), connections);
  }

  bool with_tls_ = false;
  int tls_threads_ = 0;
  Authority authority_;
  Folder keys_a_;
  Folder keys_b_;
  std::unique_ptr<Pair> pair_;
  std::unique_ptr<FaultProxy> proxy_;
};

// In plaintext, and with keys; there also with threads that encrypt.
class LinkResumeEither : public LinkResume, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    const std::string way = GetParam();
    with_tls_ = way != "plain";
    tls_threads_ = way == "tls_threads" ? 3 : 0;
  }
};
INSTANTIATE_TEST_SUITE_P(, LinkResumeEither, ::testing::Values("plain", "tls", "tls_threads"),
                         [](const auto& info) { return info.param; });

TEST_P(LinkResumeEither, test_hundreds_of_resets_lose_and_double_nothing) {
  start();
  connect();
  proxy_->reset_after(400'000);
  std::uint64_t op = 0;
  const auto end = Deadline::after(40s);
  while (proxy_->resets() < 300 && !end.expired()) {
    exchange(op, 20, 300'000);
    op += 20;
  }
  EXPECT_GE(proxy_->resets(), 300);
  proxy_->reset_after(0);
  exchange(op, 4, 1000);
  const ChannelStats stats = high().stats();
  EXPECT_GE(stats.resumes, 100U);
  EXPECT_GT(stats.resent_segments, 0U);
  EXPECT_GT(stats.acks, 0U);
  EXPECT_EQ(low().stats().payload_received, stats.payload_sent);
  RecordProperty("resumes", static_cast<int>(stats.resumes));
}

TEST_P(LinkResumeEither, test_each_single_stream_reset_is_invisible) {
  start();
  connect();
  for (std::size_t which = 0; which < 5; ++which) {
    std::thread resetter([&] {
      std::this_thread::sleep_for(5ms);
      proxy_->reset_one(which);
    });
    exchange(100 * which, 10, 500'000);
    resetter.join();
    wait_for_open(5);
  }
  EXPECT_EQ(proxy_->resets(), 5);
  EXPECT_TRUE(low().status().is_ok());
  EXPECT_TRUE(high().status().is_ok());
}

// spec channel 5.1: "send the rest again in order."
TEST_P(LinkResumeEither, test_losing_the_control_stream_again_and_again_keeps_posts_in_order) {
  EndpointOptions options;
  options.max_unexpected_bytes = 64 * 1024;  // so that nothing moves without Grant
  start(options);
  connect();
  std::atomic<bool> stop{false};
  std::thread resetter([&] {
    while (!stop) {
      // The control stream is the oldest one, and later the newest.
      proxy_->reset_one(0);
      if (proxy_->open() > 0) proxy_->reset_one(proxy_->open() - 1);
      std::this_thread::sleep_for(with_tls_ ? 150ms : 30ms);  // a handshake has to fit between
    }
  });
  std::uint64_t op = 0;
  for (const auto end = Deadline::after(40s); high().stats().resumes < 10 && !end.expired(); op += 20) {
    exchange(op, 20, 100'000);
  }
  stop = true;
  resetter.join();
  EXPECT_GE(proxy_->resets(), 10);
  EXPECT_GE(high().stats().resumes, 10U);
  EXPECT_TRUE(high().status().is_ok()) << high().status().to_string();
}

TEST_P(LinkResumeEither, test_losing_all_connections_at_once_resumes) {
  start();
  connect();
  std::atomic<bool> stop{false};
  std::thread resetter([&] {
    for (int i = 0; i < 10 && !stop; ++i) {
      std::this_thread::sleep_for(50ms);
      proxy_->reset_all();
    }
  });
  for (std::uint64_t op = 0; op < 100; op += 20) exchange(op, 20, 400'000);
  stop = true;
  resetter.join();
}

TEST_F(LinkResume, test_network_that_comes_back_before_the_deadline_is_waited_for) {
  start();
  connect();
  proxy_->listen(false);
  proxy_->reset_all();
  auto sink = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(low().post_receive({1, 1}, 7, 1, sink).is_ok());
  const auto data = pattern(5 * kMiB, 1);
  ASSERT_TRUE(high().send(chunk_of({1, 1}, data)).is_ok());
  EXPECT_EQ(sink->wait(Deadline::after(1500ms)).code(), StatusCode::Timeout);
  EXPECT_TRUE(low().status().is_ok());
  proxy_->listen(true);
  ASSERT_TRUE(sink->wait().is_ok());
  EXPECT_EQ(sink->data(), data);
}

TEST_P(LinkResumeEither, test_resets_during_handshakes_delay_the_connection_only) {
  start();
  // A Hello is 192 bytes, a Welcome too; TLS takes some 4 KB before.
  proxy_->reset_after(with_tls_ ? 3000 : 400);
  connect();
  EXPECT_GT(proxy_->resets(), 0);
  proxy_->reset_after(0);
  exchange(0, 4, 100'000);
}

TEST_P(LinkResumeEither, test_resets_during_close_end_in_good_order) {
  for (int round = 0; round < 20; ++round) {
    start();
    connect();
    const auto data = pattern(kMiB, 1);
    auto to_low = std::make_shared<CollectingSink>(1);
    auto to_high = std::make_shared<CollectingSink>(1);
    ASSERT_TRUE(low().post_receive({1, 1}, 7, 1, to_low).is_ok());
    ASSERT_TRUE(high().post_receive({1, 1}, 7, 1, to_high).is_ok());
    ASSERT_TRUE(low().send(chunk_of({1, 1}, data)).is_ok());
    ASSERT_TRUE(high().send(chunk_of({1, 1}, data)).is_ok());
    std::thread resetter([&] {
      for (int i = 0; i < 5; ++i) {
        std::this_thread::sleep_for(std::chrono::microseconds(300 * (round + 1)));
        proxy_->reset_all();
      }
    });
    // Each round another side goes first, or both at once.
    std::thread other([&] {
      if (round % 3 == 0) (void)to_high->wait();
      EXPECT_TRUE(pair_->high->shutdown(patience()).is_ok()) << round;
    });
    if (round % 3 == 1) (void)to_low->wait();
    EXPECT_TRUE(pair_->low->shutdown(patience()).is_ok()) << round;
    other.join();
    resetter.join();
    EXPECT_TRUE(to_low->wait().is_ok()) << to_low->wait().to_string() << " " << round;
    EXPECT_TRUE(to_high->wait().is_ok()) << to_high->wait().to_string() << " " << round;
    TearDown();
  }
}

TEST_P(LinkResumeEither, test_connections_that_go_silent_are_replaced) {
  EndpointOptions options;
  options.link_deadline = 4s;  // three heartbeats of 667 ms without a word, and the connections are dropped
  start(options);
  connect();
  proxy_->swallow(FaultProxy::ToServer);
  proxy_->swallow(FaultProxy::ToClient);
  exchange(0, 4, 300'000);
  const auto end = Deadline::after(20s);
  while (high().stats().resumes < 5 && !end.expired()) std::this_thread::sleep_for(1ms);
  EXPECT_GE(high().stats().resumes, 5U);
  EXPECT_GE(high().stats().outages, 1U);
  EXPECT_GT(high().stats().outage_us, 1'000'000U);  // from the last contact on: the silence is part of it
}

TEST_F(LinkResume, test_one_deaf_direction_is_noticed) {
  for (const auto direction : {FaultProxy::ToServer, FaultProxy::ToClient}) {
    EndpointOptions options;
    options.link_deadline = 4s;
    start(options);
    connect();
    proxy_->swallow(direction);
    exchange(0, 4, 300'000);
    TearDown();
  }
}

TEST_F(LinkResume, test_data_stream_that_carries_nothing_holds_up_nobody_for_long) {
  start();
  connect();
  exchange(0, 4, 1'000'000);
  proxy_->swallow_one(2);  // TCP has its acknowledgements: the proxy takes everything
  exchange(10, 4, 1'000'000);
  EXPECT_GT(high().stats().resent_segments + low().stats().resent_segments, 0U);
  EXPECT_EQ(high().stats().resumes, 0U);
}

TEST_P(LinkResumeEither, test_delay_and_resets_together_lose_nothing) {
  start();
  connect();
  proxy_->delay(10ms);
  proxy_->reset_after(2'000'000);
  exchange(0, 10, 400'000);
  EXPECT_GT(proxy_->resets(), 0);
}

TEST_P(LinkResumeEither, test_many_resumes_take_no_more_descriptors) {
  start();
  connect();
  exchange(0, 4, 100'000);
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 30; ++i) {
    proxy_->reset_all();
    wait_for_open(5);
  }
  exchange(10, 4, 100'000);
  wait_for_open(5);
  const auto end = Deadline::after(10s);
  while (open_descriptors() > before && !end.expired()) std::this_thread::sleep_for(1ms);
  EXPECT_LE(open_descriptors(), before);
}

// The proxy leads to another process all of a sudden: as if the peer had been restarted on its port.
// With TLS at its first word, without after some seconds of nothing else.
TEST_P(LinkResumeEither, test_restarted_peer_is_named_long_before_the_deadline) {
  for (const bool knows_the_job : {true, false}) {
    EndpointOptions options;
    options.link_deadline = 60min;
    start(options);
    connect();
    auto sink = std::make_shared<CollectingSink>(1);
    ASSERT_TRUE(high().post_receive({1, 1}, 7, 1, sink).is_ok());
    auto restarted = make_endpoint(secured(options, keys_a_));
    if (knows_the_job) restarted->allow(token(1));
    proxy_->lead_to(restarted->port());
    proxy_->reset_all();
    pair_->low->abort(Status(StatusCode::Aborted, "killed"));  // it asks no more for `high`
    EXPECT_EQ(sink->wait().code(), StatusCode::PeerLost) << sink->wait().to_string();
    EXPECT_NE(sink->wait().message().find("restarted"), std::string::npos) << sink->wait().to_string();
    EXPECT_EQ(sink->wait().peer(), "rank 0 (low)");
    TearDown();
  }
}

// The side that waits to be dialed finds a restarted peer as well.
TEST_F(LinkResume, test_restarted_dialer_is_named_by_the_side_that_waits) {
  start();
  FaultProxy to_high(pair_->high->port());
  PeerAddress high_address = address_of(*pair_->high, "rank 1 (high)");
  high_address.port = to_high.port();
  PeerAddress low_address = address_of(*pair_->low, "rank 0 (low)");
  low_address.port = proxy_->port();
  pair_->low_channel = *pair_->low->connect(high_address, token(1));
  pair_->high_channel = *pair_->high->connect(low_address, token(1));
  ASSERT_TRUE(low().wait_ready(patience()).is_ok());
  ASSERT_TRUE(high().wait_ready(patience()).is_ok());
  auto sink = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(low().post_receive({1, 1}, 7, 1, sink).is_ok());
  auto restarted = make_endpoint();
  to_high.lead_to(restarted->port());
  proxy_->listen(false);
  proxy_->reset_all();
  EXPECT_EQ(sink->wait().code(), StatusCode::PeerLost) << sink->wait().to_string();
  EXPECT_NE(sink->wait().message().find("restarted"), std::string::npos) << sink->wait().to_string();
}

// While the dialer's way is cut, the waiting side sees that the peer lives and keeps the link.
TEST_F(LinkResume, test_waiting_side_does_not_give_up_a_peer_that_answers) {
  start();
  connect();
  proxy_->listen(false);
  proxy_->reset_all();
  std::this_thread::sleep_for(4s);
  EXPECT_TRUE(low().status().is_ok()) << low().status().to_string();
  proxy_->listen(true);
  exchange(0, 2, 10'000);
}

TEST_F(LinkResume, test_network_that_stays_away_is_a_lost_peer_after_the_deadline) {
  EndpointOptions options;
  options.link_deadline = 2s;
  start(options);
  connect();
  proxy_->swallow_new(true);
  proxy_->reset_all();
  const auto begin = std::chrono::steady_clock::now();
  auto sink = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(high().post_receive({1, 1}, 7, 1, sink).is_ok());
  EXPECT_EQ(sink->wait().code(), StatusCode::PeerLost);
  const auto time = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(time, 1500ms);
  EXPECT_LT(time, 15s);
}

TEST_F(LinkResume, test_cancelled_operation_does_not_hold_up_the_link) {
  start();
  connect();
  proxy_->reset_after(300'000);
  const auto data = pattern(kMiB, 1);
  for (std::uint64_t op = 1000; op < 1040; ++op) {
    auto sink = std::make_shared<CollectingSink>(2);
    ASSERT_TRUE(low().post_receive({1, op}, 7, 2, sink).is_ok());
    ASSERT_TRUE(high().send(chunk_of({1, op}, data, 0, 2)).is_ok());
    std::this_thread::sleep_for(2ms);
    high().cancel({1, op});
    low().cancel({1, op});
  }
  exchange(0, 20, 200'000);
  proxy_->reset_after(0);
  EXPECT_TRUE(pair_->high->shutdown(patience()).is_ok());  // everything numbered was acknowledged
}

TEST_P(LinkResumeEither, test_consumer_owns_its_memory_after_on_chunk) {
  // Overwrites what it was given at once: a late copy would put the old bytes back.
  class Scribbler : public CollectingSink {
   public:
    explicit Scribbler(std::uint32_t chunks) : CollectingSink(chunks), memory_(chunks) {}
    core::Result<std::span<std::byte>> place(std::uint32_t chunk, std::size_t bytes) override {
      memory_[chunk].resize(bytes);
      return std::span<std::byte>(memory_[chunk]);
    }
    void on_chunk(std::uint32_t chunk) override {
      good_ = good_ && memory_[chunk] == pattern(memory_[chunk].size(), chunk);
      std::fill(memory_[chunk].begin(), memory_[chunk].end(), std::byte{0x5A});
      CollectingSink::on_chunk(chunk);
    }
    bool good() const { return good_; }
    bool untouched() const {
      return std::all_of(memory_.begin(), memory_.end(), [](const auto& chunk) {
        return std::all_of(chunk.begin(), chunk.end(), [](std::byte b) { return b == std::byte{0x5A}; });
      });
    }

   private:
    std::vector<std::vector<std::byte>> memory_;
    bool good_ = true;
  };
  start();
  connect();
  proxy_->delay(3ms);
  proxy_->reset_after(1'500'000);
  constexpr std::uint32_t kChunks = 60;
  auto sink = std::make_shared<Scribbler>(kChunks);
  ASSERT_TRUE(low().post_receive({1, 1}, 7, kChunks, sink).is_ok());
  for (std::uint32_t i = 0; i < kChunks; ++i) {
    ASSERT_TRUE(high().send(chunk_of({1, 1}, pattern(700'000, i), i, kChunks)).is_ok());
  }
  ASSERT_TRUE(sink->wait().is_ok()) << sink->wait().to_string();
  std::this_thread::sleep_for(100ms);
  EXPECT_TRUE(sink->good());
  EXPECT_TRUE(sink->untouched());
  EXPECT_GT(high().stats().resent_segments, 0U);
}

}  // namespace
}  // namespace geocomm::transport::testing
