// A TCP proxy on loopback that does to connections what networks do: resets them, swallows what they carry,
// delays it, refuses them.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "transport/io/socket.h"

namespace geocomm::transport::testing {

// One thread moves the bytes. All methods are thread-safe.
class FaultProxy {
 public:
  enum Direction : int { ToServer = 0, ToClient = 1 };

  // Listens on a port of its own, unless told where.
  explicit FaultProxy(std::uint16_t server_port, std::uint64_t seed = 1, std::string host = "127.0.0.1",
                      std::uint16_t port = 0)
      : host_(std::move(host)), server_port_(server_port), random_(seed) {
    open_listener(port);
    thread_ = std::thread([this] { run(); });
  }
  ~FaultProxy() {
    stop_ = true;
    thread_.join();
  }

  std::uint16_t port() const { return port_; }
  // For connections from now on.
  void lead_to(std::uint16_t server_port) { server_port_ = server_port; }

  // Numeric; from which address the server sees connections come, from now on.
  void come_from(const std::string& host) {
    std::lock_guard lock(mutex_);
    source_ = host;
  }

  // Each connection is reset when it has carried so many bytes, at random up to twice `mean_bytes`. 0: never.
  void reset_after(std::uint64_t mean_bytes) { mean_bytes_ = mean_bytes; }
  // Resets every connection, or one: number `which` of those that are open, in the order of their opening.
  void reset_all() { order(Order::ResetAll, 0); }
  void reset_one(std::size_t which) { order(Order::ResetOne, which); }
  // What the open connections carry in the direction (or, for new ones, too) disappears, and they stay open.
  void swallow(Direction direction) { order(Order::Swallow, static_cast<std::size_t>(direction)); }
  // Only of one connection: number `which`, both ways.
  void swallow_one(std::size_t which) { order(Order::SwallowOne, which); }
  void swallow_new(bool on) { swallow_new_ = on; }
  // Nobody listens any more (connections are refused), or again.
  void listen(bool on) { order(Order::Listen, on ? 1 : 0); }
  void delay(std::chrono::milliseconds time) { delay_ms_ = time.count(); }

