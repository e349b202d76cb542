// Keys for the tests of TLS, made when they run: a CA, and folders of keys that it signs.
#pragma once

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "transport_fixture.h"

namespace geocomm::transport::testing {

using KeyPtr = std::shared_ptr<EVP_PKEY>;
using CertificatePtr = std::shared_ptr<X509>;

// A temporary folder.
class Folder {
 public:
  Folder() {
    std::string pattern = ::testing::TempDir() + "geocomm-keys-XXXXXX";
    path_ = ::mkdtemp(pattern.data()) == nullptr ? "" : pattern;
    EXPECT_FALSE(path_.empty());
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

struct CertificatePlan {
  std::vector<std::string> uris = {"geocomm://job/a"};
  long valid_from_seconds = -3600;  // from now
  long valid_to_seconds = 3600;
};

// Writes what `write` writes to `path`, by renaming, with a new inode.
template <typename Write>
void write_file(const std::string& path, mode_t mode, Write write) {
  const std::string fresh = path + ".new";
  std::FILE* file = std::fopen(fresh.c_str(), "w");
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(write(file), 1);
  std::fclose(file);
  ASSERT_EQ(::chmod(fresh.c_str(), mode), 0);
  ASSERT_EQ(std::rename(fresh.c_str(), path.c_str()), 0);
}

inline KeyPtr new_key() {
  return {EVP_EC_gen("P-256"), &EVP_PKEY_free};
}

class Authority {
 public:
  Authority() : key_(new_key()), certificate_(X509_new(), &X509_free) {
    fill(*certificate_, *key_, "test CA", {});
    add(*certificate_, NID_basic_constraints, "critical,CA:TRUE");
    add(*certificate_, NID_key_usage, "critical,keyCertSign,cRLSign");
    EXPECT_GT(X509_sign(certificate_.get(), key_.get(), EVP_sha256()), 0);
  }

  CertificatePtr sign(EVP_PKEY& key, const CertificatePlan& plan) {
    const CertificatePtr certificate(X509_new(), &X509_free);
    fill(*certificate, key, "site", plan);
    add(*certificate, NID_ext_key_usage, "serverAuth,clientAuth");
    std::string names;
    for (const std::string& uri : plan.uris) names += (names.empty() ? "URI:" : ",URI:") + uri;
    if (!names.empty()) add(*certificate, NID_subject_alt_name, names);
    EXPECT_GT(X509_sign(certificate.get(), key_.get(), EVP_sha256()), 0);
    return certificate;
  }

  // ca.pem, cert.pem and key.pem. Returns the certificate.
  CertificatePtr write_keys(const Folder& folder, const CertificatePlan& plan = {}) {
    const KeyPtr key = new_key();
    const CertificatePtr certificate = sign(*key, plan);
    write_file(folder.file("ca.pem"), 0644,
               [&](std::FILE* file) { return PEM_write_X509(file, certificate_.get()); });
    write_file(folder.file("cert.pem"), 0644,
               [&](std::FILE* file) { return PEM_write_X509(file, certificate.get()); });
    write_file(folder.file("key.pem"), 0600, [&](std::FILE* file) {
      return PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
    return certificate;
  }
  CertificatePtr write_keys(const Folder& folder, const std::string& uri) {
    CertificatePlan plan;
    plan.uris = {uri};
    return write_keys(folder, plan);
  }

  // crl.pem, with these certificates revoked.
  void write_revocations(const Folder& folder, const std::vector<CertificatePtr>& revoked,
                         long valid_to_seconds = 3600) {
    const std::unique_ptr<X509_CRL, decltype(&X509_CRL_free)> list(X509_CRL_new(), &X509_CRL_free);
    X509_CRL_set_version(list.get(), 1);
    X509_CRL_set_issuer_name(list.get(), X509_get_subject_name(certificate_.get()));
    const std::unique_ptr<ASN1_TIME, decltype(&ASN1_TIME_free)> time(ASN1_TIME_new(), &ASN1_TIME_free);
    X509_CRL_set1_lastUpdate(list.get(), X509_gmtime_adj(time.get(), -7200));
    X509_CRL_set1_nextUpdate(list.get(), X509_gmtime_adj(time.get(), valid_to_seconds));
    for (const CertificatePtr& one : revoked) {
      X509_REVOKED* entry = X509_REVOKED_new();
      X509_REVOKED_set_serialNumber(entry, X509_get_serialNumber(one.get()));
      X509_REVOKED_set_revocationDate(entry, X509_gmtime_adj(time.get(), -60));
      X509_CRL_add0_revoked(list.get(), entry);
    }
    X509_CRL_sort(list.get());
    EXPECT_GT(X509_CRL_sign(list.get(), key_.get(), EVP_sha256()), 0);
    write_file(folder.file("crl.pem"), 0644,
               [&](std::FILE* file) { return PEM_write_X509_CRL(file, list.get()); });
  }

 private:
  void fill(X509& certificate, EVP_PKEY& key, const char* name, const CertificatePlan& plan) {
    X509_set_version(&certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(&certificate), ++serial_);
    X509_gmtime_adj(X509_getm_notBefore(&certificate), plan.valid_from_seconds);
    X509_gmtime_adj(X509_getm_notAfter(&certificate), plan.valid_to_seconds);
    X509_set_pubkey(&certificate, &key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(&certificate), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
    X509_set_issuer_name(&certificate, X509_get_subject_name(certificate_.get()));
  }
  void add(X509& certificate, int nid, const std::string& value) {
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str());
    ASSERT_NE(extension, nullptr) << value;
    X509_add_ext(&certificate, extension, -1);
    X509_EXTENSION_free(extension);
  }

  const KeyPtr key_;
  const CertificatePtr certificate_;
  long serial_ = 0;
};

inline EndpointOptions tls_options(const Folder& keys) {
  EndpointOptions options;
  options.keys = keys.path();
  options.streams = 4;
  return options;
}

// Two endpoints with keys of sites a (waits) and b (dials) of one job.
struct SecurePair {
  explicit SecurePair(EndpointOptions base = {}) {
    authority.write_keys(keys_a, "geocomm://job/a");
    authority.write_keys(keys_b, "geocomm://job/b");
    base.streams = base.streams == 0 ? 4 : base.streams;
    options = base;
    start_anew();
  }
  // With the keys that lie in the folders now.
  void start_anew() {
    EndpointOptions first = options;
    EndpointOptions second = options;
    first.keys = keys_a.path();
    second.keys = keys_b.path();
    low = make_endpoint(first);
    high = make_endpoint(second);
    // Ids are random: until the one with the keys of b has the larger.
    while (low->id() > high->id()) high = make_endpoint(second);
  }
  Status connect(const std::string& site_of_high = "b", const std::string& site_of_low = "a") {
    PeerAddress to_high = address_of(*high, "rank 1 (high)");
    PeerAddress to_low = address_of(*low, "rank 0 (low)");
    to_high.site = site_of_high;
    to_low.site = site_of_low;
    low_channel = *low->connect(to_high, token(1));
    high_channel = *high->connect(to_low, token(1));
    const Status status = high_channel->wait_ready(patience());
    return status.is_ok() ? low_channel->wait_ready(patience()) : status;
  }

  EndpointOptions options;
  Authority authority;
  Folder keys_a;
  Folder keys_b;
  std::unique_ptr<Endpoint> low;
  std::unique_ptr<Endpoint> high;
  std::shared_ptr<Channel> low_channel;
  std::shared_ptr<Channel> high_channel;
};

}  // namespace geocomm::transport::testing
