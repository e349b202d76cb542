// Peers made by hand that say on the wire what a link in trouble, or an attacker, would: copies of segments,
// old connections, numbers that cannot be.
#include <functional>
#include <thread>

#include "raw_peer.h"
#include "transport_fixture.h"

namespace geocomm::transport::testing {
namespace {

constexpr std::uint32_t kBytes = 100'000;

class LinkCopies : public ::testing::Test {
 protected:
  void SetUp() override {
    EndpointOptions options;
    options.link_deadline = 20s;
    victim_ = make_endpoint(options);
    victim_->allow(token(1));
    channel_ = *victim_->connect({id_of(0xFF), "127.0.0.1", 1, "hostile"}, token(1));
  }
  // A connection of stream `stream` of two data streams.
  RawConnection open(std::uint16_t stream, std::uint32_t generation = 1, std::uint64_t control_received = 0) {
    HelloPayload hello = raw_hello(*victim_, stream, 2, token(1));
    hello.generation = generation;
    hello.control_received = control_received;
    return open_stream(*victim_, hello);
  }
  void expect_refused(std::uint16_t stream, std::uint32_t generation, std::uint64_t control_received,
                      StatusCode code) {
    RawConnection raw(victim_->port());
    HelloPayload hello = raw_hello(*victim_, stream, 2, token(1));
    hello.generation = generation;
    hello.control_received = control_received;
    ASSERT_TRUE(raw.send(hello));
    const auto refuse = raw.read_header();
    ASSERT_TRUE(refuse.has_value());
    EXPECT_EQ(refuse->type, static_cast<std::uint8_t>(PacketType::Refuse));
    EXPECT_EQ(refuse->code, static_cast<std::uint16_t>(code));
    EXPECT_TRUE(channel_->status().is_ok()) << channel_->status().to_string();
  }
  void wait_received(std::uint64_t bytes) {
    const auto end = patience();
    while (channel_->stats().bytes_received < bytes && !end.expired()) std::this_thread::sleep_for(1ms);
  }
  // Until `control` says that all segments below `low` have arrived.
  void wait_acknowledged(RawConnection& control, std::uint64_t low) {
    for (;;) {
      const auto header = control.read_header();
      ASSERT_TRUE(header.has_value());
      if (header->type == static_cast<std::uint8_t>(PacketType::Ack) && header->op >= low) return;
    }
  }
  std::shared_ptr<CollectingSink> post(std::uint64_t op) {
    auto sink = std::make_shared<CollectingSink>(1);
    EXPECT_TRUE(channel_->post_receive({1, op}, 7, 1, sink).is_ok());
    return sink;
  }

