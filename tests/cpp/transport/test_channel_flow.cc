// Credit, order, cancelling, mismatches: what a channel does when its users do not run in step.
#include <algorithm>
#include <thread>

#include "raw_peer.h"
#include "transport_fixture.h"

namespace geocomm::transport::testing {
namespace {

EndpointOptions with_unexpected(std::size_t bytes) {
  EndpointOptions options;
  options.max_unexpected_bytes = bytes;
  return options;
}

void send_op(Channel& channel, std::uint64_t op, std::uint32_t chunks, std::size_t chunk_bytes,
             SentLatch* sent = nullptr) {
  const auto data = pattern(chunk_bytes, op);
  for (std::uint32_t i = 0; i < chunks; ++i) {
    ASSERT_TRUE(channel.send(chunk_of({1, op}, data, i, chunks), sent ? sent->callback() : nullptr).is_ok());
  }
}

TEST(ChannelFlow, test_unposted_operation_does_not_hold_up_a_posted_one) {
  Pair pair;  // 64 MiB of credit
  pair.connect();
  send_op(*pair.high_channel, 1, 200, kMiB);
  auto posted = std::make_shared<CollectingSink>(4);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 2}, 7, 4, posted).is_ok());
  send_op(*pair.high_channel, 2, 4, kMiB);
  ASSERT_TRUE(posted->wait().is_ok());
  const std::uint64_t received = pair.low_channel->stats().payload_received;
  EXPECT_LE(received, (64 + 4) * kMiB);
  EXPECT_GT(received, 4 * kMiB);
  auto late = std::make_shared<CollectingSink>(200);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 200, late).is_ok());
  ASSERT_TRUE(late->wait().is_ok());
  const auto data = pattern(kMiB, 1);
  for (std::uint32_t i = 0; i < 200; ++i) ASSERT_EQ(late->data(i), data) << i;
}

// spec channel 7.1: "Charges outstanding MUST NOT exceed the receiver's max_unexpected_bytes."
TEST(ChannelFlow, test_credit_is_what_the_receiver_offers) {
  Pair pair(with_unexpected(64 * kMiB), with_unexpected(2 * kMiB));
  pair.connect();
  const bool high_is_small = [&] {
    // Which of the two has the small limit is up to their random ids: find out by what it takes.
    send_op(*pair.low_channel, 1, 8, kMiB);
    SentLatch sent;
    send_op(*pair.high_channel, 1, 8, kMiB, &sent);
    std::uint64_t high = 0;
    std::uint64_t low = 0;
    while (std::max(high, low) < 8 * kMiB || std::min(high, low) < 2 * kMiB) {
      std::this_thread::sleep_for(1ms);
      high = pair.high_channel->stats().payload_received;
      low = pair.low_channel->stats().payload_received;
    }
    return high < low;
  }();
  Channel& small = high_is_small ? *pair.high_channel : *pair.low_channel;
  EXPECT_EQ(small.stats().payload_received, 2 * kMiB);
  auto sink = std::make_shared<CollectingSink>(8);
  ASSERT_TRUE(small.post_receive({1, 1}, 7, 8, sink).is_ok());
  EXPECT_TRUE(sink->wait().is_ok());
}

TEST(ChannelFlow, test_credit_comes_back_when_operations_are_posted) {
  Pair pair(with_unexpected(kMiB));
  pair.connect();
  // In all far more than the credit, in operations that are posted late.
  for (std::uint64_t op = 0; op < 20; ++op) send_op(*pair.high_channel, op, 1, kMiB);
  for (std::uint64_t op = 0; op < 20; ++op) {
    auto sink = std::make_shared<CollectingSink>(1);
    ASSERT_TRUE(pair.low_channel->post_receive({1, op}, 7, 1, sink).is_ok());
    ASSERT_TRUE(sink->wait().is_ok());
    EXPECT_EQ(sink->data(), pattern(kMiB, op));
  }
  send_op(*pair.high_channel, 100, 1, kMiB);
  while (pair.low_channel->stats().payload_received < 21 * kMiB) std::this_thread::sleep_for(1ms);
}

