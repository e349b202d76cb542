// Channels over TLS: the same data, and who is let in.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/socket.h>

#include <fstream>
#include <thread>

#include "../needs.h"
#include "tls_stranger.h"
#include "transport/io/tls_keys.h"
#include "transport/link/stream_binding.h"

namespace geocomm::transport::testing {
namespace {

std::vector<iovec> parts_of(const std::string& data) {
  return {{const_cast<char*>(data.data()), data.size()}};
}

// The two ends of a connection, without a loop.
struct TlsEnds {
  TlsEnds(TlsKeys& accepting, TlsKeys& dialing) {
    std::array<int, 2> fds{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds.data()), 0);
    acceptor = std::move(accepting.secure(Fd(fds[0]), TlsRole::Acceptor)).value();
    dialer = std::move(dialing.secure(Fd(fds[1]), TlsRole::Dialer)).value();
  }
  bool shake_hands() {
    bool accepted = false;
    bool dialed = false;
    for (int i = 0; i < 10 && !(accepted && dialed); ++i) {
      dialed = dialed || *dialer->handshake();
      accepted = accepted || *acceptor->handshake();
    }
    return accepted && dialed;
  }
  static std::string receive_some(Connection& end, std::size_t most) {
    std::string data(most, '\0');
    const auto received = end.read(parts_of(data));
    EXPECT_TRUE(received.is_ok()) << received.status().to_string();
    data.resize(received.is_ok() ? received->bytes : 0);
    return data;
  }
  static std::string receive(Connection& end, std::size_t bytes) {
    std::string data;
    for (int i = 0; i < 1000 && data.size() < bytes; ++i) data += receive_some(end, bytes - data.size());
    return data;
  }
  // At the acceptor's socket.
  std::size_t waiting_bytes() const {
    std::vector<char> seen(1 << 20);
    const ssize_t count = ::recv(acceptor->fd(), seen.data(), seen.size(), MSG_PEEK | MSG_DONTWAIT);
    return count < 0 ? 0 : static_cast<std::size_t>(count);
  }
  std::unique_ptr<Connection> acceptor;
  std::unique_ptr<Connection> dialer;
};

// Keys of one site, which both ends of a connection have.
class TlsConnection : public ::testing::Test {
 protected:
  std::unique_ptr<TlsKeys> load(const RekeyLimits& limits = {}) {
    authority_.write_keys(folder_, "geocomm://job/a");
    return std::move(TlsKeys::load(folder_.path(), limits)).value();
  }

