// TLS on several threads: what the IO thread has others do, and what it must not leave to them.
#include <atomic>
#include <future>
#include <thread>

#include "tls_fixture.h"
#include "transport/io/offload.h"
#include "transport/mux/segment_receiver.h"

namespace geocomm::transport::testing {
namespace {

class OffloadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    loop_ = std::move(IoLoop::create()).value();
    ASSERT_TRUE(loop_->start().is_ok());
    on_loop([this] { offload_ = std::make_unique<Offload>(threads_, *loop_); });
  }
  void TearDown() override {
    on_loop([this] { offload_.reset(); });
  }
  void on_loop(const std::function<void()>& task) { ASSERT_TRUE(loop_->run(task, patience())); }

  std::shared_ptr<IoLoop> loop_;
  core::ThreadPool threads_{1, "test"};
  std::unique_ptr<Offload> offload_;
};

TEST_F(OffloadTest, test_work_runs_elsewhere_and_its_end_on_the_io_thread) {
  std::promise<bool> worked;
  std::promise<bool> ended;
  on_loop([&] {
    offload_->begin([&] { worked.set_value(loop_->in_loop()); },
                    [&] {
                      EXPECT_FALSE(offload_->is_under_way());
                      ended.set_value(loop_->in_loop());
                    });
    EXPECT_TRUE(offload_->is_under_way());
  });
  EXPECT_FALSE(worked.get_future().get());
  EXPECT_TRUE(ended.get_future().get());
}

TEST_F(OffloadTest, test_cancel_waits_for_work_that_runs_and_drops_what_does_not) {
  std::promise<void> begun;
  std::promise<void> may_end;
  std::atomic<int> over{0};
  std::atomic<int> ends{0};
  auto other = std::make_unique<Offload>(threads_, *loop_);
  on_loop([&] {
    offload_->begin(
        [&] {
          begun.set_value();
          may_end.get_future().wait();
          ++over;
        },
        [&] { ++ends; });
    other->begin([&] { over += 100; }, [&] { ++ends; });  // waits for the only thread
  });
  begun.get_future().wait();
  on_loop([&] { other->cancel(); });
  EXPECT_EQ(over, 0);
  std::thread later([&] {
    std::this_thread::sleep_for(20ms);
    may_end.set_value();
  });
  on_loop([&] {
    offload_->cancel();
    EXPECT_EQ(over, 1);
    EXPECT_FALSE(offload_->is_under_way());
  });
  later.join();
  std::promise<void> last;
  on_loop([&] { offload_->begin([] {}, [&] { last.set_value(); }); });
  last.get_future().wait();
  EXPECT_EQ(over, 1);
  EXPECT_EQ(ends, 0);
}

// spec channel 6.1: "a receiver MUST NOT write a byte of another after it."
TEST(Reception, test_one_writes_at_a_time_and_none_once_it_is_finished) {
  Incoming incoming;
  incoming.op = std::make_shared<ReceiveOp>(OpKey{1, 1});
  Reception reception(1, incoming);
  ASSERT_TRUE(reception.try_claim());
  EXPECT_FALSE(reception.try_claim());
  std::atomic<bool> finished{false};
  std::thread io([&] {
    EXPECT_TRUE(reception.finish());
    finished = true;
  });
  while (!reception.done) std::this_thread::yield();
  EXPECT_FALSE(finished);
  reception.release();
  io.join();
  EXPECT_FALSE(reception.try_claim());
  EXPECT_FALSE(reception.claim());
  EXPECT_FALSE(reception.finish());
}

EndpointOptions threaded() {
  EndpointOptions options;
  options.tls_threads = 3;
  return options;
}

TEST(TlsThreads, test_chunks_of_all_sizes_arrive_both_ways_at_once) {
  SecurePair pair(threaded());
  const Status connected = pair.connect();
  ASSERT_TRUE(connected.is_ok()) << connected.to_string();
  const auto send_all = [](Channel& from, Channel& to, std::uint64_t first_op) {
    std::uint64_t op = first_op;
    for (int round = 0; round < 3; ++round) {
      for (const std::size_t bytes : {0U, 1U, 16384U, 16385U, 262145U, 5000000U}) {
        expect_transfer(from, to, op++, bytes, 8);
      }
    }
  };
  std::thread back([&] { send_all(*pair.low_channel, *pair.high_channel, 1); });
  send_all(*pair.high_channel, *pair.low_channel, 1000);
  back.join();
  EXPECT_TRUE(pair.high->shutdown(patience()).is_ok());
  EXPECT_TRUE(pair.low->shutdown(patience()).is_ok());
}

TEST(TlsThreads, test_channel_that_is_forgotten_in_mid_transfer_writes_nothing_more) {
  for (int round = 0; round < 20; ++round) {
    SecurePair pair(threaded());
    const Status connected = pair.connect();
    ASSERT_TRUE(connected.is_ok()) << connected.to_string();
    const auto sink = std::make_shared<CollectingSink>(32);
    ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 32, sink).is_ok());
    const std::vector<std::byte> data = pattern(2 * kMiB, 1);
    for (std::uint32_t i = 0; i < 32; ++i) {
      ASSERT_TRUE(pair.high_channel->send(chunk_of({1, 1}, data, i, 32)).is_ok());
    }
    while (sink->count() < 4) std::this_thread::yield();
    pair.low->forget(pair.high->id(), {StatusCode::Aborted, "forgotten"});
    EXPECT_EQ(sink->wait().code(), StatusCode::Aborted);
    pair.low_channel.reset();
    EXPECT_EQ(sink.use_count(), 1) << "the channel still has the memory of its chunks";
    pair.high->abort({StatusCode::Aborted, "over"});
  }
}

}  // namespace
}  // namespace geocomm::transport::testing
