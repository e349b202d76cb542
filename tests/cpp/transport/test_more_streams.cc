// Streams that are added to a channel while it is in use.
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <thread>

#include "core/log.h"
#include "raw_peer.h"
#include "tls_fixture.h"
#include "transport/io/socket.h"
#include "transport/link/stream_plan.h"

namespace geocomm::transport::testing {
namespace {

constexpr double kStreamBytesPerSec = 3e9 / 8;  // for each so much, one stream

bool have_streams(const Pair& pair, std::uint32_t count) {
  const Deadline deadline = patience();
  while (!deadline.expired()) {
    if (pair.low_channel->stats().streams == count && pair.high_channel->stats().streams == count)
      return true;
    std::this_thread::sleep_for(2ms);
  }
  return false;
}

// 8 chunks in each direction.
void exchange(Pair& pair, std::uint64_t op) {
  constexpr std::uint32_t kChunks = 8;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (Channel* channel : {pair.low_channel.get(), pair.high_channel.get()}) {
    sinks.push_back(std::make_shared<CollectingSink>(kChunks));
    ASSERT_TRUE(channel->post_receive({1, op}, 7, kChunks, sinks.back()).is_ok());
  }
  for (std::uint32_t i = 0; i < kChunks; ++i) {
    for (Channel* channel : {pair.low_channel.get(), pair.high_channel.get()}) {
      ASSERT_TRUE(channel->send(chunk_of({1, op}, pattern(kMiB, op + i), i, kChunks)).is_ok());
    }
  }
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->wait().is_ok());
    for (std::uint32_t i = 0; i < kChunks; ++i) EXPECT_EQ(sink->data(i), pattern(kMiB, op + i));
  }
}

std::uint32_t first_streams() {
  return static_cast<std::uint32_t>(bbr_allowed() ? kStreamsWithBbr : kStreamsWithout);
}

TEST(MoreStreams, test_rate_told_to_the_dialer_opens_streams_under_traffic) {
  Pair pair;
  pair.connect();
  ASSERT_TRUE(have_streams(pair, first_streams()));
  exchange(pair, 1);
  pair.high_channel->expect_rate(20 * kStreamBytesPerSec);
  exchange(pair, 2);
  ASSERT_TRUE(have_streams(pair, 20));
  exchange(pair, 3);
  EXPECT_EQ(pair.high_channel->stats().resumes, 0U);
}

TEST(MoreStreams, test_channels_that_share_a_path_begin_with_fewer) {
  Pair pair;
  pair.connect(true, 2);
  ASSERT_TRUE(have_streams(pair, first_streams() / 2));
  exchange(pair, 1);
  EXPECT_TRUE(have_streams(pair, first_streams() / 2));
  pair.low_channel->expect_rate(20 * kStreamBytesPerSec);
  EXPECT_TRUE(have_streams(pair, 20));
}

TEST(MoreStreams, test_rate_told_to_the_other_side_opens_streams) {
  Pair pair;
  pair.connect();
  pair.low_channel->expect_rate(24 * kStreamBytesPerSec);
  ASSERT_TRUE(have_streams(pair, 24));
  exchange(pair, 1);
}

TEST(MoreStreams, test_the_side_that_wants_more_decides_and_none_are_closed) {
  Pair pair;
  pair.connect();
  pair.low_channel->expect_rate(20 * kStreamBytesPerSec);
  pair.high_channel->expect_rate(24 * kStreamBytesPerSec);
  ASSERT_TRUE(have_streams(pair, 24));
  pair.low_channel->expect_rate(1);
  pair.high_channel->expect_rate(1);
  exchange(pair, 1);
  EXPECT_EQ(pair.low_channel->stats().streams, 24U);
}

TEST(MoreStreams, test_rate_told_before_connecting_counts) {
  Pair pair;
  pair.connect(/*wait=*/false);
  pair.low_channel->expect_rate(18 * kStreamBytesPerSec);
  pair.high_channel->expect_rate(17 * kStreamBytesPerSec);
  ASSERT_TRUE(have_streams(pair, 18));
}

TEST(MoreStreams, test_streams_said_by_the_user_stay) {
  EndpointOptions options;
  options.streams = 3;
  Pair pair(options);
  pair.connect();
  pair.low_channel->expect_rate(20 * kStreamBytesPerSec);
  pair.high_channel->expect_rate(20 * kStreamBytesPerSec);
  exchange(pair, 1);
  EXPECT_EQ(pair.low_channel->stats().streams, 3U);
  EXPECT_EQ(pair.high_channel->stats().streams, 3U);
}

TEST(MoreStreams, test_streams_over_tls_are_bound_to_the_link) {
  Authority authority;
  const Folder keys;
  authority.write_keys(keys, "geocomm://job/a");
  EndpointOptions options = tls_options(keys);
  options.streams = 0;
  Pair pair(options);
  pair.connect();
  pair.low_channel->expect_rate(20 * kStreamBytesPerSec);
  ASSERT_TRUE(have_streams(pair, 20));
  exchange(pair, 1);
  EXPECT_FALSE(pair.low_channel->stats().cipher.empty());
}

// ---- what a peer may say ----

TEST(MoreStreams, test_acceptor_takes_streams_beyond_those_it_knew) {
  auto victim = make_endpoint();
  victim->allow(token(1));
  RawPeer peer(*victim, token(1));
  const RawConnection fifth = open_stream(*victim, raw_hello(*victim, 5, 8, token(1)));
  // One that was under way when the number changed.
  HelloPayload late = raw_hello(*victim, 1, 1, token(1));
  late.generation = 2;
  const RawConnection first = open_stream(*victim, late);
  const Deadline deadline = patience();
  while (victim->channels()[0]->stats().streams != 2 && !deadline.expired()) std::this_thread::sleep_for(2ms);
  EXPECT_EQ(victim->channels()[0]->stats().streams, 2U);
  EXPECT_TRUE(victim->channels()[0]->status().is_ok());
}

