// What goes in at one end comes out at the other.
#include <thread>

#include "transport_fixture.h"

namespace geocomm::transport::testing {
namespace {

TEST(ChannelTransfer, test_posted_chunk_arrives_in_the_sink) {
  Pair pair;
  pair.connect();
  auto sink = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 1, sink).is_ok());
  const auto data = pattern(3 * kMiB + 5, 1);
  SentLatch sent;
  ASSERT_TRUE(pair.high_channel->send(chunk_of({1, 1}, data), sent.callback()).is_ok());
  ASSERT_TRUE(sink->wait().is_ok());
  EXPECT_EQ(sink->data(), data);
  const auto results = sent.wait(1);
  ASSERT_EQ(results.size(), 1U);
  EXPECT_TRUE(results[0].is_ok());
}

TEST(ChannelTransfer, test_unexpected_chunks_are_delivered_when_posted) {
  Pair pair;
  pair.connect();
  const auto first = pattern(2 * kMiB, 2);
  const auto second = pattern(100, 3);
  SentLatch sent;
  ASSERT_TRUE(pair.low_channel->send(chunk_of({1, 1}, first, 0, 2), sent.callback()).is_ok());
  ASSERT_TRUE(pair.low_channel->send(chunk_of({1, 1}, second, 1, 2), sent.callback()).is_ok());
  ASSERT_EQ(sent.wait(2).size(), 2U);
  while (pair.high_channel->stats().payload_received < first.size() + second.size()) {
    std::this_thread::sleep_for(1ms);
  }
  auto sink = std::make_shared<CollectingSink>(2);
  ASSERT_TRUE(pair.high_channel->post_receive({1, 1}, 7, 2, sink).is_ok());
  ASSERT_TRUE(sink->wait().is_ok());
  EXPECT_EQ(sink->data(0), first);
  EXPECT_EQ(sink->data(1), second);
}

TEST(ChannelTransfer, test_chunks_sent_before_connecting_arrive) {
  Pair pair;
  pair.connect(/*wait=*/false);
  const auto data = pattern(kMiB, 4);
  ASSERT_TRUE(pair.high_channel->send(chunk_of({1, 1}, data)).is_ok());
  ASSERT_TRUE(pair.low_channel->send(chunk_of({1, 1}, data)).is_ok());
  for (Channel* channel : {pair.low_channel.get(), pair.high_channel.get()}) {
    auto sink = std::make_shared<CollectingSink>(1);
    ASSERT_TRUE(channel->post_receive({1, 1}, 7, 1, sink).is_ok());
    ASSERT_TRUE(sink->wait().is_ok());
    EXPECT_EQ(sink->data(), data);
  }
}

TEST(ChannelTransfer, test_empty_chunks_arrive_posted_and_unexpected) {
  Pair pair;
  pair.connect();
  auto posted = std::make_shared<CollectingSink>(2);
  ASSERT_TRUE(pair.high_channel->post_receive({1, 1}, 7, 2, posted).is_ok());
  for (std::uint64_t op : {1, 2}) {
    ASSERT_TRUE(pair.low_channel->send(chunk_of({1, op}, {}, 0, 2)).is_ok());
    ASSERT_TRUE(pair.low_channel->send(chunk_of({1, op}, {}, 1, 2)).is_ok());
  }
  ASSERT_TRUE(posted->wait().is_ok());
  auto unexpected = std::make_shared<CollectingSink>(2);
  ASSERT_TRUE(pair.high_channel->post_receive({1, 2}, 7, 2, unexpected).is_ok());
  ASSERT_TRUE(unexpected->wait().is_ok());
}

TEST(ChannelTransfer, test_segment_boundaries_keep_every_byte) {
  Pair pair;
  pair.connect();
  const std::vector<std::size_t> sizes = {1, 4095, 4096, 262143, 262144, 262145, 524288, 16 * kMiB};
  const auto count = static_cast<std::uint32_t>(sizes.size());
  auto sink = std::make_shared<CollectingSink>(count);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, count, sink).is_ok());
  for (std::uint32_t i = 0; i < count; ++i) {
    ASSERT_TRUE(pair.high_channel->send(chunk_of({1, 1}, pattern(sizes[i], i), i, count)).is_ok());
  }
  ASSERT_TRUE(sink->wait().is_ok());
  for (std::uint32_t i = 0; i < count; ++i) EXPECT_EQ(sink->data(i), pattern(sizes[i], i)) << sizes[i];
}

