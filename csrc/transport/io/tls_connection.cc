#include "transport/io/tls_connection.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/str.h"
#include "transport/io/tls_trouble.h"
#include "transport/wire/wire.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

namespace {

using SslPtr = std::unique_ptr<SSL, decltype(&SSL_free)>;

// Most plaintext in one record.
constexpr std::size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
// What the socket is asked for at once, once the peer is known: some records.
constexpr std::size_t kReadBytes = 128 * 1024;
// What may wait for room in the socket: a record of ours is at most a third of it, the rest are answers to a
// peer that asks and asks and reads nothing.
constexpr std::size_t kMostUnsentBytes = 64 * 1024;
constexpr char kBindingLabel[] = "EXPORTER-geocomm-stream-binding";

// The bytes of a list of parts, piece by piece.
class PartReader {
 public:
  explicit PartReader(std::span<const iovec> parts) : parts_(parts) {
    for (const iovec& part : parts) left_ += part.iov_len;
    take(0);
  }
  std::size_t left() const { return left_; }
  // The next `most` bytes, or those that are left, which stay the next ones until take(); valid until the
  // next call.
  std::span<const char> next(std::size_t most) {
    const std::size_t bytes = std::min(most, std::min(left_, gathered_.size()));
    std::size_t offset = offset_;
    if (parts_[part_].iov_len - offset >= bytes) {
      return {static_cast<const char*>(parts_[part_].iov_base) + offset, bytes};
    }
    std::size_t part = part_;
    for (std::size_t copied = 0; copied < bytes; ++part, offset = 0) {
      const std::size_t piece = std::min(parts_[part].iov_len - offset, bytes - copied);
      std::memcpy(gathered_.data() + copied, static_cast<const char*>(parts_[part].iov_base) + offset, piece);
      copied += piece;
    }
    return {gathered_.data(), bytes};
  }
  void take(std::size_t bytes) {
    left_ -= bytes;
    offset_ += bytes;
    while (part_ < parts_.size() && offset_ >= parts_[part_].iov_len) offset_ -= parts_[part_++].iov_len;
  }

 private:
  const std::span<const iovec> parts_;
  std::size_t part_ = 0;
  std::size_t offset_ = 0;  // in the part
  std::size_t left_ = 0;
  std::array<char, kRecordBytes> gathered_;
};

class TlsConnection final : public Connection {
 public:
  TlsConnection(Fd fd, SslPtr ssl, const TlsName& own, const RekeyLimits& rekey)
      : Connection(std::move(fd)), ssl_(std::move(ssl)), own_(own), rekey_(rekey) {}

  // False if memory is short.
  bool start(TlsRole role, const std::string& server_name);
  void note_untrusted(const X509* certificate, int error);

  Result<bool> handshake() override;
  Result<Received> read(std::span<const iovec> parts) override;
  bool has_more() const override { return has_more_; }
  Result<std::size_t> write(std::span<const iovec> parts) override;
  bool has_unsent() const override { return !unsent_.empty(); }
  void finish() override;
  const TlsName* peer_name() const override { return peer_ ? &*peer_ : nullptr; }
  std::string_view cipher() const override { return cipher_; }
  Result<BindingKey> binding_key() const override;

 private:
  // Blocked: until the socket has more to read.
  enum class Step : std::uint8_t { Done, Blocked, Ended, Failed };

  bool must_read_first() const override { return must_read_first_; }

  ssize_t receive(char* data, std::size_t bytes);
  ssize_t send_now(const char* data, std::size_t bytes);
  bool send_unsent();
  static const BIO_METHOD* socket_method();
  static int bio_read(BIO* bio, char* data, int bytes);
  static int bio_write(BIO* bio, const char* data, int bytes);
  static long bio_control(BIO* bio, int command, long number, void* pointer);

  Step step_of(int returned);
  Status lost(std::string_view what);
  Status why_failed();
  Status check_peer();
  Status handshake_failure();
  Status rekey_if_due();
  const std::string& peer_text();

