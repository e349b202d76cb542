// Whatever comes in over the wire, it fails at most the channel it came over, and a transfer with another
// peer goes on.
#include <functional>
#include <optional>
#include <random>
#include <thread>

#include "raw_peer.h"
#include "steady_traffic.h"
#include "transport_fixture.h"

namespace geocomm::transport::testing {
namespace {

// A victim with an honest peer, between which data flows all the time.
class HostilePeer : public ::testing::Test {
 protected:
  void SetUp() override {
    EndpointOptions options;
    options.max_unexpected_bytes = 1 << 20;
    pair_ = std::make_unique<Pair>(options);
    pair_->connect();
    victim().allow(token(1));
    traffic_.emplace(*pair_->high_channel, *pair_->low_channel);
  }
  void TearDown() override {
    // Some more after the attack.
    EXPECT_TRUE(traffic_->goes_on());
    traffic_.reset();
    EXPECT_TRUE(pair_->low_channel->status().is_ok()) << pair_->low_channel->status().to_string();
  }

  Endpoint& victim() { return *pair_->low; }
  // The victim's channel to the raw peer.
  std::shared_ptr<Channel> channel() {
    return *victim().connect({id_of(0xFF), "127.0.0.1", 1, "hostile"}, token(1));
  }
  // Packets on the data stream after a proper handshake must end the channel with CorruptData.
  void expect_corrupt(const std::function<void(RawPeer&)>& attack) {
    RawPeer raw(victim(), token(1));
    const auto attacked = channel();
    ASSERT_TRUE(attacked->wait_ready(patience()).is_ok());
    attack(raw);
    EXPECT_TRUE(raw.control.closed_by_peer());
    EXPECT_TRUE(raw.data.closed_by_peer());
    EXPECT_EQ(attacked->status().code(), StatusCode::CorruptData) << attacked->status().to_string();
    EXPECT_EQ(attacked->status().peer(), "hostile");
  }

  std::unique_ptr<Pair> pair_;
  std::optional<SteadyTraffic> traffic_;
};

TEST_F(HostilePeer, test_random_bytes_are_dropped_at_once) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 50; ++i) {
    RawConnection raw(victim().port());
    std::vector<std::uint64_t> noise(1 + random() % 64);
    for (auto& word : noise) word = random();
    (void)raw.send(noise.data(), noise.size() * 8);
    EXPECT_TRUE(raw.closed_by_peer());
  }
}

TEST_F(HostilePeer, test_one_wrong_byte_is_enough_to_be_dropped) {
  RawConnection raw(victim().port());
  ASSERT_TRUE(raw.send("G", 1));
  ASSERT_TRUE(raw.send("E", 1));
  EXPECT_TRUE(raw.closed_by_peer());
}

TEST_F(HostilePeer, test_http_request_is_dropped) {
  RawConnection raw(victim().port());
  const std::string request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  ASSERT_TRUE(raw.send(request.data(), request.size()));
  EXPECT_TRUE(raw.closed_by_peer());
}

TEST_F(HostilePeer, test_half_open_connections_are_limited_and_the_oldest_go_first) {
  std::vector<RawConnection> idle;
  for (int i = 0; i < 1025; ++i) idle.emplace_back(victim().port());
  const HeaderBytes hello = encode_header(make_header(PacketType::Hello));
  EXPECT_TRUE(idle.back().send(hello.data(), 10));  // half a header
  EXPECT_TRUE(idle.front().closed_by_peer());
  RawPeer honest(victim(), token(1));
  EXPECT_TRUE(channel()->wait_ready(patience()).is_ok());
}

TEST_F(HostilePeer, test_hello_with_wrong_length_is_dropped) {
  for (const std::uint32_t length : {0U, 127U, 129U, 0xFFFFFFFFU}) {
    RawConnection raw(victim().port());
    WireHeader header = make_header(PacketType::Hello);
    header.length = length;
    ASSERT_TRUE(raw.send(header));
    EXPECT_TRUE(raw.closed_by_peer()) << length;
  }
}