// Whether every IO loop waits in the kernel at this moment, as it does while there is nothing to do.
bool io_threads_sleep() {
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string stat;
    std::getline(std::ifstream(thread.path() / "stat"), stat);
    const std::size_t name_end = stat.rfind(')');
    if (stat.find("(geocomm-io)") != std::string::npos && stat.at(name_end + 2) != 'S') return false;
  }
  return true;
}

TEST(MoreStreams, test_streams_that_only_the_peer_wants_take_no_cpu_time_while_the_others_are_full) {
  auto victim = make_endpoint();
  victim->allow(token(1));
  const auto spare = static_cast<std::uint16_t>(first_streams() + 1);
  std::vector<RawConnection> streams;
  for (std::uint16_t i = 0; i <= spare; ++i) {
    HelloPayload hello = raw_hello(*victim, i, spare, token(1));
    hello.max_unexpected_bytes = 1 << 30;
    streams.push_back(open_stream(*victim, hello));
    const int small = 65'536;
    ASSERT_EQ(::setsockopt(streams.back().fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
  }
  // Nobody reads.
  const auto channel = victim->channels()[0];
  for (std::uint32_t i = 0; i < 32; ++i) {
    ASSERT_TRUE(channel->send(chunk_of({1, 1}, pattern(kMiB, i), i, 32)).is_ok());
  }
  std::this_thread::sleep_for(200ms);  // for buffers to fill
  int asleep = 0;
  for (int look = 0; look < 100; ++look) {
    std::this_thread::sleep_for(5ms);
    asleep += io_threads_sleep() ? 1 : 0;
  }
  EXPECT_GT(asleep, 50) << "of 100 looks";  // a loop that turns without end never sleeps
}

// The caps, in bytes per second, of this process's sockets that have one.
std::multiset<std::uint64_t> pacing_caps() {
  std::multiset<std::uint64_t> caps;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::uint64_t cap = 0;
    socklen_t size = sizeof cap;
    const int fd = std::stoi(entry.path().filename());
    if (::getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &cap, &size) != 0 || size != sizeof cap) continue;
    if (cap != 0 && cap != std::numeric_limits<std::uint64_t>::max()) caps.insert(cap);
  }
  return caps;
}

// Waits until so many sockets may send at `cap`.
bool are_capped_at(std::uint64_t cap, std::size_t sockets) {
  const Deadline deadline = patience();
  while (pacing_caps().count(cap) != sockets && !deadline.expired()) std::this_thread::sleep_for(2ms);
  return pacing_caps().count(cap) == sockets;
}

TEST(MoreStreams, test_streams_that_only_the_peer_wants_get_no_share_of_the_rate) {
  EndpointOptions options;
  options.max_pacing_bps = 1'000'000'000;
  const std::uint64_t cap = options.max_pacing_bps / 8;
  Pair pair(options);
  pair.connect();
  EXPECT_TRUE(are_capped_at(cap / first_streams(), 2 * first_streams()));
  pair.low_channel->expect_rate(20 * kStreamBytesPerSec);
  ASSERT_TRUE(have_streams(pair, 20));
  EXPECT_TRUE(are_capped_at(cap / 20, 20));
  EXPECT_TRUE(are_capped_at(cap / first_streams(), 20));
}

TEST(MoreStreams, test_streams_that_stand_in_share_the_rate) {
  EndpointOptions options;
  options.max_pacing_bps = 1'000'000'000;
  const std::uint64_t cap = options.max_pacing_bps / 8;
  auto victim = make_endpoint(options);
  victim->allow(token(1));
  std::vector<RawConnection> streams;
  for (std::uint16_t i = 0; i <= 3; ++i) {
    streams.push_back(open_stream(*victim, raw_hello(*victim, i, 3, token(1))));
  }
  EXPECT_TRUE(are_capped_at(cap, 4));  // control and all data streams; one is used
  streams.erase(streams.begin() + 1);
  EXPECT_TRUE(are_capped_at(cap / 2, 2));
}

TEST(MoreStreams, test_acceptor_refuses_more_than_64_streams) {
  auto victim = make_endpoint();
  victim->allow(token(1));
  RawPeer peer(*victim, token(1));
  RawConnection stranger(victim->port());
  ASSERT_TRUE(stranger.send(raw_hello(*victim, 2, 65, token(1))));
  const auto header = stranger.read_header();
  ASSERT_TRUE(header.has_value());
  EXPECT_EQ(header->type, static_cast<std::uint8_t>(PacketType::Refuse));
  EXPECT_TRUE(victim->channels()[0]->status().is_ok());
}

TEST(MoreStreams, test_peer_that_asks_for_more_than_64_streams_is_corrupt) {
  auto victim = make_endpoint();
  victim->allow(token(1));
  RawPeer peer(*victim, token(1));
  WireHeader heartbeat = make_header(PacketType::Heartbeat);
  heartbeat.chunk = 65;
  ASSERT_TRUE(peer.control.send(heartbeat));
  EXPECT_TRUE(peer.control.closed_by_peer());
  EXPECT_EQ(victim->channels()[0]->status().code(), StatusCode::CorruptData);
}

}  // namespace
}  // namespace geocomm::transport::testing