  const SslPtr ssl_;
  const TlsName own_;
  const RekeyLimits rekey_;
  std::string_view cipher_;
  std::string peer_text_;         // its address, once connected
  bool session_ = false;          // OpenSSL's handshake is done
  bool must_read_first_ = false;  // in the middle of what the peer says to TLS itself
  bool has_more_ = false;         // bytes came, since read() asked the socket in vain
  bool end_of_socket_ = false;
  std::uint8_t first_byte_ = 0;  // that came
  bool failed_ = false;          // OpenSSL takes no more calls
  bool overflows_ = false;       // too many answers wait for room
  int errno_ = 0;                // of the socket
  unsigned long error_ = 0;      // of OpenSSL, the first one
  std::optional<std::string> untrusted_;
  std::optional<TlsName> peer_;
  bool more_follows_ = false;      // behind the record that OpenSSL writes
  std::vector<char> unsent_;       // for which the socket had no room
  std::vector<char> arrived_;      // from the socket; empty until the peer is known
  std::size_t arrived_begin_ = 0;  // of what OpenSSL has not taken
  std::size_t arrived_end_ = 0;
  std::uint64_t sent_bytes_ = 0;  // since the last change of keys
  std::chrono::steady_clock::time_point rekeyed_at_ = std::chrono::steady_clock::now();
};

// ---- the socket, as OpenSSL sees it ----

// As recv(). OpenSSL asks for a record's header, then for the record: two calls to the kernel become one for
// several records.
ssize_t TlsConnection::receive(char* data, std::size_t bytes) {
  if (arrived_.empty()) return ::recv(fd(), data, bytes, MSG_DONTWAIT);
  if (arrived_begin_ == arrived_end_) {
    const ssize_t received = ::recv(fd(), arrived_.data(), arrived_.size(), MSG_DONTWAIT);
    if (received <= 0) return received;
    arrived_begin_ = 0;
    arrived_end_ = static_cast<std::size_t>(received);
  }
  const std::size_t taken = std::min(bytes, arrived_end_ - arrived_begin_);
  std::memcpy(data, arrived_.data() + arrived_begin_, taken);
  arrived_begin_ += taken;
  return static_cast<ssize_t>(taken);
}

int TlsConnection::bio_read(BIO* bio, char* data, int bytes) {
  auto* self = static_cast<TlsConnection*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const ssize_t received = self->receive(data, static_cast<std::size_t>(bytes));
  if (received > 0) self->has_more_ = true;
  if (received == 0) self->end_of_socket_ = true;
  if (received > 0 && self->first_byte_ == 0) self->first_byte_ = static_cast<unsigned char>(data[0]);
  if (received < 0 && would_block(errno)) {
    BIO_set_retry_read(bio);
  } else if (received < 0) {
    self->errno_ = errno;
  }
  return static_cast<int>(received);
}

// How many bytes the kernel takes now; less than 0 when the connection broke.
ssize_t TlsConnection::send_now(const char* data, std::size_t bytes) {
  const ssize_t sent =
      ::send(fd(), data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL | (more_follows_ ? MSG_MORE : 0));
  if (sent < 0 && would_block(errno)) return 0;
  if (sent < 0) errno_ = errno;
  return sent;
}

// Takes everything, so that OpenSSL never waits for room: it could not go on with an answer to the peer while
// a record of data waits in it, nor read on before it has answered.
int TlsConnection::bio_write(BIO* bio, const char* data, int bytes) {
  auto* self = static_cast<TlsConnection*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const auto size = static_cast<std::size_t>(bytes);
  const ssize_t sent = self->has_unsent() ? 0 : self->send_now(data, size);
  if (sent < 0) return -1;
  if (self->unsent_.size() + size > kMostUnsentBytes) {
    self->overflows_ = true;
    return -1;
  }
  self->unsent_.insert(self->unsent_.end(), data + sent, data + size);
  return bytes;
}

// False when the connection broke.
bool TlsConnection::send_unsent() {
  if (!has_unsent()) return true;
  const ssize_t sent = send_now(unsent_.data(), unsent_.size());
  if (sent < 0) return false;
  unsent_.erase(unsent_.begin(), unsent_.begin() + sent);
  return true;
}

long TlsConnection::bio_control(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_EOF) return static_cast<TlsConnection*>(BIO_get_data(bio))->end_of_socket_ ? 1 : 0;
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

const BIO_METHOD* TlsConnection::socket_method() {
  static const BIO_METHOD* const kMethod = [] {
    BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "geocomm socket");
    if (method == nullptr) return method;
    BIO_meth_set_read(method, &bio_read);
    BIO_meth_set_write(method, &bio_write);
    BIO_meth_set_ctrl(method, &bio_control);
    return method;
  }();
  return kMethod;
}

bool TlsConnection::start(TlsRole role, const std::string& server_name) {
  const BIO_METHOD* method = socket_method();
  BIO* bio = method == nullptr ? nullptr : BIO_new(method);
  if (bio == nullptr) return false;
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_app_data(ssl_.get(), this);
  role == TlsRole::Acceptor ? SSL_set_accept_state(ssl_.get()) : SSL_set_connect_state(ssl_.get());
  return server_name.empty() || SSL_set_tlsext_host_name(ssl_.get(), server_name.c_str()) == 1;
}

