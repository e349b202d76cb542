#include "transport/io/tls_trouble.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>

#include <memory>

#include "core/str.h"

namespace geocomm::transport {

namespace {

std::string time_text(const ASN1_TIME* time) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> out(BIO_new(BIO_s_mem()), &BIO_free);
  if (time == nullptr || !out || ASN1_TIME_print(out.get(), time) != 1) return "an unknown day";
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return {text, static_cast<std::size_t>(size)};
}

}  // namespace

std::string certificate_trouble(const X509* certificate, int error) {
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return core::str("expired on ",
                       time_text(certificate == nullptr ? nullptr : X509_get0_notAfter(certificate)),
                       ": renew it with `geocomm keys renew`");
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return core::str("is not valid before ",
                       time_text(certificate == nullptr ? nullptr : X509_get0_notBefore(certificate)),
                       ": compare the clocks of the machines");
    case X509_V_ERR_CERT_REVOKED:
      return "was revoked (crl.pem)";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
      return "was signed by an unknown CA, not by ca.pem's: the keys of all sites must come from one "
             "`geocomm keys create`";
    case X509_V_ERR_CRL_HAS_EXPIRED:
    case X509_V_ERR_CRL_NOT_YET_VALID:
      return "cannot be checked, since crl.pem is out of date (or the clock is wrong): renew crl.pem";
    case X509_V_ERR_UNABLE_TO_GET_CRL:
      return "cannot be checked, since crl.pem is of another CA";
    case X509_V_ERR_INVALID_PURPOSE:
      return "is not made for TLS servers and clients: `geocomm keys` did not make it";
    default:
      return core::str("is not valid: ", X509_verify_cert_error_string(error));
  }
}

std::optional<std::string> alert_trouble(int alert) {
  switch (alert) {
    case SSL_AD_CERTIFICATE_EXPIRED:
      return "has expired: renew it with `geocomm keys renew`";
    case SSL_AD_CERTIFICATE_REVOKED:
      return "was revoked (crl.pem there)";
    case SSL_AD_UNKNOWN_CA:
      return "was signed by a CA that is unknown there: the keys of all sites must come from one "
             "`geocomm keys create`";
    case SSL_AD_BAD_CERTIFICATE:
      return "is not valid yet there, or damaged: compare the clocks of the machines";
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_ACCESS_DENIED:
      return "is not accepted there: `geocomm keys` did not make it";
    case SSL_AD_CERTIFICATE_REQUIRED:
      return "is missing";
    default:
      return std::nullopt;
  }
}

std::string take_openssl_error() {
  const unsigned long error = ERR_peek_error();
  ERR_clear_error();
  const char* reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  return reason == nullptr ? "no reason given" : reason;
}

}  // namespace geocomm::transport