  std::unique_ptr<Endpoint> victim_;
  std::shared_ptr<Channel> channel_;
  std::vector<std::byte> good_ = pattern(kBytes, 1);
  std::vector<std::byte> bad_ = pattern(kBytes, 2);
};

// spec channel 6.1: "a receiver MUST NOT write a byte of another after it."
TEST_F(LinkCopies, test_late_copy_writes_nothing_after_the_chunk_was_delivered) {
  for (const bool posted : {true, false}) {
    SCOPED_TRACE(posted);
    SetUp();
    RawConnection control = open(0);
    RawConnection one = open(1);
    RawConnection two = open(2);
    std::shared_ptr<CollectingSink> sink;
    if (posted) sink = post(1);
    const WireHeader header = segment_header(1, kBytes);
    const std::uint64_t before = channel_->stats().bytes_received;
    ASSERT_TRUE(one.send(header) && one.send(good_.data(), 10'000));
    wait_received(before + kHeaderBytes + 10'000);
    ASSERT_TRUE(two.send(header) && two.send(good_.data(), kBytes));
    wait_acknowledged(control, 2);
    if (!posted) sink = post(1);
    ASSERT_TRUE(sink->wait().is_ok());
    ASSERT_EQ(sink->data(), good_);
    // The first copy goes on, with other bytes so that they would be seen; then a third copy, whole.
    ASSERT_TRUE(one.send(bad_.data(), kBytes - 10'000));
    ASSERT_TRUE(one.send(header) && one.send(bad_.data(), kBytes));
    const auto next = post(2);
    ASSERT_TRUE(one.send(segment_header(2, 10, 2)) && one.send("0123456789", 10));
    ASSERT_TRUE(next->wait().is_ok());
    EXPECT_EQ(sink->data(), good_);
    EXPECT_EQ(sink->count(), 1U);
    EXPECT_TRUE(channel_->status().is_ok());
    EXPECT_EQ(channel_->stats().payload_received, kBytes + 10U);
  }
}

TEST_F(LinkCopies, test_segment_whose_connection_died_half_way_arrives_over_another) {
  RawConnection control = open(0);
  auto one = std::make_unique<RawConnection>(open(1));
  RawConnection two = open(2);
  const auto sink = post(1);
  const WireHeader header = segment_header(1, kBytes);
  ASSERT_TRUE(one->send(header) && one->send(bad_.data(), 50'000));
  wait_received(kHeaderBytes + 50'000);
  one.reset();
  ASSERT_TRUE(two.send(header) && two.send(good_.data(), kBytes));
  ASSERT_TRUE(sink->wait().is_ok());
  EXPECT_EQ(sink->data(), good_);
}

TEST_F(LinkCopies, test_same_number_for_another_segment_is_corrupt) {
  RawConnection control = open(0);
  RawConnection one = open(1);
  RawConnection two = open(2);
  const std::uint64_t before = channel_->stats().bytes_received;
  ASSERT_TRUE(one.send(segment_header(1, kBytes)) && one.send(good_.data(), 1000));
  wait_received(before + kHeaderBytes + 1000);
  ASSERT_TRUE(two.send(segment_header(2, kBytes)));
  EXPECT_TRUE(control.closed_by_peer());
  EXPECT_EQ(channel_->status().code(), StatusCode::CorruptData);
}

TEST_F(LinkCopies, test_newer_connection_replaces_an_older_one_that_lives) {
  RawConnection control = open(0);
  RawConnection one = open(1);
  RawConnection two = open(2);
  RawConnection newer = open(1, 7);
  EXPECT_TRUE(one.closed_by_peer());
  const auto sink = post(1);
  ASSERT_TRUE(newer.send(segment_header(1, kBytes)) && newer.send(good_.data(), kBytes));
  EXPECT_TRUE(sink->wait().is_ok());
  RawConnection newest_control = open(0, 2);
  EXPECT_TRUE(control.closed_by_peer());
  wait_acknowledged(newest_control, 2);  // the whole state is told again
  EXPECT_EQ(channel_->stats().resumes, 2U);
  EXPECT_EQ(channel_->stats().outages, 2U);
}

TEST_F(LinkCopies, test_connections_that_do_not_fit_the_link_are_refused_and_harm_nothing) {
  expect_refused(1, 1, 0, StatusCode::InvalidArgument);  // before the control stream
  RawConnection control = open(0, 5);
  RawConnection one = open(1, 5);
  RawConnection two = open(2, 5);
  for (const std::uint32_t generation : {0U, 1U, 5U}) {
    expect_refused(0, generation, 0, StatusCode::InvalidArgument);
    expect_refused(1, generation, 0, StatusCode::InvalidArgument);
  }
  expect_refused(3, 6, 0, StatusCode::InvalidArgument);
  expect_refused(0, 6, 99, StatusCode::CorruptData);  // never got so many control packets
  ASSERT_TRUE(control.send(make_header(PacketType::Heartbeat)));
  EXPECT_TRUE(control.read_header().has_value());
}

TEST_F(LinkCopies, test_control_packets_are_resent_on_the_next_control_stream) {
  auto control = std::make_unique<RawConnection>(open(0));
  RawConnection one = open(1);
  RawConnection two = open(2);
  const auto first = post(1);
  const auto second = post(2);
  control.reset();
  RawConnection again = open(0, 2, 1);  // the first Grant arrived
  for (;;) {
    const auto header = again.read_header();
    ASSERT_TRUE(header.has_value());
    if (header->type != static_cast<std::uint8_t>(PacketType::Grant)) continue;
    EXPECT_EQ(header->sequence, 2U);
    EXPECT_EQ(header->op, 2U);
    return;
  }
}

TEST_F(LinkCopies, test_numbers_that_cannot_be_fail_the_channel) {
  struct Case {
    const char* what;
    std::function<void(RawConnection& control, RawConnection& data)> attack;
  };
  const auto ack = [](const AckPacket& packet) { return make_ack(packet); };
  const std::vector<Case> cases = {
      {"segment 0", [](auto&, auto& data) { (void)data.send(segment_header(1, 10, 0)); }},
      {"segment far ahead",
       [](auto&, auto& data) { (void)data.send(segment_header(1, 10, kMaxNumberSpan + 1)); }},
      {"segment at the end",
       [](auto&, auto& data) { (void)data.send(segment_header(1, 10, ~std::uint64_t{0})); }},
      {"control gap", [](auto& control, auto&) { (void)control.send(control_header(PacketType::Grant, 2)); }},
      {"control 0", [](auto& control, auto&) { (void)control.send(control_header(PacketType::Close, 0)); }},
      {"ack ahead", [&](auto& control, auto&) { (void)control.send(ack({.low = 2})); }},
      {"ack bit ahead", [&](auto& control, auto&) { (void)control.send(ack({.bits = 2})); }},
      {"ack of control", [&](auto& control, auto&) { (void)control.send(ack({.control_received = 1})); }},
      {"ack of nothing", [](auto& control, auto&) { (void)control.send(make_header(PacketType::Ack)); }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    SetUp();
    RawConnection control = open(0);
    RawConnection data = open(1);
    RawConnection other = open(2);
    ASSERT_TRUE(channel_->wait_ready(patience()).is_ok());
    one.attack(control, data);
    EXPECT_TRUE(other.closed_by_peer());
    EXPECT_EQ(channel_->status().code(), StatusCode::CorruptData) << channel_->status().to_string();
  }
}

TEST_F(LinkCopies, test_reset_ends_the_channel_at_once) {
  RawConnection control = open(0);
  RawConnection one = open(1);
  RawConnection two = open(2);
  const auto sink = post(1);
  WireHeader reset = make_header(PacketType::Reset);
  reset.code = 60000;
  ASSERT_TRUE(control.send(reset));
  EXPECT_EQ(sink->wait(Deadline::after(5s)).code(), StatusCode::PeerLost);
}

TEST_F(LinkCopies, test_shutdown_and_abort_with_a_dead_link_do_not_hang) {
  for (const bool orderly : {true, false}) {
    SetUp();
    SentLatch sent;
    {
      RawConnection control = open(0);
      RawConnection one = open(1);
      RawConnection two = open(2);
      ASSERT_TRUE(channel_->wait_ready(patience()).is_ok());
      ASSERT_TRUE(channel_->send(chunk_of({1, 1}, good_), sent.callback()).is_ok());
    }
    if (orderly) {
      EXPECT_EQ(victim_->shutdown(Deadline::after(300ms)).code(), StatusCode::Timeout);
    } else {
      victim_->abort({StatusCode::Aborted, "enough"});
    }
    EXPECT_EQ(sent.wait(1).size(), 1U);
  }
}

}  // namespace
}  // namespace geocomm::transport::testing
