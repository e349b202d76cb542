// The listener and the connections whose Hello is not complete yet. All on the IO thread.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "core/log.h"
#include "core/status.h"
#include "transport/io/io_loop.h"
#include "transport/io/socket.h"
#include "transport/io/tls_keys.h"
#include "transport/link/handshake.h"
#include "transport/link/handshake_gate.h"

namespace geocomm::transport {

// On `host`, a numeric address (empty: all, or loopback with `loopback_only`), and `port`, for which it waits
// up to `patience` where it is taken: the process before this one may be about to end.
core::Result<Fd> open_listener(const std::string& host, std::uint16_t port, bool loopback_only,
                               std::chrono::milliseconds patience);

// They wait in two queues: before TLS has begun they cost a descriptor, from then on memory as well. Who
// finds a queue full takes the place of another: of those from addresses of peers, or of the others,
// whichever fill more than half of it, the source with the most loses its oldest. So no source keeps others
// out, and strangers leave half of the queue to those who are probably peers. Links that come back count as a
// source of their own: who floods from a peer's address does not keep that peer out.
class Acceptor : public IoHandler {
 public:
  // Whether a peer has this address (SocketAddress::host()).
  using IsKnown = std::function<bool(const std::string& host)>;
  // Whether the mark is one of a link of this process (StreamBinding::recognizes()).
  using IsOurs = std::function<bool(const LinkMark& mark)>;
  // A complete Hello, of any version. Takes the connection (also to close it without a word), or leaves it to
  // be refused with the Status.
  using OnHello = std::function<core::Status(HalfOpen& half_open, const ReceivedHello& hello)>;

  // `keys` (null: plaintext) outlives it.
  Acceptor(IoLoop& loop, Fd listener, TlsKeys* keys, IsKnown is_known, IsOurs is_ours, OnHello on_hello);
  ~Acceptor() override { close(); }
  core::Status start();
  void close();
  void on_ready(std::uint32_t events) override;

  // Before and since TLS has begun; fewer where the process may have few descriptors.
  static constexpr std::array<std::size_t, 2> kMaxHalfOpen = {1024, 512};

 private:
  using Crowds = std::map<std::string, Crowd>;
  struct Waiting {
    std::unique_ptr<HalfOpen> connection;
    Timers::TimerId timer;
    Crowds::iterator crowd;
  };
  using Queue = std::list<Waiting>;  // oldest first
  struct Spot {
    std::size_t queue;
    Queue::iterator waiting;
  };

  void add(Fd fd, const SocketAddress& from);
  void marked(HalfOpen& connection, const LinkMark& mark);
  void begun(const HalfOpen& connection);
  void make_room(std::size_t queue);
  void drop(const HalfOpen& connection);
  void drop(Spot spot);
  void leave_crowd(Crowds::iterator crowd, std::size_t queue);
  void pause();
  core::LogLevel warning();
  void on_hello(HalfOpen& half_open, const core::Result<ReceivedHello>& hello);

  IoLoop& loop_;
  Fd listener_;
  TlsKeys* const keys_;
  HandshakeGate gate_;
  IsKnown is_known_;
  IsOurs is_ours_;
  OnHello on_hello_;
  std::array<std::size_t, 2> limits_ = kMaxHalfOpen;
  IoLoop::HandlerId handler_ = 0;
  Timers::TimerId pause_{};
  Crowds crowds_;
  std::array<Queue, 2> queues_;
  std::unordered_map<const HalfOpen*, Spot> spots_;
  std::uint64_t accepted_ = 0;
  Timers::Time next_warning_{};
  Timers::Time next_crowd_warning_{};
};

}  // namespace geocomm::transport