TEST_F(HostilePeer, test_hello_with_wrong_checksum_is_dropped) {
  RawConnection raw(victim().port());
  HeaderBytes bytes = encode_header(make_header(PacketType::Hello));
  bytes[40] ^= std::byte{1};
  ASSERT_TRUE(raw.send(bytes.data(), bytes.size()));
  EXPECT_TRUE(raw.closed_by_peer());
}

TEST_F(HostilePeer, test_stream_numbers_that_do_not_fit_are_refused) {
  const std::vector<std::pair<int, int>> bad = {{0, 0}, {0, 65}, {2, 1}, {1, 1}, {65535, 65535}};
  for (const auto& [stream, count] : bad) {
    RawConnection raw(victim().port());
    ASSERT_TRUE(raw.send(raw_hello(victim(), static_cast<std::uint16_t>(stream),
                                   static_cast<std::uint16_t>(count), token(1))));
    const auto refuse = raw.read_header();
    ASSERT_TRUE(refuse.has_value());
    EXPECT_EQ(refuse->type, static_cast<std::uint8_t>(PacketType::Refuse)) << stream << " of " << count;
    EXPECT_EQ(refuse->code, static_cast<std::uint16_t>(StatusCode::InvalidArgument));
  }
}

TEST_F(HostilePeer, test_same_stream_twice_is_refused_and_harms_nothing) {
  RawPeer raw(victim(), token(1));
  ASSERT_TRUE(channel()->wait_ready(patience()).is_ok());
  RawConnection again(victim().port());
  ASSERT_TRUE(again.send(raw_hello(victim(), 1, 1, token(1))));
  const auto refuse = again.read_header();
  ASSERT_TRUE(refuse.has_value());
  EXPECT_EQ(refuse->type, static_cast<std::uint8_t>(PacketType::Refuse));
  EXPECT_TRUE(channel()->status().is_ok());
}

TEST_F(HostilePeer, test_unknown_token_is_told_to_try_again) {
  RawConnection raw(victim().port());
  ASSERT_TRUE(raw.send(raw_hello(victim(), 0, 1, token(77))));
  const auto refuse = raw.read_header();
  ASSERT_TRUE(refuse.has_value());
  EXPECT_EQ(refuse->type, static_cast<std::uint8_t>(PacketType::Refuse));
  EXPECT_EQ(refuse->code, static_cast<std::uint16_t>(StatusCode::Timeout));
}

TEST_F(HostilePeer, test_smaller_id_may_not_dial) {
  RawConnection raw(victim().port());
  ASSERT_TRUE(raw.send(raw_hello(victim(), 0, 1, token(1), id_of(0))));
  const auto refuse = raw.read_header();
  ASSERT_TRUE(refuse.has_value());
  EXPECT_EQ(refuse->code, static_cast<std::uint16_t>(StatusCode::InvalidArgument));
}

TEST_F(HostilePeer, test_noise_after_the_handshake_fails_the_channel) {
  expect_corrupt([](RawPeer& raw) {
    const auto noise = pattern(1000, 5);
    (void)raw.data.send(noise.data(), noise.size());
  });
}

