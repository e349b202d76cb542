// TlsName: who a certificate speaks for. It stands in its one URI `geocomm://job/site` (a subject alternative
// name; both parts percent-encoded where they hold anything but letters, digits, '-', '.', '_' and '~').
#pragma once

#include <openssl/ossl_typ.h>

#include <optional>
#include <string>
#include <string_view>

#include "core/status.h"

namespace geocomm::transport {

struct TlsName {
  std::string job;
  std::string site;

  // Nothing unless it is exactly geocomm://job/site, neither part empty.
  static std::optional<TlsName> parse(std::string_view uri);
  // The one geocomm URI of a certificate. Authentication if there is none, or more than one.
  static core::Result<TlsName> of(const X509& certificate);
  std::string uri() const;

  friend bool operator==(const TlsName&, const TlsName&) = default;
};

}  // namespace geocomm::transport
