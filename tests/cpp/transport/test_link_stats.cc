// What the kernel tells of a connection, over loopback.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "transport/io/link_stats.h"

namespace geocomm::transport {
namespace {

// Both ends of a TCP connection.
std::array<int, 2> connected_pair() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener, generic, size), 0);
  EXPECT_EQ(listen(listener, 1), 0);
  EXPECT_EQ(getsockname(listener, generic, &size), 0);
  const int dialer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(dialer, generic, size), 0);
  const int accepted = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  EXPECT_GE(accepted, 0);
  close(listener);
  return {dialer, accepted};
}

TEST(LinkStats, OfAPeerThatDoesNotReadCountsTheStall) {
  const auto [sender, receiver] = connected_pair();
  const LinkStats before = read_link_stats(sender);
  EXPECT_EQ(before.counters.stalled_by_receiver_us, 0U);
  EXPECT_EQ(before.counters.busy_us, 0U);
  EXPECT_FALSE(before.congestion_control.empty());
  const std::vector<std::byte> data(1 << 20);
  for (int i = 0; i < 64; ++i) {
    if (send(sender, data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const LinkStats stalled = read_link_stats(sender);
  EXPECT_GE(stalled.counters.stalled_by_receiver_us, 20'000U);
  EXPECT_GE(stalled.counters.busy_us, stalled.counters.stalled_by_receiver_us);
  EXPECT_GT(stalled.counters.data_bytes, 0U);
  EXPECT_GT(stalled.gauges.unsent_bytes, 0U);
  EXPECT_GT(stalled.gauges.window_bytes, 0U);
  EXPECT_GT(stalled.rtt_us, 0U);
  EXPECT_EQ(read_link_stats(receiver).counters.stalled_by_receiver_us, 0U);
  close(sender);
  close(receiver);
}

TEST(LinkStats, OfNoSocketAreZeros) {
  const LinkStats none = read_link_stats(-1);
  EXPECT_EQ(none.counters.data_bytes, 0U);
  EXPECT_EQ(none.counters.retransmitted_segments, 0U);
  EXPECT_EQ(none.counters.stalled_by_receiver_us, 0U);
  EXPECT_EQ(none.counters.stalled_by_send_buffer_us, 0U);
  EXPECT_TRUE(none.congestion_control.empty());
}

}  // namespace
}  // namespace geocomm::transport
