// TLS that has to write before it reads on, or to read before it writes on: a peer that asks for new keys
// while the socket is full, and one that stops in the middle of saying so. Neither direction loses, repeats
// or forgets anything.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <map>
#include <thread>

#include "tls_records.h"
#include "tls_stranger.h"
#include "transport/io/tls_keys.h"
#include "transport/link/stream_binding.h"

namespace geocomm::transport::testing {
namespace {

using SslPtr = std::unique_ptr<SSL, decltype(&SSL_free)>;

constexpr std::uint8_t kHandshakeRecord = 22;
constexpr std::uint8_t kDataRecord = 23;
// A KeyUpdate that asks for no answer, in two pieces.
constexpr std::string_view kKeyUpdateBegin("\x18\x00\x00\x01", 4);
constexpr std::string_view kKeyUpdateEnd("\x00", 1);

iovec part_of(std::string_view data) {
  return {const_cast<char*>(data.data()), data.size()};
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A Connection of ours, which accepts, and a peer of OpenSSL alone, over TCP, both without blocking.
class TlsBothWays : public ::testing::Test {
 protected:
  void connect(const RekeyLimits& limits = {}, std::uint8_t fragments = TLSEXT_max_fragment_length_DISABLED) {
    authority_.write_keys(folder_, "geocomm://job/a");
    keys_ = std::move(TlsKeys::load(folder_.path(), limits)).value();
    const auto listener = std::move(listen_on(*SocketAddress::parse("127.0.0.1", 0))).value();
    peers_end_ = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const SocketAddress address = SocketAddress::local_of(listener.get());
    ASSERT_EQ(::connect(peers_end_.get(), address.get(), address.size()), 0);
    Fd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    int on = 1;
    ASSERT_EQ(::ioctl(peers_end_.get(), FIONBIO, &on), 0);
    ours_ = std::move(keys_->secure(std::move(accepted), TlsRole::Acceptor)).value();
    context_ = stranger_context(&folder_);
    peer_ = SslPtr(SSL_new(context_.get()), &SSL_free);
    records_ = std::make_unique<DialerRecords>(*peer_);
    ASSERT_EQ(SSL_set_tlsext_max_fragment_length(peer_.get(), fragments), 1);
    SSL_set_fd(peer_.get(), peers_end_.get());
    SSL_set_connect_state(peer_.get());
    SSL_set_msg_callback_arg(peer_.get(), &answers_);
    SSL_set_msg_callback(
        peer_.get(), [](int sent, int, int type, const void* message, std::size_t bytes, SSL*, void* count) {
          if (sent != 0 || type != SSL3_RT_HANDSHAKE || bytes == 0) return;
          if (*static_cast<const char*>(message) == SSL3_MT_KEY_UPDATE) ++*static_cast<int*>(count);
        });
    bool ours_is_done = false;
    bool peers_is_done = false;
    for (const Deadline end = patience(); !(ours_is_done && peers_is_done) && !end.expired();) {
      peers_is_done = peers_is_done || SSL_do_handshake(peer_.get()) == 1;
      const auto done = ours_->handshake();
      ASSERT_TRUE(done.is_ok()) << done.status().to_string();
      ours_is_done = *done;
    }
    ASSERT_TRUE(ours_is_done && peers_is_done);
  }
  std::size_t write(std::string_view data) {
    const iovec part = part_of(data);
    const auto written = ours_->write({&part, data.empty() ? 0U : 1U});
    EXPECT_TRUE(written.is_ok()) << written.status().to_string();
    return written.is_ok() ? *written : 0;
  }
  // What is there.
  std::string read() {
    std::string data(1000, '\0');
    const iovec part = part_of(data);
    const auto received = ours_->read({&part, 1});
    EXPECT_TRUE(received.is_ok()) << received.status().to_string();
    data.resize(received.is_ok() ? received->bytes : 0);
    return data;
  }
  // Exactly so much.
  std::string read(std::size_t bytes) {
    std::string data;
    for (const Deadline end = patience(); data.size() < bytes && !end.expired();) {
      pollfd waiting{ours_->fd(), POLLIN, 0};
      if (!ours_->has_more()) (void)::poll(&waiting, 1, 1000);
      data += read();
    }
    return data;
  }
  // What has come to the peer.
  std::string peer_reads() {
    std::string data(16'384, '\0');
    const int count = SSL_read(peer_.get(), data.data(), static_cast<int>(data.size()));
    EXPECT_TRUE(count > 0 || SSL_get_error(peer_.get(), count) == SSL_ERROR_WANT_READ);
    data.resize(static_cast<std::size_t>(std::max(count, 0)));
    return data;
  }
  std::string peer_reads(std::size_t bytes) {
    std::string data;
    for (const Deadline end = patience(); data.size() < bytes && !end.expired();) {
      pollfd waiting{peers_end_.get(), POLLIN, 0};
      const std::string more = peer_reads();
      if (more.empty()) (void)::poll(&waiting, 1, 1000);
      data += more;
    }
    return data;
  }
  void peer_asks(std::string_view behind) {
    ASSERT_EQ(SSL_key_update(peer_.get(), SSL_KEY_UPDATE_REQUESTED), 1);
    ASSERT_EQ(SSL_write(peer_.get(), behind.data(), static_cast<int>(behind.size())),
              static_cast<int>(behind.size()));
  }
  // Sends of `data` what fits into the socket, until none does.
  std::size_t fill(std::string_view data) {
    std::size_t sent = 0;
    for (int full = 0; sent < data.size() && full < 3;) {
      const std::size_t taken = write(data.substr(sent));
      sent += taken;
      if (taken > 0) continue;
      ++full;
      std::this_thread::sleep_for(20ms);  // loopback may still be moving
    }
    return sent;
  }
  // From now on until the peer has all of `data`, of which `sent` bytes were.
  std::string drain(std::string_view data, std::size_t sent) {
    std::string received;
    for (const Deadline end = patience(); received.size() < data.size() && !end.expired();) {
      received += peer_reads();
      sent += write(data.substr(sent));
    }
    EXPECT_EQ(sent, data.size());
    return received;
  }

  Authority authority_;
  Folder folder_;
  std::unique_ptr<TlsKeys> keys_;
  std::unique_ptr<Connection> ours_;
  Fd peers_end_;
  ContextPtr context_{nullptr, &SSL_CTX_free};
  SslPtr peer_{nullptr, &SSL_free};
  std::unique_ptr<DialerRecords> records_;
  int answers_ = 0;  // KeyUpdates that came to the peer
};

// A peer may ask for records that are shorter than what one call gives OpenSSL.
TEST_F(TlsBothWays, test_records_as_short_as_the_peer_wants_lose_and_repeat_nothing) {
  for (const std::uint8_t fragments : {TLSEXT_max_fragment_length_DISABLED, TLSEXT_max_fragment_length_512,
                                       TLSEXT_max_fragment_length_4096}) {
    RekeyLimits often;
    often.bytes = 50'000;
    connect(often, fragments);
    const std::string data = text_of(pattern(4'000'000, 4));
    std::string received;
    std::size_t sent = 0;
    std::size_t size = 64;
    for (const Deadline end = patience(); received.size() < data.size() && !end.expired();) {
      // Odd pieces, so that records share parts.
      std::vector<iovec> parts;
      for (std::size_t at = sent; at < data.size() && parts.size() < 20; size = size * 3 % 70'001) {
        parts.push_back(part_of(std::string_view(data).substr(at, size)));
        at += parts.back().iov_len;
      }
      const auto written = ours_->write(parts);
      ASSERT_TRUE(written.is_ok()) << written.status().to_string();
      sent += *written;
      received += peer_reads();
    }
    EXPECT_TRUE(received == data) << int{fragments};
    EXPECT_FALSE(ours_->has_unsent());
  }
}

TEST_F(TlsBothWays, test_reading_goes_on_while_answers_wait_for_room) {
  connect();
  const std::string data = text_of(pattern(16'000'000, 4));
  const std::size_t sent = fill(data);
  ASSERT_LT(sent, data.size());
  EXPECT_TRUE(ours_->has_unsent());
  EXPECT_EQ(ours_->wanted_events(), std::uint32_t{EPOLLIN | EPOLLOUT});
  constexpr int kAsked = 200;
  for (int i = 0; i < kAsked; ++i) {
    const std::string question = "question " + std::to_string(i);
    peer_asks(question);
    ASSERT_EQ(read(question.size()), question);
  }
  EXPECT_TRUE(drain(data, sent) == data);
  // The last answer may be due with the next record.
  EXPECT_GE(answers_, kAsked - 1);
  EXPECT_EQ(write("still here"), 10U);
  EXPECT_EQ(peer_reads(10), "still here");
  EXPECT_FALSE(ours_->has_unsent());
  EXPECT_EQ(ours_->wanted_events(), std::uint32_t{EPOLLIN});
}

TEST_F(TlsBothWays, test_peer_that_asks_without_end_and_reads_nothing_is_cut_off) {
  connect();
  const std::string data = text_of(pattern(16'000'000, 4));
  ASSERT_LT(fill(data), data.size());
  Status why;
  int asked = 0;
  for (; asked < 20'000 && why.is_ok(); ++asked) {
    peer_asks("?");
    char room = 0;
    const iovec part{&room, 1};
    for (core::Result<Connection::Received> got = Connection::Received{}; got.is_ok() && got->bytes == 0;) {
      pollfd waiting{ours_->fd(), POLLIN, 0};
      if (!ours_->has_more()) (void)::poll(&waiting, 1, 1000);
      got = ours_->read({&part, 1});
      why = got.status();
    }
  }
  EXPECT_EQ(why.code(), StatusCode::Network);
  EXPECT_NE(why.message().find("asks for new keys"), std::string::npos) << why.to_string();
  EXPECT_GT(asked, 500) << "an honest peer may ask so often";
}

// What the peer says to TLS itself may come in pieces. OpenSSL writes nothing in between, and reads what is
// missing itself when it is asked to write.
TEST_F(TlsBothWays, test_write_waits_for_the_rest_of_a_message_and_hides_nothing_behind_it) {
  RekeyLimits often;
  often.bytes = 1;
  connect(often);
  ASSERT_EQ(write("first"), 5U);  // new keys are due
  ASSERT_EQ(peer_reads(5), "first");
  records_->send(peers_end_.get(), kHandshakeRecord, kKeyUpdateBegin);
  pollfd waiting{ours_->fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&waiting, 1, 60'000), 1);
  EXPECT_EQ(read(), "");
  EXPECT_EQ(write("second"), 0U);
  EXPECT_FALSE(ours_->has_unsent());
  // Not for room, of which there is some: that would be asked again and again in vain.
  EXPECT_EQ(ours_->wanted_events(/*writes=*/true), std::uint32_t{EPOLLIN});
  EXPECT_FALSE(ours_->has_more());

  records_->send(peers_end_.get(), kHandshakeRecord, kKeyUpdateEnd);
  records_->change_keys();
  records_->send(peers_end_.get(), kDataRecord, "behind it");
  for (const Deadline end = patience(); write("second") == 0 && !end.expired();) {
    ASSERT_EQ(::poll(&waiting, 1, 60'000), 1);
  }
  EXPECT_EQ(peer_reads(6), "second");
  EXPECT_EQ(read(9), "behind it");
  EXPECT_EQ(ours_->wanted_events(/*writes=*/true), std::uint32_t{EPOLLIN | EPOLLOUT});
}

// A peer made by hand with a control stream and a data stream. The endpoint's IO thread makes all calls, or
// leaves the large ones to other threads.
class TlsStreamBothWays : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    authority_.write_keys(folder_a_, "geocomm://job/a");
    authority_.write_keys(folder_b_, "geocomm://job/b");
    EndpointOptions options = tls_options(folder_a_);
    options.tls_threads = GetParam();
    endpoint_ = make_endpoint(options);
    channel_ = *endpoint_->connect({id_of(0xFF), "127.0.0.1", 1, "rank 1"}, token(1));
    control_.emplace(endpoint_->port(), &folder_b_);
    welcome(*control_, hello(0));
    StreamBinding::Proof proof = control_->proof_of(1, 1);
    data_.emplace(endpoint_->port(), &folder_b_);
    HelloPayload hello_of_data = hello(1);
    hello_of_data.binding = proof;
    welcome(*data_, hello_of_data);
    ASSERT_TRUE(channel_->wait_ready(patience()).is_ok()) << channel_->status().to_string();
  }
  HelloPayload hello(std::uint16_t stream) {
    HelloPayload hello = raw_hello(*endpoint_, stream, 1, token(1), id_of(0xFF));
    hello.max_unexpected_bytes = std::uint64_t{1} << 30;
    return hello;
  }
  static void welcome(TlsStranger& stranger, const HelloPayload& hello) {
    stranger.say(hello);
    const auto answer = stranger.answer();
    ASSERT_TRUE(answer && answer->type == PacketType::Welcome);
  }
  std::shared_ptr<CollectingSink> receive(std::uint64_t op) {
    auto sink = std::make_shared<CollectingSink>(1);
    EXPECT_TRUE(channel_->post_receive({1, op}, 7, 1, sink).is_ok());
    return sink;
  }
  // A chunk of one segment, as it goes over the wire.
  static std::string segment(std::uint64_t op, const std::vector<std::byte>& payload) {
    const HeaderBytes header =
        encode_header(segment_header(op, static_cast<std::uint32_t>(payload.size()), op));
    return std::string(reinterpret_cast<const char*>(header.data()), header.size()) + text_of(payload);
  }
  void send(std::uint32_t chunks) {
    for (std::uint32_t i = 0; i < chunks; ++i) {
      ASSERT_TRUE(channel_->send(chunk_of({1, 1000}, pattern(kMiB, i), i, chunks)).is_ok());
    }
  }
  // So that its silence is no loss, however slow the machine.
  void say_alive() {
    WireHeader header = make_header(PacketType::Heartbeat);
    header.op = 1;
    const HeaderBytes bytes = encode_header(header);
    ASSERT_TRUE(control_->write(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())));
  }
  // All chunks of send(), each as it was sent.
  void expect_chunks(std::uint32_t chunks) {
    std::map<std::uint32_t, std::string> came;
    for (std::size_t left = chunks * kMiB; left > 0;) {
      const std::optional<std::string> head = data_->read(kHeaderBytes);
      ASSERT_TRUE(head.has_value()) << left << " bytes did not come";
      HeaderBytes bytes;
      std::memcpy(bytes.data(), head->data(), bytes.size());
      const auto header = parse_header(bytes);
      ASSERT_TRUE(header.is_ok()) << header.status().to_string();
      ASSERT_EQ(header->offset, came[header->chunk].size());
      const std::optional<std::string> payload = data_->read(header->length);
      ASSERT_TRUE(payload.has_value());
      came[header->chunk] += *payload;
      say_alive();
      left -= payload->size();
    }
    for (std::uint32_t i = 0; i < chunks; ++i) EXPECT_TRUE(came[i] == text_of(pattern(kMiB, i))) << i;
  }

  Authority authority_;
  Folder folder_a_;
  Folder folder_b_;
  std::unique_ptr<Endpoint> endpoint_;
  std::shared_ptr<Channel> channel_;
  std::optional<TlsStranger> control_;
  std::optional<TlsStranger> data_;
};

TEST_P(TlsStreamBothWays, test_stream_with_a_full_socket_hears_a_peer_that_asks_for_keys) {
  constexpr std::uint32_t kChunks = 32;
  send(kChunks);
  // Until the socket is full.
  for (int same = 0, before = -1; same < 5;) {
    std::this_thread::sleep_for(20ms);
    int there = 0;
    ASSERT_EQ(::ioctl(data_->fd(), FIONREAD, &there), 0);
    same = there > 0 && there == before ? same + 1 : 0;
    before = there;
  }
  for (std::uint64_t op = 1; op <= 100; ++op) {
    const auto sink = receive(op);
    const auto data = pattern(1000, op);
    ASSERT_EQ(SSL_key_update(&data_->ssl(), SSL_KEY_UPDATE_REQUESTED), 1);
    ASSERT_TRUE(data_->write(segment(op, data)));
    const Status status = sink->wait();
    ASSERT_TRUE(status.is_ok()) << op << ": " << status.to_string();
    ASSERT_EQ(sink->data(), data);
  }
  expect_chunks(kChunks);
  EXPECT_TRUE(channel_->status().is_ok()) << channel_->status().to_string();
}

TEST_P(TlsStreamBothWays, test_stream_waits_for_the_rest_of_a_message_and_goes_on_both_ways) {
  const auto sink = receive(1);
  const auto data = pattern(1000, 1);
  constexpr std::uint64_t kSentBefore = 2;  // header and payload of the Hello
  data_->records().send(data_->fd(), kHandshakeRecord, kKeyUpdateBegin, kSentBefore);
  std::this_thread::sleep_for(50ms);  // it is read before there is something to write
  send(4);
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(sink->error().has_value());
  data_->records().send(data_->fd(), kHandshakeRecord, kKeyUpdateEnd, kSentBefore);
  data_->records().change_keys();
  data_->records().send(data_->fd(), kDataRecord, segment(1, data));
  const Status status = sink->wait();
  ASSERT_TRUE(status.is_ok()) << status.to_string();
  EXPECT_EQ(sink->data(), data);
  expect_chunks(4);
  EXPECT_TRUE(channel_->status().is_ok()) << channel_->status().to_string();
}

INSTANTIATE_TEST_SUITE_P(threads, TlsStreamBothWays, ::testing::Values(0, 3));

}  // namespace
}  // namespace geocomm::transport::testing
