// Links that come back say so in their ClientHello, and keep their place among strangers of their own
// address.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <deque>

#include "raw_peer.h"
#include "tls_fixture.h"
#include "tls_stranger.h"
#include "transport/link/acceptor.h"
#include "transport/link/handshake.h"
#include "transport/link/link_mark.h"
#include "transport/link/stream_binding.h"

namespace geocomm::transport::testing {
namespace {

LinkMark mark_of(StreamBinding& binding) {
  const auto mark = find_mark(binding.next_mark());
  EXPECT_TRUE(mark.has_value());
  return mark.value_or(LinkMark{});
}

// A link's control stream, without a loop: both ends know its secret.
struct BoundEnds {
  explicit BoundEnds(TlsKeys& keys) {
    std::array<int, 2> fds{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds.data()), 0);
    acceptor = std::move(keys.secure(Fd(fds[0]), TlsRole::Acceptor)).value();
    dialer = std::move(keys.secure(Fd(fds[1]), TlsRole::Dialer)).value();
    bool done = false;
    for (int i = 0; i < 10 && !done; ++i) {
      done = *dialer->handshake();
      done = *acceptor->handshake() && done;
    }
    EXPECT_TRUE(done);
  }
  std::unique_ptr<Connection> acceptor;
  std::unique_ptr<Connection> dialer;
};

class LinkMarks : public ::testing::Test {
 protected:
  void SetUp() override {
    authority_.write_keys(keys_a_, "geocomm://job/a");
    authority_.write_keys(keys_b_, "geocomm://job/b");
    dialing_ = std::move(TlsKeys::load(keys_b_.path())).value();
  }
  Authority authority_;
  Folder keys_a_;
  Folder keys_b_;
  std::unique_ptr<TlsKeys> dialing_;
};

TEST_F(LinkMarks, test_mark_is_found_among_other_bytes_only_if_whole) {
  LinkMark mark;
  for (std::size_t i = 0; i < 8; ++i) {
    mark.link[i] = static_cast<std::uint8_t>(17 * i);
    mark.number[i] = static_cast<std::uint8_t>(255 - i);
    mark.proof[i] = mark.proof[8 + i] = static_cast<std::uint8_t>(31 * i);
  }
  const std::string name = server_name(mark);
  const std::string hello = "\x16\x03\x01 other bytes " + name + " and more";
  EXPECT_EQ(find_mark(hello), mark);
  for (std::size_t i = 0; i < name.size(); ++i) {
    EXPECT_EQ(find_mark(name.substr(0, i)), std::nullopt) << i;
    std::string wrong = name;
    wrong[i] = 'X';
    EXPECT_EQ(find_mark(wrong), std::nullopt) << i;
  }
  EXPECT_EQ(find_mark(name.substr(1)), std::nullopt);
}

// spec channel 2.6: "A mark MUST count once."
TEST_F(LinkMarks, test_mark_counts_once_and_for_its_own_link) {
  const BoundEnds ends(*dialing_);
  const BoundEnds others(*dialing_);
  StreamBinding dialer;
  StreamBinding acceptor;
  StreamBinding stranger;
  EXPECT_EQ(dialer.next_mark(), "") << "before there was a control stream";
  dialer.restart(*ends.dialer);
  acceptor.restart(*ends.acceptor);
  stranger.restart(*others.dialer);
  const LinkMark first = mark_of(dialer);
  EXPECT_TRUE(acceptor.recognizes(first));
  EXPECT_FALSE(acceptor.recognizes(first)) << "again";
  LinkMark forged = mark_of(dialer);
  forged.number[7] ^= 1;
  EXPECT_FALSE(acceptor.recognizes(forged));
  EXPECT_FALSE(acceptor.recognizes(mark_of(stranger)));
}

// The Welcome of a new control stream may be lost: only the acceptor has its secret then.
TEST_F(LinkMarks, test_mark_of_the_control_stream_before_counts) {
  const BoundEnds ends(*dialing_);
  const BoundEnds newer(*dialing_);
  const BoundEnds newest(*dialing_);
  StreamBinding dialer;
  StreamBinding acceptor;
  dialer.restart(*ends.dialer);
  acceptor.restart(*ends.acceptor);
  acceptor.restart(*newer.acceptor);
  EXPECT_TRUE(acceptor.recognizes(mark_of(dialer)));
  acceptor.restart(*newest.acceptor);
  EXPECT_FALSE(acceptor.recognizes(mark_of(dialer)));
}

// Dials by hand, step by step.
class HandDialer {
 public:
  HandDialer(TlsKeys& keys, std::uint16_t port, const std::string& server_name = {}) : raw_(port) {
    EXPECT_EQ(::fcntl(raw_.fd(), F_SETFL, ::fcntl(raw_.fd(), F_GETFL) | O_NONBLOCK), 0);
    connection_ = std::move(keys.secure(Fd(::dup(raw_.fd())), TlsRole::Dialer, server_name)).value();
    is_done_ = *connection_->handshake();
  }
  // Whether no more than the ClientHello is sent: the acceptor may be so quick that the first step is the
  // whole handshake.
  bool has_only_begun() const { return !is_done_; }
  // Whether the acceptor has worked on the handshake.
  bool is_answered() {
    pollfd waiting{raw_.fd(), POLLIN, 0};
    return ::poll(&waiting, 1, 30'000) == 1;
  }
  bool is_welcomed(const HelloPayload& hello) {
    while (!is_done_) {
      if (!is_answered()) return false;
      const core::Result<bool> step = connection_->handshake();
      if (!step.is_ok()) return false;
      is_done_ = *step;
    }
    if (!send_hello_packet(*connection_, PacketType::Hello, hello).is_ok()) return false;
    HeaderBytes header{};
    for (std::size_t got = 0; got < header.size();) {
      const iovec part{header.data() + got, header.size() - got};
      const auto received = connection_->read({&part, 1});
      if (!received.is_ok() || received->ended) return false;
      got += received->bytes;
      if (received->bytes == 0 && !is_answered()) return false;
    }
    const auto parsed = parse_header_of_any_version(header);
    return parsed.is_ok() && parsed->type == static_cast<std::uint8_t>(PacketType::Welcome);
  }
  const Connection& connection() const { return *connection_; }

 private:
  RawConnection raw_;
  std::unique_ptr<Connection> connection_;
  bool is_done_ = false;
};

// One whose handshake waits for this end; server_name is asked for the name of each try.
template <typename ServerName>
std::unique_ptr<HandDialer> dialer_that_has_begun(TlsKeys& keys, std::uint16_t port, ServerName server_name) {
  for (;;) {
    auto dialer = std::make_unique<HandDialer>(keys, port, server_name());
    if (dialer->has_only_begun()) return dialer;
  }
}

// They fill the room for handshakes after it, and come from the address that the peer has.
TEST_F(LinkMarks, test_link_that_comes_back_keeps_its_place_among_strangers_of_its_address) {
  EndpointOptions options;
  options.keys = keys_a_.path();
  // A process of few descriptors has a small room: all are there long before the time of a handshake is over.
  constexpr std::size_t kStrangers = 24;
  const FewDescriptors few(6 * kStrangers);
  const auto victim = make_endpoint(options);
  victim->allow(token(1));
  StreamBinding binding;
  {
    HandDialer control(*dialing_, victim->port());
    ASSERT_TRUE(control.is_welcomed(raw_hello(*victim, 0, 1, token(1))));
    binding.restart(control.connection());
  }
  const auto unmarked = dialer_that_has_begun(*dialing_, victim->port(), [] { return std::string(); });
  const auto marked = dialer_that_has_begun(*dialing_, victim->port(), [&] { return binding.next_mark(); });
  ASSERT_TRUE(unmarked->is_answered() && marked->is_answered());
  const std::string hello = first_flight(keys_b_);
  std::deque<RawConnection> strangers;
  for (std::size_t i = 0; i < kStrangers; ++i) {
    strangers.emplace_back(victim->port());
    ASSERT_TRUE(strangers.back().send(hello.data(), hello.size()));
  }
  for (RawConnection& one : strangers) {
    pollfd waiting{one.fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&waiting, 1, 30'000), 1);
  }
  HelloPayload again = raw_hello(*victim, 0, 1, token(1));
  again.generation = 2;
  EXPECT_FALSE(unmarked->is_welcomed(again)) << "the oldest of its source";
  EXPECT_TRUE(marked->is_welcomed(again));
}

}  // namespace
}  // namespace geocomm::transport::testing