TEST_F(HostilePeer, test_segment_fields_that_contradict_fail_the_channel) {
  struct Case {
    const char* what;
    std::function<void(WireHeader&)> change;
  };
  const std::vector<Case> cases = {
      {"chunk too large", [](WireHeader& h) { h.chunk_bytes = kMaxChunkBytes + 1; }},
      {"chunk enormous", [](WireHeader& h) { h.chunk_bytes = 0xFFFFFFFF; }},
      {"no chunks", [](WireHeader& h) { h.chunk_count = 0; }},
      {"too many chunks", [](WireHeader& h) { h.chunk_count = kMaxChunkCount + 1; }},
      {"chunk index", [](WireHeader& h) { h.chunk = h.chunk_count; }},
      {"offset not aligned", [](WireHeader& h) { h.offset = 1; }},
      {"offset at the end", [](WireHeader& h) { h.chunk_bytes = h.offset = kMaxSegmentBytes; }},
      {"offset wraps around", [](WireHeader& h) { h.offset = 0xFFFC0000; }},
      {"length too small", [](WireHeader& h) { h.length -= 1; }},
      {"length too large", [](WireHeader& h) { h.length += 1; }},
      {"length enormous", [](WireHeader& h) { h.length = 0xFFFFFFFF; }},
  };
  std::uint8_t id = 0xF0;
  for (const Case& one : cases) {
    const ProcessId from = id_of(++id);
    if (from < victim().id()) continue;
    RawPeer raw(victim(), token(1), from);
    WireHeader header = segment_header(1, 1000);
    one.change(header);
    ASSERT_TRUE(raw.data.send(header));
    EXPECT_TRUE(raw.control.closed_by_peer()) << one.what;
    const auto attacked = *victim().connect({from, "127.0.0.1", 1, "hostile"}, token(1));
    EXPECT_EQ(attacked->status().code(), StatusCode::CorruptData) << one.what;
  }
}

TEST_F(HostilePeer, test_segment_twice_fails_the_channel) {
  expect_corrupt([](RawPeer& raw) {
    const auto data = pattern(kMaxSegmentBytes, 1);
    WireHeader header = segment_header(1, 2 * kMaxSegmentBytes);
    (void)raw.data.send(header);
    (void)raw.data.send(data.data(), data.size());
    header.sequence = 2;
    (void)raw.data.send(header);
  });
}

TEST_F(HostilePeer, test_chunk_twice_never_completes_an_operation) {
  RawPeer raw(victim(), token(1));
  auto sink = std::make_shared<CollectingSink>(2);
  ASSERT_TRUE(channel()->wait_ready(patience()).is_ok());
  ASSERT_TRUE(channel()->post_receive({1, 1}, 7, 2, sink).is_ok());
  WireHeader header = segment_header(1, 10);
  header.chunk_count = 2;
  for (std::uint64_t number = 1; number <= 2; ++number) {
    header.sequence = number;
    (void)raw.data.send(header);
    (void)raw.data.send("0123456789", 10);
  }
  EXPECT_EQ(sink->wait().code(), StatusCode::CorruptData);
  EXPECT_EQ(sink->count(), 1U);
}

TEST_F(HostilePeer, test_chunk_that_changes_its_size_fails_the_channel) {
  expect_corrupt([](RawPeer& raw) {
    const auto data = pattern(kMaxSegmentBytes, 1);
    (void)raw.data.send(segment_header(1, 2 * kMaxSegmentBytes));
    (void)raw.data.send(data.data(), data.size());
    WireHeader second = segment_header(1, 3 * kMaxSegmentBytes, 2);
    second.offset = kMaxSegmentBytes;
    (void)raw.data.send(second);
  });
}

TEST_F(HostilePeer, test_operation_that_changes_its_descriptor_fails_the_channel) {
  expect_corrupt([](RawPeer& raw) {
    WireHeader header = segment_header(1, 0);
    header.chunk_count = 2;
    (void)raw.data.send(header);
    header.sequence = 2;
    header.chunk = 1;
    header.descriptor = 8;
    (void)raw.data.send(header);
  });
}

TEST_F(HostilePeer, test_unknown_packet_types_fail_the_channel) {
  expect_corrupt([](RawPeer& raw) { (void)raw.control.send(make_header(static_cast<PacketType>(200))); });
}

TEST_F(HostilePeer, test_segment_on_the_control_stream_fails_the_channel) {
  expect_corrupt([](RawPeer& raw) { (void)raw.control.send(segment_header(1, 10)); });
}