// What a call of OpenSSL came to. ERR_clear_error() must have run before it.
TlsConnection::Step TlsConnection::step_of(int returned) {
  if (returned > 0) return Step::Done;
  switch (SSL_get_error(ssl_.get(), returned)) {
    case SSL_ERROR_WANT_READ:
      return Step::Blocked;
    case SSL_ERROR_ZERO_RETURN:
      return Step::Ended;
    default:
      failed_ = true;
      if (error_ == 0) error_ = ERR_peek_error();
      ERR_clear_error();
      return end_of_socket_ && errno_ == 0 ? Step::Ended : Step::Failed;
  }
}

// The system's error, and whose connection it is.
Status TlsConnection::lost(std::string_view what) {
  const Status why = errno_status(errno_);
  return Status(why.code(), core::str(what, peer_text(), ": ", why.message())).with_errno(errno_);
}

Status TlsConnection::why_failed() {
  if (errno_ != 0) return lost("TLS with ");
  if (overflows_) {
    return {StatusCode::Network,
            core::str("TLS with ", peer_text(), ": it asks for new keys again and again, and reads nothing")};
  }
  const char* reason = error_ == 0 ? nullptr : ERR_reason_error_string(error_);
  // Not CorruptData: bytes that were changed on the way are no more the peer's doing than a reset.
  return {StatusCode::Network,
          core::str("TLS with ", peer_text(), ": ", reason == nullptr ? "unknown error" : reason)};
}

// ---- authentication ----

const std::string& TlsConnection::peer_text() {
  if (peer_text_.empty()) peer_text_ = SocketAddress::peer_of(fd()).to_string();
  return peer_text_;
}

void TlsConnection::note_untrusted(const X509* certificate, int error) {
  const auto name = certificate == nullptr ? Result<TlsName>(Status(StatusCode::Authentication, ""))
                                           : TlsName::of(*certificate);
  untrusted_ = core::str("the certificate ", name.is_ok() ? core::str("(", name->uri(), ") ") : "", "of ",
                         peer_text(), " ", certificate_trouble(certificate, error));
}

Result<bool> TlsConnection::handshake() {
  (void)peer_text();  // which the kernel forgets when the peer resets the connection
  if (!send_unsent()) return handshake_failure();
  ERR_clear_error();
  switch (step_of(SSL_do_handshake(ssl_.get()))) {
    case Step::Done:
      if (has_unsent()) return false;
      session_ = true;
      cipher_ = SSL_get_cipher_name(ssl_.get());
      GEOCOMM_RETURN_IF_ERROR(check_peer());
      return true;
    case Step::Blocked:
      return false;
    default:
      return handshake_failure();
  }
}

Status TlsConnection::check_peer() {
  if (untrusted_) return {StatusCode::Authentication, *untrusted_};
  const X509* certificate = SSL_get0_peer_certificate(ssl_.get());
  if (certificate == nullptr) {
    return {StatusCode::Authentication,
            core::str(peer_text(), " presents no certificate: set GEOCOMM_KEYS there")};
  }
  const Result<TlsName> name = TlsName::of(*certificate);
  if (!name.is_ok()) {
    return {StatusCode::Authentication,
            core::str("the certificate of ", peer_text(), " ", name.status().message())};
  }
  // spec channel 2.1: "JOB MUST be one's own job."
  if (name->job != own_.job) {
    return {StatusCode::Authentication, core::str("the certificate (", name->uri(), ") of ", peer_text(),
                                                  " is of another job: here runs '", own_.job, "'")};
  }
  peer_ = *name;
  // Strangers do not get so much memory. OpenSSL's own reading ahead would move what it has for each record.
  SSL_set_read_ahead(ssl_.get(), 0);
  arrived_.resize(kReadBytes);
  return Status::ok();
}

Status TlsConnection::handshake_failure() {
  if (untrusted_) return {StatusCode::Authentication, *untrusted_};
  if (first_byte_ == (kWireMagic & 0xFF)) {
    return {StatusCode::Authentication,
            "it answers in plaintext, while this side has keys: set GEOCOMM_KEYS on all sites, or on none"};
  }
  if (errno_ != 0) return lost("the TLS handshake with ");
  const int reason = ERR_GET_REASON(error_);
  if (ERR_GET_LIB(error_) == ERR_LIB_SSL && reason > SSL_AD_REASON_OFFSET) {
    if (const auto trouble = alert_trouble(reason - SSL_AD_REASON_OFFSET)) {
      return {StatusCode::Authentication,
              core::str("refused by ", peer_text(), ": the certificate of this side (", own_.uri(), ") ",
                        *trouble)};
    }
  }
  if (end_of_socket_) {
    return {StatusCode::Network, core::str(peer_text(), " closed the connection during the TLS handshake")};
  }
  const char* text = ERR_reason_error_string(error_);
  return {StatusCode::Network, core::str("no TLS 1.3 handshake with ", peer_text(), ": ",
                                         text == nullptr ? "unknown error" : text)};
}

