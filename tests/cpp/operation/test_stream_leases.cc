// What operations on streams take of the driver, share, and give back: streams, words and pinned memory.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "core/executor.h"
#include "stream_model.h"

namespace geocomm::binding {
namespace {

using core::Deadline;
using namespace std::chrono_literals;  // NOLINT

class StreamLeaseTest : public ::testing::Test {
 protected:
  Deadline soon() const { return Deadline::after(20s); }

  ModelRank rank_{1};
};

TEST_F(StreamLeaseTest, test_stream_signal_let_go_before_it_was_given_does_not_disturb_the_next) {
  std::set<StreamDriver::Stream> spoiled;
  for (int i = 0; i < 3; ++i) {  // their words are still to be written
    const StreamLease lease(rank_.streams, soon());
    StreamSignal signal(lease, StreamWord::Finish);
    ASSERT_TRUE(signal.enqueue());
    EXPECT_TRUE(spoiled.insert(lease.stream()).second);
  }
  std::vector<std::unique_ptr<StreamLease>> leases;
  std::vector<std::unique_ptr<StreamSignal>> later;
  for (int i = 0; i < 300; ++i) {
    leases.push_back(std::make_unique<StreamLease>(rank_.streams, soon()));
    EXPECT_FALSE(spoiled.contains(leases.back()->stream()));
    later.push_back(std::make_unique<StreamSignal>(*leases.back(), StreamWord::Finish));
    ASSERT_TRUE(later.back()->enqueue());
    EXPECT_FALSE(later.back()->is_given());
  }
  rank_.device.advance();
  for (const auto& signal : later) EXPECT_TRUE(signal->is_given());
}

// The driver gives one operation what it needs, and no other. Works of those that have ended are still held.
TEST_F(StreamLeaseTest, test_stream_operations_share_what_the_driver_has_and_all_succeed) {
  rank_.device.most_streams = 2;  // the program's, and one
  const std::jthread device([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (!rank_.device.advance()) std::this_thread::sleep_for(50us);
    }
  });
  core::GrowingExecutor executor("test");
  HostLane host(executor);
  StreamLane lane(host);
  std::vector<OperationPtr> operations;
  std::vector<std::future<std::exception_ptr>> ends;
  for (int i = 0; i < 20; ++i) {
    const auto lease = std::make_shared<StreamLease>(rank_.streams, soon());
    ASSERT_NE(lease->stream(), nullptr);
    operations.push_back(StreamOperation::create({}, soon(), rank_.group, lease, InnerUse::First,
                                                 [](const std::function<void()>& run) { run(); }));
    operations.back()->set_steps({nullptr, [] { return Status::ok(); }, [] {}});
    const auto end = std::make_shared<std::promise<std::exception_ptr>>();
    ends.push_back(end->get_future());
    operations.back()->on_done([end](const std::exception_ptr& error) { end->set_value(error); });
    lane.submit(operations.back(), Runs::InOrder);
  }
  for (auto& end : ends) EXPECT_EQ(end.get(), nullptr);
  EXPECT_TRUE(operations.front()->is_finished());
  // And where none comes back, there is an end to waiting for it.
  const StreamLease held(rank_.streams, soon());
  EXPECT_EQ(StreamLease(rank_.streams, Deadline::after(20ms)).stream(), nullptr);
}

TEST_F(StreamLeaseTest, test_stream_lease_of_ended_operations_serves_the_next_one) {
  std::set<StreamDriver::Stream> used;
  for (int i = 0; i < 20; ++i) {
    const auto operation = rank_.issue(InnerUse::First);
    used.insert(operation->stream());
    rank_.order.use(operation);
    rank_.device.advance();
    EXPECT_EQ(end_of(operation), nullptr);
  }
  EXPECT_EQ(used.size(), 1u);
}

// Frames of 3 MB an operation, of which four are under way at once.
TEST(StreamMemory, test_pinned_memory_serves_again_and_goes_back_once_it_lies_idle) {
  DeviceModel device(2);
  constexpr std::size_t kFrames = 3'000'000;
  std::size_t words = 0;
  {
    DeviceStreams streams(device, 20ms);
    EXPECT_NE(StreamLease(streams, Deadline::after(20s)).stream(), nullptr);
    words = device.pinned_bytes();
    for (int round = 0; round < 5; ++round) {
      std::vector<std::unique_ptr<StreamLease>> leases;
      std::vector<core::Buffer> frames;
      for (int i = 0; i < 4; ++i) {
        leases.push_back(std::make_unique<StreamLease>(streams, Deadline::after(20s)));
        frames.push_back(streams.pinned().acquire(kFrames));
      }
      EXPECT_LE(device.pinned_bytes() - words, 4 * (kFrames + kFrames / 8));
    }
    // A kernel is under way on the stream of an operation: what is idle must wait for that.
    auto lease = std::make_unique<StreamLease>(streams, Deadline::after(20s));
    bool passed = false;
    device.launch(lease->stream(), nullptr);
    std::this_thread::sleep_for(100ms);
    EXPECT_GE(device.pinned_bytes() - words, 4 * kFrames);
    EXPECT_EQ(device.freed_under_work, 0);
    device.advance();
    lease.reset();
    for (int i = 0; i < 2000 && !passed; ++i) {
      passed = device.pinned_bytes() == words;
      std::this_thread::sleep_for(10ms);
    }
    EXPECT_TRUE(passed) << device.pinned_bytes() - words << " bytes stay pinned";
    EXPECT_EQ(device.freed_under_work, 0);
    // And again: the memory comes back.
    EXPECT_EQ(streams.pinned().acquire(kFrames).size(), 0u);
    device.most_pinned = device.pinned_bytes();
    EXPECT_THROW(streams.pinned().acquire(20 * kFrames), std::bad_alloc);
  }
  EXPECT_EQ(device.pinned_bytes(), words);  // words stay: a stream may still write to them
}

}  // namespace
}  // namespace geocomm::binding
