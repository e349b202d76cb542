// TlsKeys: the keys of this process, and connections made with them.
#pragma once

#include <openssl/ossl_typ.h>
#include <sys/stat.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "core/status.h"
#include "transport/connection.h"
#include "transport/tls_name.h"

namespace geocomm::transport {

enum class TlsRole : std::uint8_t { Dialer, Acceptor };

// After so much, or so long, a connection changes the keys with which it sends.
struct RekeyLimits {
  std::uint64_t bytes = std::uint64_t{64} << 30;
  std::chrono::steady_clock::duration interval = std::chrono::hours(1);
};

// A folder with ca.pem (who signs), cert.pem (this site's certificate), key.pem (its private key, for its
// owner's eyes only) and perhaps crl.pem (what ca.pem has revoked). New connections use the files as they are
// when they are made. After load(), all on one thread.
class TlsKeys {
 public:
  // InvalidArgument, naming the file and what to do, if they cannot be used.
  static core::Result<std::unique_ptr<TlsKeys>> load(const std::string& folder,
                                                     const RekeyLimits& rekey = {});

  // Over a connected, non-blocking socket. Changed files are loaded before; if they cannot be used, that is
  // logged and the previous ones stay.
  core::Result<std::unique_ptr<Connection>> secure(Fd fd, TlsRole role);
  // Whom cert.pem speaks for.
  const TlsName& name() const { return loaded_.name; }

 private:
  struct Stamp {
    timespec modified{};
    off_t bytes = 0;
    ino_t inode = 0;
    bool operator==(const Stamp& other) const {
      return modified.tv_sec == other.modified.tv_sec && modified.tv_nsec == other.modified.tv_nsec &&
             bytes == other.bytes && inode == other.inode;
    }
  };
  using Stamps = std::array<Stamp, 4>;
  struct Loaded {
    std::shared_ptr<SSL_CTX> context;
    TlsName name;
  };

  TlsKeys(std::string folder, const RekeyLimits& rekey) : folder_(std::move(folder)), rekey_(rekey) {}
  Stamps look() const;
  core::Result<Loaded> read_files() const;
  void reload_if_changed();

  const std::string folder_;
  const RekeyLimits rekey_;
  Stamps stamps_{};  // of the files last tried
  Loaded loaded_;
};

}  // namespace geocomm::transport