Result<BindingKey> TlsConnection::binding_key() const {
  BindingKey key;
  if (SSL_export_keying_material(ssl_.get(), key.data(), key.size(), kBindingLabel, sizeof kBindingLabel - 1,
                                 nullptr, 0, 0) != 1) {
    return Status(StatusCode::Internal, core::str("no keying material: ", take_openssl_error()));
  }
  return key;
}

// ---- data ----

Result<Connection::Received> TlsConnection::read(std::span<const iovec> parts) {
  if (!peer_) return Status(StatusCode::Authentication, "the peer is not authenticated");
  Received received;
  must_read_first_ = false;
  for (const iovec& part : parts) {
    std::size_t filled = 0;
    while (filled < part.iov_len) {
      std::size_t bytes = 0;
      ERR_clear_error();
      const Step step = step_of(
          SSL_read_ex(ssl_.get(), static_cast<char*>(part.iov_base) + filled, part.iov_len - filled, &bytes));
      filled += bytes;
      received.bytes += bytes;
      if (step == Step::Done) continue;
      if (step == Step::Blocked) {
        has_more_ = false;
        return received;
      }
      // An end or an error is told by a call of its own.
      has_more_ = received.bytes > 0;
      if (received.bytes > 0) return received;
      if (step == Step::Ended) return Received{0, true};
      return why_failed();
    }
  }
  has_more_ = true;
  return received;
}

// Records of up to 16 KiB, straight from the caller's memory where a part has so much; what is smaller (a
// packet's header) shares a record with what follows it. Each goes to the kernel as soon as it is encrypted:
// gathering several for one call would cost a copy, which takes longer than the calls. Only of the record
// that fills the socket a rest is kept.
Result<std::size_t> TlsConnection::write(std::span<const iovec> parts) {
  if (!session_ || failed_) return Status(StatusCode::Network, "no TLS session");
  PartReader reader(parts);
  const std::size_t offered = reader.left();
  more_follows_ = offered > 0;
  bool sound = send_unsent();
  if (sound && !has_unsent() && offered > 0) GEOCOMM_RETURN_IF_ERROR(rekey_if_due());
  while (sound && !has_unsent() && reader.left() > 0) {
    const std::span<const char> record = reader.next(kRecordBytes);
    std::size_t written = 0;
    more_follows_ = reader.left() > record.size();
    ERR_clear_error();
    const Step step = step_of(SSL_write_ex(ssl_.get(), record.data(), record.size(), &written));
    must_read_first_ = step == Step::Blocked;
    if (must_read_first_) break;
    sound = step == Step::Done;
    reader.take(written);
    sent_bytes_ += written;
  }
  more_follows_ = false;
  if (!sound) return why_failed();
  return offered - reader.left();
}

// spec channel 2.3: "A side MUST change its sending keys"
Status TlsConnection::rekey_if_due() {
  const auto now = std::chrono::steady_clock::now();
  if (sent_bytes_ < rekey_.bytes && now - rekeyed_at_ < rekey_.interval) return Status::ok();
  // In the middle of what the peer says to TLS itself: with a later record.
  if (SSL_in_init(ssl_.get()) != 0) return Status::ok();
  if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) {
    return {StatusCode::Internal, core::str("TLS keys cannot be changed: ", take_openssl_error())};
  }
  sent_bytes_ = 0;
  rekeyed_at_ = now;
  return Status::ok();
}

void TlsConnection::finish() {
  if (!session_ || failed_) return;
  ERR_clear_error();
  (void)SSL_shutdown(ssl_.get());
  ERR_clear_error();
  (void)send_unsent();
  (void)::shutdown(fd(), SHUT_WR);
}

}  // namespace

void note_untrusted(SSL& ssl, const X509* certificate, int error) {
  static_cast<TlsConnection*>(SSL_get_app_data(&ssl))->note_untrusted(certificate, error);
}

Result<std::unique_ptr<Connection>> tls_connection(Fd fd, TlsRole role, SSL_CTX& context, const TlsName& own,
                                                   const RekeyLimits& rekey, const std::string& server_name) {
  SslPtr ssl(SSL_new(&context), &SSL_free);
  if (!ssl) return Status(StatusCode::Internal, core::str("no TLS connection: ", take_openssl_error()));
  auto connection = std::make_unique<TlsConnection>(std::move(fd), std::move(ssl), own, rekey);
  if (!connection->start(role, server_name)) {
    return Status(StatusCode::Internal, "no memory for a TLS connection");
  }
  return std::unique_ptr<Connection>(std::move(connection));
}

}  // namespace geocomm::transport
