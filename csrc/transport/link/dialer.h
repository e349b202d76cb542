// Opens one stream to a peer: resolve, connect, Hello, Welcome; again with growing pauses until a deadline.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/deadline.h"
#include "core/status.h"
#include "transport/io/connection.h"
#include "transport/io/io_loop.h"
#include "transport/io/socket.h"
#include "transport/io/tls_keys.h"
#include "transport/wire/wire.h"

namespace geocomm::transport {

// From connecting to Welcome, and from being accepted to Hello.
inline constexpr std::chrono::seconds kHandshakeTimeout{10};

// Who says that there will be no connection.
enum class Refusal : std::uint8_t {
  None,       // nobody: no answer, or a network that broke the connection
  Untrusted,  // whoever answers there did not prove to be the peer, where it should have
  Unproven,   // nobody can prove anything: the kernel (ECONNREFUSED), or a peer without TLS
  Proven,     // a process with the certificate of the peer's site, inside TLS
};

struct DialedStream {
  std::unique_ptr<Connection> connection;
  HelloPayload welcome;
};

struct DialOptions {
  std::string peer;  // description
  std::string host;  // names and numeric addresses, separated by commas: tried in turn
  std::uint16_t port = 0;
  std::string
      good_host;  // numeric, of those addresses: where the peer answered last, tried first. May be empty
  std::string
      seen_host;  // numeric; where the peer was seen since: tried first, by turns with `host`. May be empty
  std::function<HelloPayload()> hello;       // asked for by every attempt
  std::function<std::string()> server_name;  // too; what TLS says in the clear
  StreamTuning tuning;
  bool loopback_only = false;
  TlsKeys* keys = nullptr;  // null: plaintext; outlives the dialer
  std::string site;         // whose certificate the peer must have; empty: any of the job
  // The peer has known the token before: who does not know it is another process.
  bool resuming = false;
  std::chrono::milliseconds first_pause{};  // before the first attempt, at random up to this
  std::chrono::milliseconds longest_pause{5000};
  std::chrono::milliseconds handshake_timeout = kHandshakeTimeout;
  core::Deadline deadline = core::Deadline::after({});
  // An attempt failed; false: no others.
  std::function<bool(const core::Status&, Refusal)> on_failed_attempt;
};

// All on the IO thread. Destroying it ends the attempt.
class Dialer : public IoHandler {
 public:
  // Called once, with the welcomed stream or the reason why there will be none.
  using Done = std::function<void(core::Result<DialedStream>)>;

  Dialer(std::shared_ptr<IoLoop> loop, DialOptions options, Done done);
  ~Dialer() override;
  void start();
  // The network lets connections through: ends a pause after a failed attempt.
  void hurry();
  // Hello is sent, and the peer may be about to welcome it.
  bool has_said_hello() const;
  void on_ready(std::uint32_t events) override;

 private:
  enum class State : std::uint8_t { Idle, Pausing, Resolving, Connecting, Securing, Reading };

  void pause(Timers::Time until);
  core::Status start_resolver();
  void on_resolved(core::Result<std::vector<SocketAddress>> found);
  // A round: one attempt at each address.
  void begin_round();
  void connect_to_all(std::vector<SocketAddress> addresses);
  void connect();
  void limit_handshake(std::chrono::milliseconds limit);
  void secure();
  core::Status check_site() const;
  void send_hello();
  void read_reply();
  void on_welcome();
  void on_refuse();
  void on_silence();
  std::chrono::milliseconds jitter(std::chrono::milliseconds longest);
  // The peer's own word, as far as this connection proves that.
  void refused(core::Status why);
  void retry(core::Status why, Refusal refusal = Refusal::None);
  // What every address answered, where there are several.
  core::Status told(core::Status why) const;
  void give_up(core::Status why);
  void disconnect();

  const std::shared_ptr<IoLoop> loop_;
  const DialOptions options_;
  Done done_;
  // Lets a resolver's answer find out that this dialer is gone.
  const std::shared_ptr<Dialer*> self_ = std::make_shared<Dialer*>(this);

  State state_ = State::Idle;
  bool resolver_works_ = false;             // it may outlast the attempt that asked
  std::unique_ptr<Connection> connection_;  // null: none under way
  IoLoop::HandlerId handler_ = 0;
  Timers::TimerId timer_{};
  HelloPayload hello_{};  // of this attempt
  unsigned attempts_ = 0;
  unsigned rounds_ = 0;
  std::vector<SocketAddress> addresses_;      // of this round
  std::size_t next_address_ = 0;              // to be tried
  std::map<std::string, std::string> tried_;  // what each address answered last
  Timers::Time said_hello_;
  Timers::Time began_;         // this attempt
  core::Status last_failure_;  // that says most, of this round
  Refusal last_refusal_ = Refusal::None;
  int last_weight_ = 0;
  std::minstd_rand random_{std::random_device{}()};
  std::array<std::byte, kHeaderBytes + kMaxRefuseBytes> reply_{};
  std::size_t reply_bytes_ = 0;
  WireHeader reply_header_{};
};

}  // namespace geocomm::transport
