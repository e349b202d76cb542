// The fabric under RDMA streams, behind a seam: UCX is used by a library of its own (transport/rdma/ucx),
// which is loaded when somebody asks for RDMA and missing where it was built without UCX.
//
// A link carries messages, a header and a payload each, in one direction or both, in any order, until it
// breaks. All calls and callbacks are on the IO thread (before it runs, on the one that makes it).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/status.h"
#include "transport/wire/wire.h"

namespace geocomm::transport {

// A token that the receiver has drawn for this link, and a header of wire.h.
inline constexpr std::size_t kRdmaHeaderBytes = sizeof(std::uint64_t) + kHeaderBytes;
using RdmaHeader = std::array<std::byte, kRdmaHeaderBytes>;

struct RdmaOutgoing {
  RdmaHeader header{};
  std::span<const std::byte> payload;  // host memory
  // Runs once if the payload has left. Owns the payload: destroyed when the fabric reads it no more.
  std::function<void()> on_sent;
};

struct RdmaIncoming {
  std::byte* dest = nullptr;  // host memory for the whole payload; null: it is thrown away
  // Runs once if the payload is there. Owns the memory: destroyed when the fabric writes to it no more.
  std::function<void()> on_received;
};

class RdmaLinkDelegate {
 public:
  virtual ~RdmaLinkDelegate() = default;
  // A message came: where its payload goes. Nothing: the message is thrown away.
  virtual std::optional<RdmaIncoming> on_message(std::span<const std::byte> header,
                                                 std::size_t payload_bytes) = 0;
};

class RdmaLink {
 public:
  // Waits, for a fraction of a second at most, until the fabric has let go of all memory. Not from a
  // callback.
  virtual ~RdmaLink() = default;

  // What the peer connects to.
  virtual std::span<const std::byte> address() const = 0;
  // Readable when progress() has something to do. After send() it must be called in any case.
  virtual int event_fd() const = 0;
  // To what the peer said of its address(). Unsupported if there is no way to it but such as are not RDMA.
  virtual core::Status connect(std::span<const std::byte> peer_address) = 0;
  // After connect(): "rc_mlx5", "posix, cma".
  virtual std::string transports() const = 0;
  // Precondition: connected. on_sent may run at once.
  virtual void send(RdmaOutgoing message) = 0;
  // Moves what can be moved, with the callbacks. True: there is more, call again soon. An error: the link is
  // broken.
  virtual core::Result<bool> progress() = 0;
  // No callback from now on. Also from one.
  virtual void silence() = 0;
};

class RdmaFabric {
 public:
  virtual ~RdmaFabric() = default;
  // The fabric outlives its links.
  virtual core::Result<std::unique_ptr<RdmaLink>> open_link(RdmaLinkDelegate& delegate) = 0;
};

struct RdmaOptions {
  std::string library;     // path of the plugin; empty: no RDMA
  bool trusted = false;    // the fabric may carry plaintext although security is Required
  bool allow_tcp = false;  // also where UCX finds only TCP or shared memory
};

// What the plugin exports under kRdmaEntryName, in C linkage.
using RdmaEntry = void (*)(std::uint32_t seam, const RdmaOptions& options,
                           core::Result<std::unique_ptr<RdmaFabric>>& out);
inline constexpr const char* kRdmaEntryName = "geocomm_open_rdma_fabric";
// Of what is declared here: core and plugin must be of one build.
inline constexpr std::uint32_t kRdmaSeam = 1;

// Loads the plugin. Unsupported, saying what to do, if it is not there, cannot be loaded, or finds no RDMA.
core::Result<std::unique_ptr<RdmaFabric>> load_rdma_fabric(const RdmaOptions& options);

}  // namespace geocomm::transport