  int resets() const { return resets_; }
  int accepted() const { return accepted_; }
  std::size_t open() const { return open_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Order {
    enum Kind { ResetAll, ResetOne, Swallow, SwallowOne, Listen } kind;
    std::size_t value;
  };
  struct Piece {
    Clock::time_point due;
    std::vector<char> bytes;
    std::size_t sent = 0;
  };
  struct Link {
    std::array<Fd, 2> ends;  // the sources: [ToServer] is the client's
    std::array<std::deque<Piece>, 2> queue;
    std::array<bool, 2> swallow{};
    std::array<bool, 2> ended{};
    std::array<bool, 2> shut{};
    std::uint64_t carried = 0;
    std::uint64_t reset_at = 0;
  };

  void order(typename Order::Kind kind, std::size_t value) {
    const int before = orders_done_;
    {
      std::lock_guard lock(mutex_);
      orders_.push_back({kind, value});
    }
    while (orders_done_ <= before) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  void open_listener(std::uint16_t port) {
    auto listener = listen_on(*SocketAddress::parse(host_, port));
    ASSERT_TRUE(listener.is_ok()) << listener.status().to_string();
    listener_ = std::move(listener).value();
    port_ = SocketAddress::local_of(listener_.get()).port();
  }
  // The port stays taken, so that no connection of another test gets it as its own end meanwhile; who dials
  // it is refused.
  void close_listener() {
    listener_.reset();
    reserved_ = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    (void)::setsockopt(reserved_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const auto address = *SocketAddress::parse(host_, port_);
    ASSERT_EQ(::bind(reserved_.get(), address.get(), address.size()), 0) << std::strerror(errno);
  }
  void listen_again() {
    if (!reserved_.valid()) return;
    ASSERT_EQ(::listen(reserved_.get(), SOMAXCONN), 0) << std::strerror(errno);
    listener_ = std::move(reserved_);
  }
  // With RST, as a firewall or a lost network address would.
  static void reset(Link& link) {
    for (Fd& end : link.ends) {
      const linger now{1, 0};
      (void)::setsockopt(end.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
      end.reset();
    }
  }
  // Also of connections that were open when the order came.
  void draw_reset(Link& link) {
    const std::uint64_t mean = mean_bytes_;
    if (mean == 0) {
      link.reset_at = 0;
    } else if (link.reset_at == 0) {
      link.reset_at = link.carried + 1 + random_() % (2 * mean);
    }
  }

  void run() {
    while (!stop_) {
      obey();
      std::vector<pollfd> polled;
      if (listener_.valid()) polled.push_back({listener_.get(), POLLIN, 0});
      const std::size_t first = polled.size();
      const auto now = Clock::now();
      for (const auto& link : links_) {
        for (int from : {ToServer, ToClient}) {
          short events = 0;
          // Bounded, so that the sender feels a slow receiver, and a reset loses less than a connection
          // carries.
          if (!link->ended[from] && link->queue[from].size() < 8) events |= POLLIN;
          const auto& back = link->queue[1 - from];
          if (!back.empty() && back.front().due <= now) events |= POLLOUT;
          polled.push_back({link->ends[from].get(), events, 0});
        }
      }
      (void)::poll(polled.data(), polled.size(), 1);
      if (first == 1 && polled[0].revents != 0) accept();
      for (std::size_t i = 0; i < links_.size() && first + 2 * i + 1 < polled.size(); ++i) {
        Link& link = *links_[i];
        if (!move(link, polled[first + 2 * i].revents, polled[first + 2 * i + 1].revents)) reset(link);
      }
      std::erase_if(links_, [](const auto& link) { return !link->ends[0].valid(); });
      open_ = links_.size();
    }
    for (auto& link : links_) reset(*link);
  }

  void obey() {
    std::vector<Order> orders;
    {
      std::lock_guard lock(mutex_);
      orders.swap(orders_);
    }
    for (const Order& order : orders) {
      if (order.kind == Order::ResetAll) {
        for (auto& link : links_) reset(*link);
        resets_ += static_cast<int>(links_.size());
        links_.clear();
      } else if (order.kind == Order::ResetOne && order.value < links_.size()) {
        reset(*links_[order.value]);
        links_.erase(links_.begin() + static_cast<std::ptrdiff_t>(order.value));
        ++resets_;
      } else if (order.kind == Order::Swallow) {
        for (auto& link : links_) link->swallow[order.value] = true;
      } else if (order.kind == Order::SwallowOne && order.value < links_.size()) {
        links_[order.value]->swallow = {true, true};
      } else if (order.kind == Order::Listen) {
        order.value != 0 ? listen_again() : close_listener();
      }
      open_ = links_.size();
      ++orders_done_;
    }
  }

  void accept() {
    Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!client.valid()) return;
    Fd server(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    {
      std::lock_guard lock(mutex_);
      const auto source = *SocketAddress::parse(source_, 0);
      EXPECT_EQ(::bind(server.get(), source.get(), source.size()), 0);
    }
    const auto address = *SocketAddress::parse("127.0.0.1", server_port_);
    if (::connect(server.get(), address.get(), address.size()) != 0) {
      const linger now{1, 0};
      (void)::setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
      return;
    }
    auto link = std::make_unique<Link>();
    link->ends = {std::move(client), std::move(server)};
    link->swallow = {swallow_new_, swallow_new_};
    links_.push_back(std::move(link));
    ++accepted_;
  }

  // False: to be reset.
  bool move(Link& link, short client_events, short server_events) {
    draw_reset(link);
    const std::array<short, 2> events = {client_events, server_events};
    for (int from : {ToServer, ToClient}) {
      if ((events[from] & (POLLIN | POLLERR | POLLHUP)) != 0 && !take(link, from)) return false;
      if (!give(link, from)) return false;
    }
    if (link.reset_at != 0 && link.carried >= link.reset_at) {
      ++resets_;
      return false;
    }
    return !(link.shut[0] && link.shut[1]);
  }
  bool take(Link& link, int from) {
    if (link.ended[from]) return true;
    std::size_t room = 64 * 1024;
    if (link.reset_at != 0) room = std::min<std::size_t>(room, link.reset_at - link.carried);
    Piece piece{Clock::now() + std::chrono::milliseconds(delay_ms_), std::vector<char>(room)};
    const ssize_t count = ::recv(link.ends[from].get(), piece.bytes.data(), room, MSG_DONTWAIT);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    link.ended[from] = count == 0;
    piece.bytes.resize(static_cast<std::size_t>(count));
    link.carried += piece.bytes.size();
    if (count > 0 && !link.swallow[from]) link.queue[from].push_back(std::move(piece));
    return true;
  }
  bool give(Link& link, int from) {
    auto& queue = link.queue[from];
    while (!queue.empty() && queue.front().due <= Clock::now()) {
      Piece& piece = queue.front();
      const ssize_t count = ::send(link.ends[1 - from].get(), piece.bytes.data() + piece.sent,
                                   piece.bytes.size() - piece.sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count < 0) return errno == EAGAIN || errno == EINTR;
      piece.sent += static_cast<std::size_t>(count);
      if (piece.sent < piece.bytes.size()) return true;
      queue.pop_front();
    }
    if (queue.empty() && link.ended[from] && !std::exchange(link.shut[from], true)) {
      (void)::shutdown(link.ends[1 - from].get(), SHUT_WR);
    }
    return true;
  }

  const std::string host_;
  std::atomic<std::uint16_t> server_port_;
  std::uint16_t port_ = 0;
  std::atomic<std::uint64_t> mean_bytes_{0};
  std::atomic<std::int64_t> delay_ms_{0};
  std::atomic<bool> swallow_new_{false};
  std::atomic<bool> stop_{false};
  std::atomic<int> resets_{0};
  std::atomic<int> accepted_{0};
  std::atomic<std::size_t> open_{0};
  std::atomic<int> orders_done_{0};
  std::mutex mutex_;  // guards orders_, source_
  std::vector<Order> orders_;
  std::string source_ = "127.0.0.1";

  // The thread's.
  std::mt19937_64 random_;
  Fd listener_;
  Fd reserved_;  // has the port while nobody listens
  std::vector<std::unique_ptr<Link>> links_;
  std::thread thread_;
};

}  // namespace geocomm::transport::testing
