// Peers that claim what their certificate, or their session, does not prove: refused, each with its own
// words, and the link of the one they claim to be goes on.
#include <thread>

#include "logged_warnings.h"
#include "tls_stranger.h"

namespace geocomm::transport::testing {
namespace {

// A running link between sites a (waits) and b (dials), and the keys of a third site.
class TlsClaims : public ::testing::Test {
 protected:
  void SetUp() override {
    pair_.authority.write_keys(keys_c_, "geocomm://job/c");
    const Status connected = pair_.connect();
    ASSERT_TRUE(connected.is_ok()) << connected.to_string();
    expect_transfer(*pair_.high_channel, *pair_.low_channel, 1, 500'000);
  }
  void TearDown() override {
    expect_transfer(*pair_.high_channel, *pair_.low_channel, 2, 500'000);
    expect_transfer(*pair_.low_channel, *pair_.high_channel, 3, 500'000);
    for (Channel* channel : {pair_.low_channel.get(), pair_.high_channel.get()}) {
      EXPECT_TRUE(channel->status().is_ok()) << channel->status().to_string();
      EXPECT_EQ(channel->stats().resumes, 0U);
      EXPECT_EQ(channel->stats().streams, 4U);
    }
  }
  // As `high` would say it, of a stream that takes the place of the present one.
  HelloPayload hello_of_high(std::uint16_t stream) {
    HelloPayload hello = raw_hello(*pair_.low, stream, 4, token(1), pair_.high->id());
    hello.generation = 1000;
    return hello;
  }
  void expect_refused(TlsStranger& stranger, StatusCode code, const std::string& words) {
    const auto answer = stranger.answer();
    ASSERT_TRUE(answer.has_value()) << "closed without a word";
    EXPECT_EQ(answer->type, PacketType::Refuse);
    EXPECT_EQ(answer->code, code);
    EXPECT_NE(answer->text.find(words), std::string::npos) << answer->text;
  }

  SecurePair pair_;
  Folder keys_c_;
  LoggedWarnings warnings_;
};

TEST_F(TlsClaims, test_dialer_without_a_certificate_is_told) {
  TlsStranger stranger(pair_.low->port(), nullptr);
  expect_refused(stranger, StatusCode::Authentication, "presents no certificate: set GEOCOMM_KEYS there");
  EXPECT_TRUE(warnings_.has("presents no certificate")) << warnings_.text();
}

// An acceptor without one cannot end the handshake: the dialer sees an alert, and goes on until its deadline.
TEST_F(TlsClaims, test_acceptor_without_a_certificate_is_not_believed) {
  auto listener = std::move(listen_on(*SocketAddress::parse("127.0.0.1", 0))).value();
  std::atomic<bool> stop{false};
  std::atomic<int> refused{0};
  std::thread impostor([&] {
    const ContextPtr context = stranger_context(nullptr);
    while (!stop) {
      pollfd waiting{listener.get(), POLLIN, 0};
      if (::poll(&waiting, 1, 20) != 1) continue;
      const Fd fd(::accept(listener.get(), nullptr, nullptr));
      const timeval patience{5, 0};
      (void)::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
      const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), &SSL_free);
      SSL_set_fd(ssl.get(), fd.get());
      refused += SSL_accept(ssl.get()) != 1 ? 1 : 0;
    }
  });
  EndpointOptions options = tls_options(pair_.keys_b);
  options.link_deadline = 2s;
  const auto endpoint = make_endpoint(options);
  PeerAddress address{ProcessId{}, "127.0.0.1", SocketAddress::local_of(listener.get()).port(), "nobody",
                      "a"};
  const auto channel = *endpoint->connect(address, token(1));
  const Status status = channel->wait_ready(patience());
  EXPECT_FALSE(status.is_ok());
  EXPECT_NE(status.message().find("no TLS 1.3 handshake with 127.0.0.1"), std::string::npos)
      << status.to_string();
  stop = true;
  impostor.join();
  EXPECT_GE(refused, 1);
}

// What listens there ends the connection: in order when it has read what came, with a reset when it has not.
TEST_F(TlsClaims, test_acceptor_that_ends_the_handshake_is_named_by_its_address) {
  for (const bool reads : {true, false}) {
    auto listener = std::move(listen_on(*SocketAddress::parse("127.0.0.1", 0))).value();
    const std::uint16_t port = SocketAddress::local_of(listener.get()).port();
    std::atomic<bool> stop{false};
    std::thread impostor([&] {
      while (!stop) {
        pollfd waiting{listener.get(), POLLIN, 0};
        if (::poll(&waiting, 1, 20) != 1) continue;
        const Fd fd(::accept(listener.get(), nullptr, nullptr));
        pollfd readable{fd.get(), POLLIN, 0};
        std::array<char, 16384> hello{};
        if (::poll(&readable, 1, 5000) == 1 && reads) (void)::recv(fd.get(), hello.data(), hello.size(), 0);
      }
    });
    EndpointOptions options = tls_options(pair_.keys_b);
    options.link_deadline = 2s;
    const auto endpoint = make_endpoint(options);
    const auto channel = *endpoint->connect({ProcessId{}, "127.0.0.1", port, "nobody", "a"}, token(1));
    const Status status = channel->wait_ready(patience());
    const std::string there = core::str("127.0.0.1:", port);
    const std::string words = reads
                                  ? core::str(there, " closed the connection during the TLS handshake")
                                  : core::str("the TLS handshake with ", there, ": Connection reset by peer");
    EXPECT_EQ(status.code(), StatusCode::Network) << status.to_string();
    EXPECT_NE(status.message().find(words), std::string::npos) << status.to_string();
    stop = true;
    impostor.join();
  }
}

// spec channel 2.5: "It MUST close any other connection without an answer."
TEST_F(TlsClaims, test_data_stream_without_a_binding_is_closed_without_a_word) {
  TlsStranger stranger(pair_.low->port(), &pair_.keys_b);
  stranger.say(hello_of_high(2));
  EXPECT_FALSE(stranger.answer().has_value());
  EXPECT_TRUE(warnings_.has("stream 2 does not prove that it belongs to rank 1 (high)")) << warnings_.text();
}

// The proof is right in form, and made of a session that is not the control stream's.
TEST_F(TlsClaims, test_data_stream_with_the_binding_of_another_session_is_closed_without_a_word) {
  TlsStranger stranger(pair_.low->port(), &pair_.keys_b);
  HelloPayload hello = hello_of_high(3);
  hello.binding = stranger.proof_of(hello.stream, hello.generation);
  stranger.say(hello);
  EXPECT_FALSE(stranger.answer().has_value());
  EXPECT_TRUE(warnings_.has("stream 3 does not prove that it belongs to rank 1 (high)")) << warnings_.text();
}

// spec channel 2.2: "SITE MUST be that of the process id in the roll call."
TEST_F(TlsClaims, test_process_of_another_site_is_told_on_control_and_data_streams) {
  for (const std::uint16_t stream : {0, 1}) {
    TlsStranger stranger(pair_.low->port(), &keys_c_);
    stranger.say(hello_of_high(stream));
    expect_refused(stranger, StatusCode::Authentication,
                   "a process of site 'b' presents the certificate of another site (geocomm://job/c)");
  }
  EXPECT_TRUE(warnings_.has("presents the certificate of another site (geocomm://job/c)"))
      << warnings_.text();
}

// To ask for a peer tells the dialer where it is, so that must be its own site's as well.
TEST_F(TlsClaims, test_process_of_another_site_cannot_ask_for_a_peer) {
  TlsStranger stranger(pair_.high->port(), &keys_c_);
  stranger.say(raw_hello(*pair_.high, 0, 4, token(1), pair_.low->id()));
  expect_refused(stranger, StatusCode::Authentication,
                 "a process of site 'a' presents the certificate of another site");
  TlsStranger asking(pair_.high->port(), &pair_.keys_a);
  asking.say(raw_hello(*pair_.high, 0, 4, token(1), pair_.low->id()));
  expect_refused(asking, StatusCode::InvalidArgument, "the one with the larger id dials");
}

TEST_F(TlsClaims, test_hello_for_another_process_and_with_another_token_is_told) {
  TlsStranger astray(pair_.low->port(), &pair_.keys_b);
  HelloPayload hello = hello_of_high(0);
  hello.receiver = id_of(0x77);
  astray.say(hello);
  expect_refused(astray, StatusCode::Network, "not 77777777: the address leads to another process");
  TlsStranger unknown(pair_.low->port(), &pair_.keys_b);
  hello = hello_of_high(0);
  hello.token = token(9);
  unknown.say(hello);
  expect_refused(unknown, StatusCode::Timeout, "does not know the job's token");
}

}  // namespace
}  // namespace geocomm::transport::testing
