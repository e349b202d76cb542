#include "transport/io/tls_keys.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "core/log.h"
#include "core/str.h"
#include "core/thread.h"
#include "transport/io/tls_connection.h"
#include "transport/io/tls_trouble.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

namespace {

constexpr std::chrono::seconds kLookInterval{1};
// For a look at the files that is under way when the keys are not needed any more.
constexpr std::chrono::seconds kPatience{1};
constexpr std::size_t kMaxFileBytes = 1 << 20;
constexpr std::array<const char*, 4> kFiles = {"ca.pem", "cert.pem", "key.pem", "crl.pem"};
constexpr char kCipherSuites[] = "TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
constexpr char kHybridGroups[] = "*X25519MLKEM768:*X25519:P-256:P-384";

using BioPtr = std::unique_ptr<BIO, decltype(&BIO_free)>;
using X509Ptr = std::unique_ptr<X509, decltype(&X509_free)>;
using CrlPtr = std::unique_ptr<X509_CRL, decltype(&X509_CRL_free)>;
using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

Status unusable(const std::string& path, const std::string& why) {
  return {StatusCode::InvalidArgument,
          core::str(path, " ", why, ". `geocomm keys create` makes the folder that GEOCOMM_KEYS names")};
}

// Empty if there is no such file and it may be missing.
Result<std::string> read_file(const std::string& path, bool is_private, bool optional) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid() && optional && errno == ENOENT) return std::string();
  if (!fd.valid()) {
    return unusable(path, core::str("cannot be opened: ", std::generic_category().message(errno)));
  }
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return unusable(path, "is not a file");
  if (is_private && (info.st_mode & 077) != 0) {
    return unusable(path, core::str("may be read by others: chmod 600 ", path));
  }
  std::string text(kMaxFileBytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = ::read(fd.get(), text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      return unusable(path, core::str("cannot be read: ", std::generic_category().message(errno)));
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  if (size == 0 || size > kMaxFileBytes) return unusable(path, "is empty or too large");
  text.resize(size);
  return text;
}

BioPtr memory(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free};
}

std::vector<X509Ptr> certificates_in(const std::string& text) {
  std::vector<X509Ptr> all;
  const BioPtr bio = memory(text);
  while (X509* one = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    all.emplace_back(one, &X509_free);
  }
  ERR_clear_error();  // it ends with "no start line"
  return all;
}

// Instead of asking on the terminal.
int no_password(char*, int, int, void*) {
  return -1;
}

// Runs in the middle of the handshake. A dialer ends it here, with an alert that tells why. An acceptor goes
// on to the end, where TlsConnection fails it: so it can say why in words.
int verify(X509_STORE_CTX* store, void*) {
  auto* ssl = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  const bool good = X509_verify_cert(store) == 1;
  if (good) return 1;
  int error = X509_STORE_CTX_get_error(store);
  if (error == X509_V_OK) error = X509_V_ERR_UNSPECIFIED;
  // The signature of another CA of the same name.
  if (error == X509_V_ERR_CERT_SIGNATURE_FAILURE) error = X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY;
  X509_STORE_CTX_set_error(store, error);
  note_untrusted(*ssl, X509_STORE_CTX_get0_cert(store), error);
  return SSL_is_server(ssl);
}

Status trust(SSL_CTX* context, const std::string& path, const std::string& text) {
  const auto authorities = certificates_in(text);
  if (authorities.empty()) return unusable(path, "holds no certificate");
  X509_STORE* store = SSL_CTX_get_cert_store(context);
  for (const X509Ptr& authority : authorities) {
    if (X509_STORE_add_cert(store, authority.get()) != 1) return unusable(path, take_openssl_error());
  }
  return Status::ok();
}

Result<TlsName> use_certificate(SSL_CTX* context, const std::string& path, const std::string& text) {
  const auto chain = certificates_in(text);
  if (chain.empty()) return unusable(path, "holds no certificate");
  Result<TlsName> name = TlsName::of(*chain.front());
  if (!name.is_ok()) return unusable(path, name.status().message());
  if (SSL_CTX_use_certificate(context, chain.front().get()) != 1) return unusable(path, take_openssl_error());
  for (std::size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context, chain[i].get()) != 1) return unusable(path, take_openssl_error());
  }
  if (X509_cmp_current_time(X509_get0_notAfter(chain.front().get())) < 0) {
    core::log(core::LogLevel::Warning, path, " ",
              certificate_trouble(chain.front().get(), X509_V_ERR_CERT_HAS_EXPIRED));
  }
  return name;
}

Status use_key(SSL_CTX* context, const std::string& path, const std::string& text) {
  const KeyPtr key(PEM_read_bio_PrivateKey(memory(text).get(), nullptr, &no_password, nullptr),
                   &EVP_PKEY_free);
  if (!key) return unusable(path, "holds no private key without a password");
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1 || SSL_CTX_check_private_key(context) != 1) {
    ERR_clear_error();
    return unusable(path, "is not the key of cert.pem");
  }
  return Status::ok();
}

Status use_revocations(SSL_CTX* context, const std::string& path, const std::string& text) {
  X509_STORE* store = SSL_CTX_get_cert_store(context);
  const BioPtr bio = memory(text);
  int count = 0;
  while (X509_CRL* raw = PEM_read_bio_X509_CRL(bio.get(), nullptr, nullptr, nullptr)) {
    const CrlPtr list(raw, &X509_CRL_free);
    if (X509_STORE_add_crl(store, list.get()) != 1) return unusable(path, take_openssl_error());
    ++count;
  }
  ERR_clear_error();
  if (count == 0) return unusable(path, "holds no revocation list");
  X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK);
  return Status::ok();
}