TEST_F(HostilePeer, test_control_packet_on_a_data_stream_fails_the_channel) {
  expect_corrupt([](RawPeer& raw) { (void)raw.data.send(control_header(PacketType::Grant, 1)); });
}

TEST_F(HostilePeer, test_close_on_a_data_stream_fails_the_channel) {
  expect_corrupt([](RawPeer& raw) { (void)raw.data.send(control_header(PacketType::Close, 1)); });
}

// spec channel 9.1: "After a Close, a side MUST take a new segment"
TEST_F(HostilePeer, test_segment_or_grant_after_close_ends_the_connections) {
  for (const bool segment : {true, false}) {
    ProcessId id = id_of(0xFF);  // larger than the victim's, whatever that is: the larger one dials
    id.back() -= segment ? 1 : 2;
    RawPeer raw(victim(), token(1), id);
    ASSERT_TRUE(raw.control.send(control_header(PacketType::Close, 1)));
    const auto close = raw.next_control(PacketType::Close);  // the victim's, after it has taken ours
    ASSERT_TRUE(close.has_value());
    (void)(segment ? raw.data.send(segment_header(1, 0))
                   : raw.control.send(control_header(PacketType::Grant, 2)));
    EXPECT_TRUE(raw.control.closed_by_peer());
    EXPECT_TRUE(raw.data.closed_by_peer());
  }
}

TEST_F(HostilePeer, test_header_of_other_version_fails_the_channel) {
  RawPeer raw(victim(), token(1));
  HeaderBytes bytes = encode_header(segment_header(1, 0));
  bytes[4] = std::byte{77};
  ASSERT_TRUE(raw.data.send(bytes.data(), bytes.size()));
  EXPECT_TRUE(raw.control.closed_by_peer());
  EXPECT_FALSE(channel()->status().is_ok());
}

TEST_F(HostilePeer, test_unexpected_bytes_over_the_credit_fail_the_channel) {
  expect_corrupt([](RawPeer& raw) {
    for (std::uint64_t op = 0; op < 5; ++op) {
      const auto data = pattern(kMaxSegmentBytes, op);
      if (!raw.data.send(segment_header(op, kMaxSegmentBytes, op + 1))) return;
      if (!raw.data.send(data.data(), data.size())) return;
    }
  });
}

TEST_F(HostilePeer, test_flood_of_empty_operations_fails_the_channel) {
  expect_corrupt([](RawPeer& raw) {
    for (std::uint64_t op = 0; op < 257; ++op) {
      if (!raw.data.send(segment_header(op, 0, op + 1))) return;
    }
  });
}

TEST_F(HostilePeer, test_flood_of_grants_fails_the_channel) {
  expect_corrupt([](RawPeer& raw) {
    std::vector<HeaderBytes> packets(1024);
    for (std::uint64_t op = 0; op <= (1U << 18); op += packets.size()) {
      for (std::size_t i = 0; i < packets.size(); ++i) {
        WireHeader header = make_header(PacketType::Grant);
        header.sequence = op + i + 1;
        header.group = 1;
        header.op = op + i;
        packets[i] = encode_header(header);
      }
      if (!raw.control.send(packets.data(), packets.size() * kHeaderBytes)) return;
    }
  });
}

TEST_F(HostilePeer, test_peer_that_never_reads_replies_takes_bounded_memory) {
  RawPeer raw(victim(), token(1));
  ASSERT_TRUE(channel()->wait_ready(patience()).is_ok());
  std::vector<HeaderBytes> packets(1024);
  WireHeader header = make_header(PacketType::Heartbeat);
  header.op = 1;
  for (auto& packet : packets) packet = encode_header(header);
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(raw.control.send(packets.data(), packets.size() * kHeaderBytes));
  EXPECT_TRUE(channel()->status().is_ok());
}

}  // namespace
}  // namespace geocomm::transport::testing
