// Who is let in over TLS, and what both sides say when somebody is not.
#include <thread>

#include "logged_warnings.h"
#include "tls_fixture.h"

namespace geocomm::transport::testing {
namespace {

// What proves nothing is believed after some seconds, or at this deadline.
EndpointOptions soon() {
  EndpointOptions options;
  options.link_deadline = 2s;
  return options;
}

// The dialer `high` is not let in, or does not trust `low`; both must say why, in words of their own.
void expect_refused(SecurePair& pair, const std::string& dialer_says, const std::string& acceptor_says,
                    const std::string& site_of_high = "b", const std::string& site_of_low = "a") {
  LoggedWarnings warnings;
  PeerAddress to_low = address_of(*pair.low, "rank 0 (low)");
  to_low.site = site_of_low;
  PeerAddress to_high = address_of(*pair.high, "rank 1 (high)");
  to_high.site = site_of_high;
  pair.low_channel = *pair.low->connect(to_high, token(1));
  pair.high_channel = *pair.high->connect(to_low, token(1));
  const Status status = pair.high_channel->wait_ready(patience());
  EXPECT_EQ(status.code(), StatusCode::Authentication) << status.to_string();
  EXPECT_NE(status.message().find(dialer_says), std::string::npos) << status.to_string();
  EXPECT_EQ(status.peer(), "rank 0 (low)");
  EXPECT_TRUE(warnings.has(acceptor_says)) << warnings.text();
}

CertificatePlan plan_of(const std::string& uri) {
  CertificatePlan plan;
  plan.uris = {uri};
  return plan;
}

CertificatePlan expired(const std::string& uri) {
  CertificatePlan plan = plan_of(uri);
  plan.valid_to_seconds = -60;
  return plan;
}

CertificatePlan not_yet_valid(const std::string& uri) {
  CertificatePlan plan = plan_of(uri);
  plan.valid_from_seconds = 600;
  return plan;
}

TEST(TlsPeers, test_dialer_with_expired_certificate_is_told) {
  SecurePair pair;
  pair.authority.write_keys(pair.keys_b, expired("geocomm://job/b"));
  pair.start_anew();
  expect_refused(pair, "refused by the peer: the certificate (geocomm://job/b) of ", "expired on");
  EXPECT_NE(pair.high_channel->status().message().find("expired on"), std::string::npos);
}

TEST(TlsPeers, test_acceptor_with_expired_certificate_is_told) {
  SecurePair pair(soon());
  pair.authority.write_keys(pair.keys_a, expired("geocomm://job/a"));
  pair.start_anew();
  expect_refused(pair, "expired on", "the certificate of this side (geocomm://job/a) has expired");
}

TEST(TlsPeers, test_dialer_with_certificate_of_the_future_is_told) {
  SecurePair pair;
  pair.authority.write_keys(pair.keys_b, not_yet_valid("geocomm://job/b"));
  pair.start_anew();
  expect_refused(pair, "is not valid before", "is not valid before");
}

TEST(TlsPeers, test_acceptor_with_certificate_of_the_future_is_told) {
  SecurePair pair(soon());
  pair.authority.write_keys(pair.keys_a, not_yet_valid("geocomm://job/a"));
  pair.start_anew();
  expect_refused(pair, "is not valid before", "is not valid yet there");
}

TEST(TlsPeers, test_dialer_with_revoked_certificate_is_told) {
  SecurePair pair;
  const auto certificate = pair.authority.write_keys(pair.keys_b, "geocomm://job/b");
  pair.authority.write_revocations(pair.keys_a, {certificate});
  pair.start_anew();
  expect_refused(pair, "was revoked", "was revoked (crl.pem)");
}

TEST(TlsPeers, test_acceptor_with_revoked_certificate_is_told) {
  SecurePair pair(soon());
  const auto certificate = pair.authority.write_keys(pair.keys_a, "geocomm://job/a");
  pair.authority.write_revocations(pair.keys_b, {certificate});
  pair.start_anew();
  expect_refused(pair, "was revoked (crl.pem)", "was revoked (crl.pem there)");
}

TEST(TlsPeers, test_revocation_list_out_of_date_is_named) {
  SecurePair pair(soon());
  pair.authority.write_revocations(pair.keys_a, {}, -60);
  pair.start_anew();
  expect_refused(pair, "crl.pem is out of date", "crl.pem is out of date");
}

TEST(TlsPeers, test_revocation_list_without_the_peer_lets_it_in) {
  SecurePair pair;
  const auto other = pair.authority.write_keys(pair.keys_b, "geocomm://job/b");
  pair.authority.write_keys(pair.keys_b, "geocomm://job/b");
  pair.authority.write_revocations(pair.keys_a, {other});
  pair.start_anew();
  EXPECT_TRUE(pair.connect().is_ok()) << pair.high_channel->status().to_string();
}

// Also of one with the same name, which only the signature tells apart.
TEST(TlsPeers, test_certificate_of_another_ca_is_told) {
  SecurePair pair(soon());
  Authority other;
  other.write_keys(pair.keys_b, "geocomm://job/b");
  pair.start_anew();
  expect_refused(pair, "was signed by", "was signed by");
}

// spec channel 2.1: "JOB MUST be one's own job."
TEST(TlsPeers, test_other_job_of_the_same_ca_is_told) {
  SecurePair pair;
  Folder keys;
  pair.authority.write_keys(keys, "geocomm://other/b");
  EndpointOptions options = soon();
  options.keys = keys.path();
  pair.high.reset();
  do pair.high = make_endpoint(options);
  while (pair.low->id() > pair.high->id());
  expect_refused(pair, "is of another job", "is of another job");
}

TEST(TlsPeers, test_acceptor_with_the_certificate_of_another_site_is_told) {
  SecurePair pair(soon());
  expect_refused(pair, "a process of site 'c' presents the certificate of another site (geocomm://job/a)",
                 "a process of site 'c' presents the certificate of another site (geocomm://job/a)", "b",
                 "c");
}

TEST(TlsPeers, test_dialer_with_the_certificate_of_another_site_is_told) {
  SecurePair pair;
  expect_refused(pair, "a process of site 'c' presents the certificate of another site (geocomm://job/b)",
                 "a process of site 'c' presents the certificate of another site (geocomm://job/b)", "c",
                 "a");
}

TEST(TlsPeers, test_dialer_of_another_site_before_it_was_known_fails_the_channel) {
  SecurePair pair;
  PeerAddress to_low = address_of(*pair.low, "rank 0 (low)");
  PeerAddress to_high = address_of(*pair.high, "rank 1 (high)");
  to_high.site = "c";
  pair.low->allow(token(1));
  pair.high_channel = *pair.high->connect(to_low, token(1));
  ASSERT_TRUE(pair.high_channel->wait_ready(patience()).is_ok());
  pair.low_channel = *pair.low->connect(to_high, token(1));
  const Status status = pair.high_channel->wait_ready(patience());
  const Deadline end = patience();
  while (pair.low_channel->status().is_ok() && !end.expired()) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(pair.low_channel->status().code(), StatusCode::Authentication);
}

// An endpoint without keys that dials (or is dialed by) one with keys.
struct MixedPair {
  explicit MixedPair(bool secure_dials) {
    authority.write_keys(keys, "geocomm://job/a");
    const EndpointOptions plain = soon();
    EndpointOptions secure = plain;
    secure.keys = keys.path();
    low = make_endpoint(secure_dials ? plain : secure);
    do high = make_endpoint(secure_dials ? secure : plain);
    while (low->id() > high->id());
  }
  Authority authority;
  Folder keys;
  std::unique_ptr<Endpoint> low;
  std::unique_ptr<Endpoint> high;
};

TEST(TlsPeers, test_plaintext_dialer_of_a_tls_acceptor_is_told) {
  MixedPair pair(false);
  LoggedWarnings warnings;
  pair.low->allow(token(1));
  const auto channel = *pair.high->connect(address_of(*pair.low, "low"), token(1));
  const Status status = channel->wait_ready(patience());
  EXPECT_EQ(status.code(), StatusCode::Authentication);
  EXPECT_NE(status.message().find("it speaks plaintext, while this side has keys"), std::string::npos)
      << status.to_string();
  EXPECT_TRUE(warnings.has("it speaks plaintext")) << warnings.text();
}

TEST(TlsPeers, test_tls_dialer_of_a_plaintext_acceptor_is_told) {
  MixedPair pair(true);
  LoggedWarnings warnings;
  pair.low->allow(token(1));
  const auto channel = *pair.high->connect(address_of(*pair.low, "low"), token(1));
  const Status status = channel->wait_ready(patience());
  EXPECT_EQ(status.code(), StatusCode::Authentication);
  EXPECT_NE(status.message().find("it answers in plaintext, while this side has keys"), std::string::npos)
      << status.to_string();
  EXPECT_TRUE(warnings.has("it speaks TLS, while this side has no keys")) << warnings.text();
}

// ---- the keys of this side ----

Status create_with(const Folder& keys, const std::string& site = "", Security security = Security::Required) {
  EndpointOptions options = tls_options(keys);
  options.site = site;
  options.security = security;
  return Endpoint::create(options).status();
}

TEST(TlsKeysFolder, test_private_key_that_others_may_read_is_refused) {
  Authority authority;
  Folder keys;
  authority.write_keys(keys);
  for (const mode_t mode : {0640, 0604, 0660}) {
    ASSERT_EQ(::chmod(keys.file("key.pem").c_str(), mode), 0);
    EXPECT_EQ(create_with(keys).code(), StatusCode::InvalidArgument) << mode;
  }
  ASSERT_EQ(::chmod(keys.file("key.pem").c_str(), 0400), 0);
  EXPECT_TRUE(create_with(keys).is_ok());
}

TEST(TlsKeysFolder, test_missing_and_damaged_files_are_refused_by_name) {
  for (const char* name : {"ca.pem", "cert.pem", "key.pem"}) {
    Authority authority;
    Folder keys;
    authority.write_keys(keys);
    write_file(keys.file(name), 0600, [](std::FILE* file) { return std::fputs("nonsense\n", file) >= 0; });
    const Status damaged = create_with(keys);
    EXPECT_EQ(damaged.code(), StatusCode::InvalidArgument);
    EXPECT_NE(damaged.message().find(name), std::string::npos) << damaged.message();
    std::filesystem::remove(keys.file(name));
    const Status missing = create_with(keys);
    EXPECT_EQ(missing.code(), StatusCode::InvalidArgument);
    EXPECT_NE(missing.message().find(name), std::string::npos) << missing.message();
  }
}

TEST(TlsKeysFolder, test_key_of_another_certificate_is_refused) {
  Authority authority;
  Folder keys;
  Folder other;
  authority.write_keys(keys);
  authority.write_keys(other);
  std::filesystem::copy_file(other.file("key.pem"), keys.file("key.pem"),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(create_with(keys).code(), StatusCode::InvalidArgument);
}

TEST(TlsKeysFolder, test_certificate_without_one_good_name_is_refused) {
  const std::vector<std::vector<std::string>> bad = {{},
                                                     {"https://example.org/"},
                                                     {"geocomm://job"},
                                                     {"geocomm://job/a/0"},
                                                     {"geocomm:///a"},
                                                     {"geocomm://job/a", "geocomm://job/b"}};
  for (const auto& uris : bad) {
    Authority authority;
    Folder keys;
    CertificatePlan plan;
    plan.uris = uris;
    authority.write_keys(keys, plan);
    EXPECT_EQ(create_with(keys).code(), StatusCode::InvalidArgument) << (uris.empty() ? "none" : uris[0]);
  }
}

TEST(TlsKeysFolder, test_keys_of_another_site_and_insecure_with_keys_are_refused) {
  Authority authority;
  Folder keys;
  authority.write_keys(keys, "geocomm://job/M%C3%BCnchen%20Nord");
  EXPECT_TRUE(create_with(keys, "München Nord").is_ok());
  EXPECT_EQ(create_with(keys, "a").code(), StatusCode::InvalidArgument);
  EXPECT_EQ(create_with(keys, "", Security::Insecure).code(), StatusCode::InvalidArgument);
}

TEST(TlsKeysFolder, test_required_without_keys_names_the_remedy) {
  const auto endpoint = make_endpoint();
  const auto channel = endpoint->connect({ProcessId{}, "192.0.2.1", 4000, "far"}, token(1));
  EXPECT_EQ(channel.status().code(), StatusCode::Authentication);
  EXPECT_NE(channel.status().message().find("geocomm keys"), std::string::npos);
  EXPECT_NE(channel.status().message().find("GEOCOMM_KEYS"), std::string::npos);
}

}  // namespace
}  // namespace geocomm::transport::testing