Result<std::shared_ptr<SSL_CTX>> make_context() {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_method()), &SSL_CTX_free);
  if (!context || SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context.get(), kCipherSuites) != 1) {
    return Status(StatusCode::Internal, core::str("OpenSSL has no TLS 1.3: ", take_openssl_error()));
  }
  // What is recorded cannot be read by a later quantum computer either, where OpenSSL has the hybrid group:
  // from 3.5 on. A share of both goes out at once, so that a peer without it costs no round trip.
  if (SSL_CTX_set1_groups_list(context.get(), kHybridGroups) != 1) ERR_clear_error();
  // Every connection proves itself anew: no tickets, no sessions, no early data.
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_read_ahead(context.get(), 1);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_cert_verify_callback(context.get(), &verify, nullptr);
  return context;
}

}  // namespace

TlsKeys::TlsKeys(std::shared_ptr<Watched> watched, const RekeyLimits& rekey)
    : watched_(std::move(watched)), name_(watched_->loaded.name), rekey_(rekey) {}

Result<std::unique_ptr<TlsKeys>> TlsKeys::load(const std::string& folder, const RekeyLimits& rekey) {
  auto watched = std::make_shared<Watched>(folder);
  watched->stamps = watched->look();
  GEOCOMM_ASSIGN_OR_RETURN(watched->loaded, watched->read_files());
  auto keys = std::unique_ptr<TlsKeys>(new TlsKeys(watched, rekey));
  GEOCOMM_ASSIGN_OR_RETURN(keys->watcher_,
                           core::start_thread("geocomm-keys", [watched] { watched->watch(); }));
  return keys;
}

TlsKeys::~TlsKeys() {
  if (!watcher_.joinable()) return;
  if (!process_.is_here()) {
    watcher_.detach();
    return;
  }
  std::unique_lock lock(watched_->mutex);
  watched_->stopping = true;
  watched_->changed.notify_all();
  const bool idle = watched_->changed.wait_for(lock, kPatience, [&] { return !watched_->looking; });
  lock.unlock();
  idle ? watcher_.join() : watcher_.detach();
}

TlsKeys::Stamps TlsKeys::Watched::look() const {
  Stamps stamps;
  for (std::size_t i = 0; i < kFiles.size(); ++i) {
    struct stat info{};
    if (::stat(core::str(folder, "/", kFiles[i]).c_str(), &info) != 0) continue;
    stamps[i] = {info.st_mtim, info.st_size, info.st_ino};
  }
  return stamps;
}

Result<TlsKeys::Loaded> TlsKeys::Watched::read_files() const {
  const auto path = [&](std::size_t file) { return core::str(folder, "/", kFiles[file]); };
  std::array<std::string, kFiles.size()> text;
  for (std::size_t i = 0; i < kFiles.size(); ++i) {
    GEOCOMM_ASSIGN_OR_RETURN(text[i], read_file(path(i), i == 2, i == 3));
  }
  Loaded loaded;
  GEOCOMM_ASSIGN_OR_RETURN(loaded.context, make_context());
  SSL_CTX* context = loaded.context.get();
  GEOCOMM_RETURN_IF_ERROR(trust(context, path(0), text[0]));
  GEOCOMM_ASSIGN_OR_RETURN(loaded.name, use_certificate(context, path(1), text[1]));
  GEOCOMM_RETURN_IF_ERROR(use_key(context, path(2), text[2]));
  OPENSSL_cleanse(text[2].data(), text[2].size());
  if (!text[3].empty()) GEOCOMM_RETURN_IF_ERROR(use_revocations(context, path(3), text[3]));
  return loaded;
}

void TlsKeys::Watched::reload_if_changed() {
  const Stamps now = look();
  if (now == stamps) return;
  stamps = now;
  Result<Loaded> fresh = read_files();
  const TlsName& name = loaded.name;  // only this thread changes it
  if (fresh.is_ok() && fresh->name != name) {
    fresh = Status(StatusCode::InvalidArgument,
                   core::str("they are now for ", fresh->name.uri(), ", not for ", name.uri()));
  }
  if (!fresh.is_ok()) {
    core::log(core::LogLevel::Warning, "the keys in ", folder,
              " have changed but cannot be used; the previous ones stay: ", fresh.status().message());
    return;
  }
  {
    std::lock_guard lock(mutex);
    loaded = std::move(fresh).value();
  }
  core::log(core::LogLevel::Info, "loaded the changed keys in ", folder);
}

void TlsKeys::Watched::watch() {
  std::unique_lock lock(mutex);
  while (!changed.wait_for(lock, kLookInterval, [&] { return stopping; })) {
    looking = true;
    lock.unlock();
    reload_if_changed();
    lock.lock();
    looking = false;
    changed.notify_all();
  }
}

Result<std::unique_ptr<Connection>> TlsKeys::secure(Fd fd, TlsRole role, const std::string& server_name) {
  std::shared_ptr<SSL_CTX> context;
  {
    std::lock_guard lock(watched_->mutex);
    context = watched_->loaded.context;
  }
  return tls_connection(std::move(fd), role, *context, name_, rekey_, server_name);
}

}  // namespace geocomm::transport
