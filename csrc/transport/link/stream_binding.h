// Ties the data streams of a link to its control streams: a Hello for a data stream proves, with a secret
// that only the two ends of the control stream's TLS session know, that it comes from the process at that end
// (a certificate only says which site it comes from). Plain links have no such secret, and bind nothing.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "transport/io/connection.h"
#include "transport/link/link_mark.h"
#include "transport/wire/wire.h"

namespace geocomm::transport {

// The IO thread's.
class StreamBinding {
 public:
  using Proof = std::array<std::uint8_t, 32>;

  // `control` is the link's control stream from now on. What the one before proves still counts: a Hello may
  // be under way.
  void restart(const Connection& control);
  // HMAC-SHA256 over stream and generation (u16, u32); zeros on a plain link.
  Proof proof(std::uint16_t stream, std::uint32_t generation) const;
  // Whether a Hello that came over `connection` belongs to this link.
  bool holds(const Connection& connection, const HelloPayload& hello) const;
  // A server name with a LinkMark of its own; empty on a plain link, and before there was a control stream.
  std::string next_mark();
  // Whether it was made for this link, and did not come before.
  bool recognizes(const LinkMark& mark);

 private:
  struct Secret {
    BindingKey key;
    decltype(LinkMark::link) name;  // in marks
    std::set<decltype(LinkMark::number)> came;
  };

  std::optional<Secret> now_;
  std::optional<Secret> previous_;
  std::uint64_t marks_ = 0;  // made
};

}  // namespace geocomm::transport
