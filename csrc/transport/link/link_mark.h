// What a dialer of a link that was up before says in the clear, in its ClientHello (as the server name): so
// the acceptor tells it from strangers of the same address before it works on any handshake. Gives priority,
// never authority: the handshake proves as much as any.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace geocomm::transport {

struct LinkMark {
  std::array<std::uint8_t, 8> link{};    // which secret it was made with
  std::array<std::uint8_t, 8> number{};  // another one in every mark of that secret
  std::array<std::uint8_t, 16> proof{};  // that the dialer knows the secret
  bool operator==(const LinkMark&) const = default;
};

// Each field in hexadecimal, link and number together: "<32 digits>.<32 digits>.link.geocomm".
std::string server_name(const LinkMark& mark);
// The first that these bytes of a stranger's have.
std::optional<LinkMark> find_mark(std::string_view client_hello);

}  // namespace geocomm::transport