TEST(ChannelFlow, test_chunk_larger_than_the_credit_waits_for_its_post) {
  Pair pair(with_unexpected(kMiB));
  pair.connect();
  send_op(*pair.high_channel, 1, 2, 4 * kMiB);
  auto sink = std::make_shared<CollectingSink>(2);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 2, sink).is_ok());
  ASSERT_TRUE(sink->wait().is_ok());
}

TEST(ChannelFlow, test_descriptor_mismatch_is_told_to_the_sink_and_spares_the_channel) {
  Pair pair;
  pair.connect();
  for (const bool post_first : {true, false}) {
    const std::uint64_t op = post_first ? 1 : 2;
    auto sink = std::make_shared<CollectingSink>(1);
    if (post_first) {
      ASSERT_TRUE(pair.low_channel->post_receive({1, op}, 8, 1, sink).is_ok());
    }
    const std::uint64_t before = pair.low_channel->stats().payload_received;
    send_op(*pair.high_channel, op, 2, kMiB);
    if (!post_first) {
      while (pair.low_channel->stats().payload_received < before + 2 * kMiB) std::this_thread::sleep_for(1ms);
      ASSERT_TRUE(pair.low_channel->post_receive({1, op}, 8, 1, sink).is_ok());
    }
    EXPECT_EQ(sink->wait().code(), StatusCode::InvalidArgument);
    EXPECT_EQ(sink->count(), 0U);
  }
  auto good = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 3}, 7, 1, good).is_ok());
  send_op(*pair.high_channel, 3, 1, kMiB);
  EXPECT_TRUE(good->wait().is_ok());
}

TEST(ChannelFlow, test_chunk_count_mismatch_is_told_to_the_sink) {
  Pair pair;
  pair.connect();
  auto sink = std::make_shared<CollectingSink>(3);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 3, sink).is_ok());
  send_op(*pair.high_channel, 1, 2, 100);
  EXPECT_EQ(sink->wait().code(), StatusCode::InvalidArgument);
}

TEST(ChannelFlow, test_sink_without_room_fails_only_its_operation) {
  Pair pair;
  pair.connect();
  auto posted = std::make_shared<CollectingSink>(2);
  posted->refuse_place = true;
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 2, posted).is_ok());
  send_op(*pair.high_channel, 1, 2, kMiB);
  EXPECT_EQ(posted->wait().code(), StatusCode::OutputTooSmall);
  send_op(*pair.high_channel, 2, 1, kMiB);
  while (pair.low_channel->stats().payload_received < 3 * kMiB) std::this_thread::sleep_for(1ms);
  auto unexpected = std::make_shared<CollectingSink>(1);
  unexpected->refuse_place = true;
  (void)pair.low_channel->post_receive({1, 2}, 7, 1, unexpected);
  EXPECT_EQ(unexpected->wait().code(), StatusCode::OutputTooSmall);
  EXPECT_TRUE(pair.low_channel->status().is_ok());
}

TEST(ChannelFlow, test_posting_a_key_twice_is_invalid) {
  Pair pair;
  pair.connect();
  auto first = std::make_shared<CollectingSink>(1);
  auto second = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 1, first).is_ok());
  EXPECT_EQ(pair.low_channel->post_receive({1, 1}, 7, 1, second).code(), StatusCode::InvalidArgument);
  send_op(*pair.high_channel, 1, 1, 10);
  EXPECT_TRUE(first->wait().is_ok());
  EXPECT_EQ(second->count(), 0U);
}

