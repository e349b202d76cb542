#include "transport/link/link_mark.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

namespace geocomm::transport {

namespace {

constexpr std::string_view kSuffix = ".link.geocomm";
constexpr std::string_view kDigits = "0123456789abcdef";
constexpr std::size_t kHalfDigits = 32;  // of what stands before and after the dot
constexpr std::size_t kMarkBytes = kHalfDigits + 1 + kHalfDigits;

void append(std::string& text, std::span<const std::uint8_t> bytes) {
  for (const std::uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
}

// False: something else than two digits for each of `bytes`.
bool read(std::string_view text, std::span<std::uint8_t> bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto high = kDigits.find(text[2 * i]);
    const auto low = kDigits.find(text[2 * i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return false;
    bytes[i] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return true;
}

}  // namespace

std::string server_name(const LinkMark& mark) {
  std::string text;
  append(text, mark.link);
  append(text, mark.number);
  text += '.';
  append(text, mark.proof);
  text += kSuffix;
  return text;
}

std::optional<LinkMark> find_mark(std::string_view client_hello) {
  const std::size_t end = client_hello.find(kSuffix);
  if (end == std::string_view::npos || end < kMarkBytes) return std::nullopt;
  const std::string_view text = client_hello.substr(end - kMarkBytes, kMarkBytes);
  LinkMark mark;
  const bool whole = read(text.substr(0, 16), mark.link) && read(text.substr(16, 16), mark.number) &&
                     text[kHalfDigits] == '.' && read(text.substr(kHalfDigits + 1), mark.proof);
  return whole ? std::optional(mark) : std::nullopt;
}

}  // namespace geocomm::transport
