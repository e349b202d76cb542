// Why a certificate is not accepted, in words: as this side sees it, and as the peer's alert tells it.
#pragma once

#include <openssl/ossl_typ.h>

#include <optional>
#include <string>

namespace geocomm::transport {

// What is wrong with `certificate` (may be null), which `X509_V_ERR_*` code `error` tells. Begins with a
// verb: "expired on ...".
std::string certificate_trouble(const X509* certificate, int error);
// What the peer finds wrong with our certificate, by its TLS alert; nothing for alerts about other things.
std::optional<std::string> alert_trouble(int alert);
// The reason of the error at the head of OpenSSL's queue of this thread, which is cleared.
std::string take_openssl_error();

}  // namespace geocomm::transport