TEST(ChannelFlow, test_bad_arguments_are_refused) {
  Pair pair;
  pair.connect();
  Channel& channel = *pair.high_channel;
  EXPECT_EQ(channel.send(chunk_of({1, 1}, {}, 1, 1)).code(), StatusCode::InvalidArgument);
  EXPECT_EQ(channel.send(chunk_of({1, 1}, {}, 0, 0)).code(), StatusCode::InvalidArgument);
  EXPECT_EQ(channel.send(chunk_of({1, 1}, pattern(16 * kMiB + 1, 1))).code(), StatusCode::InvalidArgument);
  EXPECT_EQ(channel.post_receive({1, 1}, 7, 1, nullptr).code(), StatusCode::InvalidArgument);
  EXPECT_EQ(channel.post_receive({1, 1}, 7, 0, std::make_shared<CollectingSink>(0)).code(),
            StatusCode::InvalidArgument);
  ASSERT_TRUE(channel.send(chunk_of({1, 2}, {}, 0, 2, 7)).is_ok());
  EXPECT_EQ(channel.send(chunk_of({1, 2}, {}, 1, 2, 8)).code(), StatusCode::InvalidArgument);
}

TEST(ChannelFlow, test_cancel_discards_what_still_comes) {
  Pair pair;
  pair.connect();
  auto sink = std::make_shared<CollectingSink>(40);
  const std::weak_ptr<CollectingSink> watch = sink;
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 40, sink).is_ok());
  send_op(*pair.high_channel, 1, 40, kMiB);
  while (sink->count() == 0) std::this_thread::yield();
  pair.low_channel->cancel({1, 1});
  const std::size_t count = sink->count();
  while (pair.low_channel->stats().payload_received < 40 * kMiB) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(sink->count(), count);
  EXPECT_FALSE(sink->error().has_value());
  auto next = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 2}, 7, 1, next).is_ok());
  send_op(*pair.high_channel, 2, 1, kMiB);
  ASSERT_TRUE(next->wait().is_ok());
  sink.reset();
  const auto end = patience();
  while (!watch.expired() && !end.expired()) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(watch.expired()) << "the channel keeps a cancelled sink";
}

TEST(ChannelFlow, test_cancel_takes_back_what_is_queued) {
  Pair pair(with_unexpected(kMiB));
  pair.connect();
  SentLatch sent;
  send_op(*pair.high_channel, 1, 10, kMiB, &sent);
  pair.high_channel->cancel({1, 1});
  const auto results = sent.wait(10);
  ASSERT_EQ(results.size(), 10U);
  EXPECT_GE(std::count_if(results.begin(), results.end(),
                          [](const Status& status) { return status.code() == StatusCode::Aborted; }),
            9);
  // Credit is free for others once the peer has let go of what it had.
  pair.low_channel->cancel({1, 1});
  auto sink = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 2}, 7, 1, sink).is_ok());
  send_op(*pair.high_channel, 2, 1, kMiB);
  EXPECT_TRUE(sink->wait().is_ok());
}

TEST(ChannelFlow, test_close_group_ends_its_receives_and_discards_late_segments) {
  Pair pair(with_unexpected(4 * kMiB));
  pair.connect();
  auto doomed = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(pair.low_channel->post_receive({5, 1}, 7, 1, doomed).is_ok());
  pair.low->close_group(5, {StatusCode::Aborted, "group destroyed"}, QueuedChunks::Drop);
  EXPECT_EQ(doomed->wait().code(), StatusCode::Aborted);
  auto refused = std::make_shared<CollectingSink>(1);
  EXPECT_EQ(pair.low_channel->post_receive({5, 2}, 7, 1, refused).code(), StatusCode::Aborted);
  EXPECT_EQ(refused->wait().code(), StatusCode::Aborted);
  EXPECT_EQ(pair.low_channel->send(chunk_of({5, 2}, {})).code(), StatusCode::Aborted);
  // The peer knows nothing of it and sends more than the credit: everything must go through and vanish.
  SentLatch sent;
  const auto data = pattern(kMiB, 1);
  for (std::uint64_t op = 1; op <= 12; ++op) {
    ASSERT_TRUE(pair.high_channel->send(chunk_of({5, op}, data), sent.callback()).is_ok());
  }
  for (const Status& status : sent.wait(12)) EXPECT_TRUE(status.is_ok());
  while (pair.low_channel->stats().payload_received < 12 * kMiB) std::this_thread::sleep_for(1ms);
  auto other = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(pair.low_channel->post_receive({6, 1}, 7, 1, other).is_ok());
  ASSERT_TRUE(pair.high_channel->send(chunk_of({6, 1}, data)).is_ok());
  EXPECT_TRUE(other->wait().is_ok());
}

