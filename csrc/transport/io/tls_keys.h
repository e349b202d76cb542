// TlsKeys: the keys of this process, and connections made with them.
#pragma once

#include <openssl/ossl_typ.h>
#include <sys/stat.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "core/fork.h"
#include "core/status.h"
#include "transport/io/connection.h"
#include "transport/io/tls_name.h"

namespace geocomm::transport {

enum class TlsRole : std::uint8_t { Dialer, Acceptor };

// After so much, or so long, a connection changes the keys with which it sends.
struct RekeyLimits {
  std::uint64_t bytes = std::uint64_t{64} << 30;
  std::chrono::steady_clock::duration interval = std::chrono::hours(1);
};

// A folder with ca.pem (who signs), cert.pem (this site's certificate), key.pem (its private key, for its
// owner's eyes only) and perhaps crl.pem (what ca.pem has revoked). New connections use the files as they
// were about a second before: a thread looks for changes once a second, so that a file system that hangs
// holds up nobody else. Changed files that cannot be used are logged, and the previous ones stay.
class TlsKeys {
 public:
  ~TlsKeys();
  TlsKeys(const TlsKeys&) = delete;
  TlsKeys& operator=(const TlsKeys&) = delete;
  // InvalidArgument, naming the file and what to do, if they cannot be used.
  static core::Result<std::unique_ptr<TlsKeys>> load(const std::string& folder,
                                                     const RekeyLimits& rekey = {});

  // Over a connected, non-blocking socket. Does not look at the files. A dialer says `server_name` (empty:
  // none) in the clear. Any thread.
  core::Result<std::unique_ptr<Connection>> secure(Fd fd, TlsRole role, const std::string& server_name = {});
  // Whom cert.pem speaks for.
  const TlsName& name() const { return name_; }

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

  // Of the keys and of the thread that watches their files, which may hang in there for longer than the keys
  // are needed.
  struct Watched {
    explicit Watched(std::string path) : folder(std::move(path)) {}
    Stamps look() const;
    core::Result<Loaded> read_files() const;
    void reload_if_changed();
    void watch();

    const std::string folder;
    Stamps stamps{};   // of the files last tried; the watching thread's, once it runs
    std::mutex mutex;  // guards all below
    std::condition_variable changed;
    Loaded loaded;
    bool looking = false;
    bool stopping = false;
  };

  TlsKeys(std::shared_ptr<Watched> watched, const RekeyLimits& rekey);

  const std::shared_ptr<Watched> watched_;
  const TlsName name_;
  const RekeyLimits rekey_;
  const core::ProcessMark process_;  // a forked one has no watcher
  std::thread watcher_;
};

}  // namespace geocomm::transport