  Authority authority_;
  Folder folder_;
};

TEST(TlsChannel, test_chunks_of_all_sizes_arrive_both_ways) {
  SecurePair pair;
  const Status connected = pair.connect();
  ASSERT_TRUE(connected.is_ok()) << connected.to_string();
  std::uint64_t op = 1;
  for (const std::size_t bytes : {0U, 1U, 63U, 16383U, 16384U, 16385U, 262144U, 262145U, 5000000U}) {
    expect_transfer(*pair.high_channel, *pair.low_channel, op++, bytes, 4);
    expect_transfer(*pair.low_channel, *pair.high_channel, op++, bytes, 4);
  }
  EXPECT_EQ(pair.high_channel->stats().cipher, "TLS_AES_256_GCM_SHA384");
  EXPECT_EQ(pair.high_channel->stats().streams, 4U);
  EXPECT_TRUE(pair.high->shutdown(patience()).is_ok());
  EXPECT_TRUE(pair.low->shutdown(patience()).is_ok());
}

TEST(TlsChannel, test_nothing_readable_goes_over_the_wire) {
  // A file descriptor pair in place of the network, with the bytes in sight.
  Authority authority;
  Folder folder_a;
  Folder folder_b;
  authority.write_keys(folder_a, "geocomm://job/a");
  authority.write_keys(folder_b, "geocomm://job/b");
  auto keys_a = std::move(TlsKeys::load(folder_a.path())).value();
  auto keys_b = std::move(TlsKeys::load(folder_b.path())).value();
  TlsEnds ends(*keys_a, *keys_b);
  ASSERT_TRUE(ends.shake_hands());
  const std::string secret = "the weights of the model";
  ASSERT_EQ(ends.dialer->write(parts_of(secret)).value(), secret.size());
  std::string seen(4096, '\0');
  const ssize_t count = ::recv(ends.acceptor->fd(), seen.data(), seen.size(), MSG_PEEK);
  ASSERT_GT(count, static_cast<ssize_t>(secret.size()));
  EXPECT_EQ(seen.find(secret), std::string::npos);
  EXPECT_EQ(ends.receive(*ends.acceptor, secret.size()), secret);
}

// spec channel 2.3: "A side MUST change its sending keys"
TEST_F(TlsConnection, test_keys_change_under_way_and_data_goes_on) {
  RekeyLimits often;
  often.bytes = 100'000;
  auto keys = load(often);
  TlsEnds ends(*keys, *keys);
  ASSERT_TRUE(ends.shake_hands());
  // Each change shows as a record of its own: 5 bytes of message, 1 of type, 16 of tag, 5 of header.
  for (int round = 0; round < 50; ++round) {
    const std::string data(30'000, static_cast<char>('a' + round % 26));
    ASSERT_EQ(ends.dialer->write(parts_of(data)).value(), data.size());
    const std::size_t wire = ends.waiting_bytes();
    EXPECT_EQ(wire, data.size() + 2 * 22 + (round > 0 && round % 4 == 0 ? 27 : 0)) << round;
    ASSERT_EQ(ends.receive(*ends.acceptor, data.size()), data);
  }
}

// A peer that reads slowly: the kernel takes part of a record, and the rest must come exactly once. New keys,
// also when they fall due meanwhile, wait for it.
TEST_F(TlsConnection, test_short_writes_lose_and_repeat_nothing) {
  RekeyLimits often;
  often.bytes = 50'000;
  auto keys = load(often);
  TlsEnds ends(*keys, *keys);
  ASSERT_TRUE(ends.shake_hands());
  const auto bytes = pattern(3'000'000, 4);
  const std::string data(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::string received;
  std::size_t sent = 0;
  int short_writes = 0;
  while (received.size() < data.size()) {
    if (sent < data.size()) {
      // Odd pieces, so that records share parts.
      std::vector<iovec> parts;
      for (std::size_t at = sent, size = 64; at < data.size() && parts.size() < 20;
           at += size, size = size * 3 % 70'001) {
        size = std::min(size, data.size() - at);
        parts.push_back({const_cast<char*>(data.data()) + at, size});
      }
      std::size_t offered = 0;
      for (const iovec& part : parts) offered += part.iov_len;
      const auto written = ends.dialer->write(parts);
      ASSERT_TRUE(written.is_ok()) << written.status().to_string();
      short_writes += *written < offered ? 1 : 0;
      sent += *written;
    } else {
      ASSERT_TRUE(ends.dialer->write({}).is_ok());
    }
    received += ends.receive_some(*ends.acceptor, 50'000);
  }
  EXPECT_GT(short_writes, 3);
  EXPECT_EQ(received, data);
  EXPECT_EQ(sent, data.size());
}

// The peer asks for other keys while records wait for room in its socket: the answer comes behind them.
TEST_F(TlsConnection, test_keys_that_the_peer_asks_for_change_behind_the_records_that_wait) {
  auto keys = load();
  std::array<int, 2> fds{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds.data()), 0);
  auto ours = std::move(keys->secure(Fd(fds[0]), TlsRole::Acceptor)).value();
  const Fd peers_end(fds[1]);
  const ContextPtr context = stranger_context(&folder_);
  const std::unique_ptr<SSL, decltype(&SSL_free)> peer(SSL_new(context.get()), &SSL_free);
  SSL_set_fd(peer.get(), peers_end.get());
  SSL_set_connect_state(peer.get());
  int answers = 0;
  SSL_set_msg_callback_arg(peer.get(), &answers);
  SSL_set_msg_callback(
      peer.get(), [](int sent, int, int type, const void* message, std::size_t bytes, SSL*, void* count) {
        const bool is_handshake = sent == 0 && type == SSL3_RT_HANDSHAKE && bytes > 0;
        if (is_handshake && *static_cast<const char*>(message) == SSL3_MT_KEY_UPDATE)
          ++*static_cast<int*>(count);
      });
  for (int i = 0; i < 10; ++i) {
    (void)SSL_do_handshake(peer.get());
    ASSERT_TRUE(ours->handshake().is_ok());
  }
  const auto bytes = pattern(6'000'000, 4);
  const std::string data(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::size_t sent = 0;
  const auto send_more = [&] {
    const std::string rest = data.substr(sent);
    const auto written = ours->write(parts_of(rest));
    EXPECT_TRUE(written.is_ok()) << written.status().to_string();
    sent += written.is_ok() ? *written : 0;
  };
  std::string received;
  const auto receive = [&](std::size_t most) {
    std::string piece(most, '\0');
    const int count = SSL_read(peer.get(), piece.data(), static_cast<int>(piece.size()));
    received += piece.substr(0, static_cast<std::size_t>(std::max(count, 0)));
    return count > 0 || SSL_get_error(peer.get(), count) == SSL_ERROR_WANT_READ;
  };
  int asked_for = 0;
  for (; sent < data.size(); ++asked_for) {
    send_more();  // until the socket is full, and a record waits
    ASSERT_TRUE(receive(16'384));
    ASSERT_TRUE(receive(16'384));  // now the socket has room
    ASSERT_EQ(SSL_key_update(peer.get(), SSL_KEY_UPDATE_REQUESTED), 1);
    ASSERT_EQ(SSL_write(peer.get(), "?", 1), 1);
    std::string asked(1, '\0');
    ASSERT_EQ(ours->read(parts_of(asked))->bytes, 1U);
    for (int i = 0; i < 6; ++i) ASSERT_TRUE(receive(16'384)) << asked_for;
  }
  while (received.size() < data.size() && receive(16'384)) send_more();
  EXPECT_EQ(sent, data.size());
  EXPECT_TRUE(received == data);
  EXPECT_GT(asked_for, 10);
  EXPECT_GE(answers, asked_for - 1);  // the last one is due with the next record
}

TEST_F(TlsConnection, test_changed_bytes_break_the_connection) {
  auto keys = load();
  TlsEnds ends(*keys, *keys);
  ASSERT_TRUE(ends.shake_hands());
  std::string forged = std::string("\x17\x03\x03\x00\x40", 5) + std::string(64, 'x');
  ASSERT_EQ(::send(ends.dialer->fd(), forged.data(), forged.size(), 0), static_cast<ssize_t>(forged.size()));
  std::string room(100, '\0');
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(ends.acceptor->read(parts_of(room)).status().code(), StatusCode::Network);
  }
}

TEST_F(TlsConnection, test_end_is_told_and_the_other_direction_goes_on) {
  auto keys = load();
  TlsEnds ends(*keys, *keys);
  ASSERT_TRUE(ends.shake_hands());
  ends.dialer->finish();
  std::string room(10, '\0');
  EXPECT_TRUE(ends.acceptor->read(parts_of(room))->ended);
  const std::string last = "still here";
  ASSERT_EQ(ends.acceptor->write(parts_of(last)).value(), last.size());
  EXPECT_EQ(ends.receive(*ends.dialer, last.size()), last);
}

TEST_F(TlsConnection, test_binding_proves_the_control_session_and_the_number) {
  auto keys = load();
  TlsEnds control(*keys, *keys);
  TlsEnds data(*keys, *keys);
  TlsEnds stranger(*keys, *keys);
  ASSERT_TRUE(control.shake_hands() && data.shake_hands() && stranger.shake_hands());
  StreamBinding here;
  StreamBinding there;
  StreamBinding other;
  HelloPayload hello{};
  hello.stream = 3;
  hello.generation = 7;
  EXPECT_FALSE(here.holds(*data.acceptor, hello)) << "no control stream yet";
  here.restart(*control.acceptor);
  there.restart(*control.dialer);
  other.restart(*stranger.dialer);
  hello.binding = there.proof(3, 7);
  EXPECT_TRUE(here.holds(*data.acceptor, hello));
  hello.generation = 8;
  EXPECT_FALSE(here.holds(*data.acceptor, hello));
  hello.generation = 7;
  hello.stream = 4;
  EXPECT_FALSE(here.holds(*data.acceptor, hello));
  hello.stream = 3;
  hello.binding = other.proof(3, 7);
  EXPECT_FALSE(here.holds(*data.acceptor, hello));
  hello.binding = {};
  EXPECT_FALSE(here.holds(*data.acceptor, hello));
  // A newer control stream: what the one before proved counts until the next.
  hello.binding = there.proof(3, 7);
  here.restart(*stranger.acceptor);
  EXPECT_TRUE(here.holds(*data.acceptor, hello));
  here.restart(*data.acceptor);
  EXPECT_FALSE(here.holds(*data.acceptor, hello));
}

TEST(TlsReload, test_new_keys_are_used_by_new_connections_and_old_ones_go_on) {
  SecurePair pair;
  ASSERT_TRUE(pair.connect().is_ok());
  Authority fresh;
  fresh.write_keys(pair.keys_a, "geocomm://job/a");
  fresh.write_keys(pair.keys_b, "geocomm://job/b");
  expect_transfer(*pair.high_channel, *pair.low_channel, 1, 100'000, 4);
  // A third process, which only the new CA has signed.
  Folder keys_c;
  fresh.write_keys(keys_c, "geocomm://job/c");
  std::unique_ptr<Endpoint> third;
  do third = make_endpoint(tls_options(keys_c));
  while (third->id() < pair.low->id());
  const auto here = *pair.low->connect(address_of(*third, "third"), token(1));
  const auto there = *third->connect(address_of(*pair.low, "low"), token(1));
  ASSERT_TRUE(there->wait_ready(patience()).is_ok()) << there->status().to_string();
  ASSERT_TRUE(here->wait_ready(patience()).is_ok());
  expect_transfer(*there, *here, 2, 100'000, 4);
  expect_transfer(*pair.low_channel, *pair.high_channel, 3, 100'000, 4);
}

// Puts a file system over a folder that never answers, as a lost file server would, until it is destroyed.
class HungFileSystem {
 public:
  explicit HungFileSystem(const Folder& over)
      : path_(over.path()), fd_(::open("/dev/fuse", O_RDWR | O_CLOEXEC)) {
    const std::string how = "fd=" + std::to_string(fd_.get()) + ",rootmode=40000,user_id=0,group_id=0";
    mounted_ = fd_.valid() && ::mount("hung", path_.c_str(), "fuse", 0, how.c_str()) == 0;
  }
  ~HungFileSystem() {
    fd_.reset();  // ends what hangs in it
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }

 private:
  const std::string path_;
  Fd fd_;
  bool mounted_ = false;
};

TEST(TlsReload, test_file_system_that_hangs_stops_neither_transfers_nor_new_connections) {
  SecurePair pair;
  ASSERT_TRUE(pair.connect().is_ok());
  Folder keys_c;
  pair.authority.write_keys(keys_c, "geocomm://job/c");
  std::unique_ptr<Endpoint> third;
  do third = make_endpoint(tls_options(keys_c));
  while (third->id() < pair.low->id());
  const HungFileSystem hung(pair.keys_a);
  GEOCOMM_NEEDS(hung.mounted(), "/dev/fuse and the right to mount");
  std::this_thread::sleep_for(1500ms);  // by then somebody has looked at the files
  const auto here = *pair.low->connect(address_of(*third, "third"), token(1));
  const auto there = *third->connect(address_of(*pair.low, "low"), token(1));
  ASSERT_TRUE(there->wait_ready(patience()).is_ok()) << there->status().to_string();
  expect_transfer(*there, *here, 2, 100'000, 4);
  expect_transfer(*pair.low_channel, *pair.high_channel, 3, 100'000, 4);
  EXPECT_TRUE(pair.low->shutdown(patience()).is_ok());
  pair.low.reset();
}

TEST(TlsReload, test_files_that_cannot_be_used_leave_the_previous_ones) {
  SecurePair pair;
  std::ofstream(pair.keys_a.file("cert.pem")) << "half a certif";
  EXPECT_TRUE(pair.connect().is_ok()) << pair.high_channel->status().to_string();
}

}  // namespace
}  // namespace geocomm::transport::testing