TEST(ChannelTransfer, test_many_operations_both_ways_keep_apart) {
  Pair pair;
  pair.connect();
  constexpr std::uint64_t kOps = 300;
  constexpr std::uint32_t kChunks = 3;
  const auto size = [](std::uint64_t op, std::uint32_t chunk) {
    return (op * 7919 + chunk * 104729) % 70000;
  };
  const auto run = [&](Channel& channel, std::uint64_t out_seed, std::uint64_t in_seed, bool post_late) {
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    const auto post = [&](std::uint64_t op) {
      sinks.push_back(std::make_shared<CollectingSink>(kChunks));
      EXPECT_TRUE(channel.post_receive({9, op}, op, kChunks, sinks.back()).is_ok());
    };
    for (std::uint64_t op = 0; op < kOps; ++op) {
      if (!post_late) post(op);
      for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        const auto data = pattern(size(op, chunk), out_seed + op * 10 + chunk);
        EXPECT_TRUE(channel.send(chunk_of({9, op}, data, chunk, kChunks, op)).is_ok());
      }
    }
    for (std::uint64_t op = 0; post_late && op < kOps; ++op) post(op);
    for (std::uint64_t op = 0; op < kOps; ++op) {
      EXPECT_TRUE(sinks[op]->wait().is_ok());
      for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        EXPECT_EQ(sinks[op]->data(chunk), pattern(size(op, chunk), in_seed + op * 10 + chunk)) << op;
      }
    }
  };
  std::thread other([&] { run(*pair.high_channel, 1'000'000, 2'000'000, true); });
  run(*pair.low_channel, 2'000'000, 1'000'000, false);
  other.join();
}

TEST(ChannelTransfer, test_sixty_four_streams_carry_one_operation) {
  EndpointOptions options;
  options.streams = 64;
  Pair pair(options);
  pair.connect();
  EXPECT_EQ(pair.low_channel->stats().streams, 64U);
  EXPECT_EQ(pair.high_channel->stats().streams, 64U);
  auto sink = std::make_shared<CollectingSink>(32);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 32, sink).is_ok());
  for (std::uint32_t i = 0; i < 32; ++i) {
    ASSERT_TRUE(pair.high_channel->send(chunk_of({1, 1}, pattern(kMiB, i), i, 32)).is_ok());
  }
  ASSERT_TRUE(sink->wait().is_ok());
  for (std::uint32_t i = 0; i < 32; ++i) EXPECT_EQ(sink->data(i), pattern(kMiB, i));
}

TEST(ChannelTransfer, test_stats_count_payload_and_wire_bytes) {
  Pair pair;
  pair.connect();
  auto sink = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 1, sink).is_ok());
  ASSERT_TRUE(pair.high_channel->send(chunk_of({1, 1}, pattern(kMiB, 1))).is_ok());
  ASSERT_TRUE(sink->wait().is_ok());
  while (pair.high_channel->stats().payload_sent < kMiB) std::this_thread::sleep_for(1ms);
  const ChannelStats sender = pair.high_channel->stats();
  const ChannelStats receiver = pair.low_channel->stats();
  EXPECT_EQ(sender.payload_sent, kMiB);
  EXPECT_EQ(receiver.payload_received, kMiB);
  EXPECT_GE(sender.bytes_sent, kMiB + 4 * 64);
  EXPECT_LT(sender.bytes_sent, kMiB + 10000);
  EXPECT_GT(sender.rtt_us, 0U);
  EXPECT_FALSE(sender.congestion_control.empty());
  EXPECT_GE(sender.tcp.data_bytes, kMiB);
}

TEST(ChannelTransfer, test_heartbeats_tell_the_peers_clock) {
  EndpointOptions options;
  options.link_deadline = 1800ms;
  Pair pair(options);
  pair.connect();
  for (const auto& channel : {pair.low_channel, pair.high_channel}) {
    while (!channel->stats().clock) std::this_thread::sleep_for(10ms);
    const ChannelStats stats = channel->stats();
    EXPECT_LE(std::abs(stats.clock->offset_ns), stats.clock->error_ns);  // both have the same
    EXPECT_GT(stats.least_rtt_us, 0U);
    EXPECT_LE(stats.least_rtt_us, stats.rtt_us);
  }
}

TEST(ChannelTransfer, test_pacing_cap_keeps_data_whole) {
  EndpointOptions options;
  options.max_pacing_bps = 2'000'000'000;
  Pair pair(options);
  pair.connect();
  auto sink = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 1, sink).is_ok());
  ASSERT_TRUE(pair.high_channel->send(chunk_of({1, 1}, pattern(8 * kMiB, 1))).is_ok());
  ASSERT_TRUE(sink->wait().is_ok());
  EXPECT_EQ(sink->data(), pattern(8 * kMiB, 1));
}

}  // namespace
}  // namespace geocomm::transport::testing
