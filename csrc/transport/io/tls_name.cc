#include "transport/io/tls_name.h"

#include <openssl/x509v3.h>

#include <memory>

#include "core/str.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

namespace {

constexpr std::string_view kScheme = "geocomm://";
constexpr char kDigits[] = "0123456789ABCDEF";

bool is_plain(char c) {
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  return letter || std::string_view("-._~").find(c) != std::string_view::npos;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

std::optional<std::string> decode(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (is_plain(text[i])) {
      out += text[i];
      continue;
    }
    if (text[i] != '%' || text.size() - i < 3) return std::nullopt;
    const int high = hex_digit(text[i + 1]);
    const int low = hex_digit(text[i + 2]);
    if (high < 0 || low < 0 || (high == 0 && low == 0)) return std::nullopt;
    out += static_cast<char>(16 * high + low);
    i += 2;
  }
  if (out.empty()) return std::nullopt;
  return out;
}

std::string encode(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (is_plain(c)) {
      out += c;
    } else {
      out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return out;
}

}  // namespace

std::optional<TlsName> TlsName::parse(std::string_view uri) {
  if (!uri.starts_with(kScheme)) return std::nullopt;
  uri.remove_prefix(kScheme.size());
  const std::size_t slash = uri.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const auto job = decode(uri.substr(0, slash));
  const auto site = decode(uri.substr(slash + 1));
  if (!job || !site) return std::nullopt;
  return TlsName{*job, *site};
}

std::string TlsName::uri() const {
  return core::str(kScheme, encode(job), "/", encode(site));
}

Result<TlsName> TlsName::of(const X509& certificate) {
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)),
      &GENERAL_NAMES_free);
  std::optional<TlsName> found;
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* text = name->d.uniformResourceIdentifier;
    const std::string_view uri(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                               static_cast<std::size_t>(ASN1_STRING_length(text)));
    if (!uri.starts_with(kScheme)) continue;
    if (found) return Status(StatusCode::Authentication, "names more than one geocomm://job/site");
    found = parse(uri);
    if (!found) return Status(StatusCode::Authentication, "has a geocomm URI that is not geocomm://job/site");
  }
  if (!found) {
    return Status(StatusCode::Authentication, "names no geocomm://job/site: `geocomm keys` did not make it");
  }
  return *found;
}

}  // namespace geocomm::transport