TEST(ChannelFlow, test_close_group_gives_the_credit_of_unexpected_data_back) {
  Pair pair(with_unexpected(4 * kMiB));
  pair.connect();
  const auto data = pattern(kMiB, 1);
  for (std::uint64_t op = 1; op <= 4; ++op) {
    ASSERT_TRUE(pair.high_channel->send(chunk_of({5, op}, data)).is_ok());
  }
  while (pair.low_channel->stats().payload_received < 4 * kMiB) std::this_thread::sleep_for(1ms);
  SentLatch sent;
  ASSERT_TRUE(pair.high_channel->send(chunk_of({6, 1}, data), sent.callback()).is_ok());
  EXPECT_TRUE(sent.wait(1, Deadline::after(20ms)).empty());
  pair.low->close_group(5, {StatusCode::Aborted, "group destroyed"}, QueuedChunks::Drop);
  EXPECT_EQ(sent.wait(1).size(), 1U);
}

TEST(ChannelFlow, test_close_group_drops_queued_chunks) {
  Pair pair(with_unexpected(kMiB));
  pair.connect();
  SentLatch sent;
  send_op(*pair.high_channel, 1, 10, kMiB, &sent);
  pair.high->close_group(1, {StatusCode::Aborted, "group destroyed"}, QueuedChunks::Drop);
  EXPECT_EQ(sent.wait(10).size(), 10U);
}

TEST(ChannelFlow, test_sink_may_send_from_its_callback) {
  class Echo : public CollectingSink {
   public:
    Echo(Channel& channel, OpKey reply) : CollectingSink(1), channel_(channel), reply_(reply) {}
    void on_chunk(std::uint32_t chunk) override {
      CollectingSink::on_chunk(chunk);
      EXPECT_TRUE(channel_.send(chunk_of(reply_, data())).is_ok());
    }

   private:
    Channel& channel_;
    OpKey reply_;
  };
  Pair pair;
  pair.connect();
  auto back = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(pair.high_channel->post_receive({1, 2}, 7, 1, back).is_ok());
  ASSERT_TRUE(
      pair.low_channel->post_receive({1, 1}, 7, 1, std::make_shared<Echo>(*pair.low_channel, OpKey{1, 2}))
          .is_ok());
  send_op(*pair.high_channel, 1, 1, kMiB);
  ASSERT_TRUE(back->wait().is_ok());
  EXPECT_EQ(back->data(), pattern(kMiB, 1));
}

TEST(ChannelFlow, test_posts_and_cancels_race_with_arrivals) {
  Pair pair(with_unexpected(8 * kMiB));
  pair.connect();
  constexpr std::uint64_t kOps = 200;
  std::thread sender([&] {
    for (std::uint64_t op = 0; op < kOps; ++op) {
      send_op(*pair.high_channel, op, 4, 30'000 + op * 100);
    }
  });
  std::vector<std::shared_ptr<CollectingSink>> kept;
  for (std::uint64_t op = 0; op < kOps; ++op) {
    auto sink = std::make_shared<CollectingSink>(4);
    ASSERT_TRUE(pair.low_channel->post_receive({1, op}, 7, 4, sink).is_ok());
    if (op % 3 == 0) {
      pair.low_channel->cancel({1, op});
    } else {
      kept.push_back(sink);
    }
  }
  for (const auto& sink : kept) EXPECT_TRUE(sink->wait().is_ok());
  sender.join();
}

}  // namespace
}  // namespace geocomm::transport::testing
