// Who answers in a peer's place, without proof, neither ends a link that resumes nor keeps one from being
// made; certificates that do not fit leave time to renew them, until the link's deadline.
#include <functional>
#include <thread>

#include "fault_proxy.h"
#include "impostor.h"
#include "logged_warnings.h"
#include "tls_fixture.h"

namespace geocomm::transport::testing {
namespace {

// Two endpoints, with keys or without; `high` dials `low` through a proxy that may lead elsewhere.
class UntrustedAnswers : public ::testing::Test {
 protected:
  void start(bool tls, EndpointOptions options = {}) {
    options.streams = 4;
    EndpointOptions first = options;
    EndpointOptions second = options;
    if (tls) {
      authority_.write_keys(keys_a_, "geocomm://job/a");
      authority_.write_keys(keys_b_, "geocomm://job/b");
      first.keys = keys_a_.path();
      second.keys = keys_b_.path();
    }
    low_ = make_endpoint(first);
    do high_ = make_endpoint(second);
    while (low_->id() > high_->id());
    proxy_ = std::make_unique<FaultProxy>(low_->port());
    PeerAddress to_low = address_of(*low_, "rank 0 (low)");
    to_low.port = proxy_->port();
    if (tls) to_low.site = "a";
    PeerAddress to_high = address_of(*high_, "rank 1 (high)");
    if (tls) to_high.site = "b";
    to_low_ = to_low;
    to_high_ = to_high;
  }
  void begin_to_connect() {
    low_channel_ = *low_->connect(to_high_, token(1));
    high_channel_ = *high_->connect(to_low_, token(1));
  }
  void expect_connected() {
    const Status status = high_channel_->wait_ready(patience());
    ASSERT_TRUE(status.is_ok()) << status.to_string();
    ASSERT_TRUE(low_channel_->wait_ready(patience()).is_ok()) << low_channel_->status().to_string();
    expect_both_ways();
  }
  void expect_both_ways() {
    expect_transfer(*high_channel_, *low_channel_, ++op_, 500'000);
    expect_transfer(*low_channel_, *high_channel_, ++op_, 500'000);
  }
  void expect_alive() {
    for (Channel* channel : {low_channel_.get(), high_channel_.get()}) {
      EXPECT_TRUE(channel->status().is_ok()) << channel->status().to_string();
    }
  }
  // Breaks the connections again and again until somebody complains in these words: the endpoints have taken
  // up the keys that lie in their folders.
  void reset_until_logged(LoggedWarnings& warnings, const std::string& words) {
    const Deadline end = patience();
    while (warnings.text().find(words) == std::string::npos && !end.expired()) {
      proxy_->reset_all();
      std::this_thread::sleep_for(50ms);
    }
    EXPECT_NE(warnings.text().find(words), std::string::npos) << warnings.text();
  }
  void TearDown() override {
    // Before the proxy, so that nobody waits for a network that is gone.
    high_.reset();
    low_.reset();
  }

  Authority authority_;
  Folder keys_a_;
  Folder keys_b_;
  std::unique_ptr<Endpoint> low_;
  std::unique_ptr<Endpoint> high_;
  std::unique_ptr<FaultProxy> proxy_;
  PeerAddress to_low_;
  PeerAddress to_high_;
  std::shared_ptr<Channel> low_channel_;
  std::shared_ptr<Channel> high_channel_;
  std::uint64_t op_ = 0;
};

class UntrustedAnswersOf : public UntrustedAnswers, public ::testing::WithParamInterface<Forgery> {};
INSTANTIATE_TEST_SUITE_P(Tls, UntrustedAnswersOf,
                         ::testing::Values(Forgery::Alert, Forgery::LetterG, Forgery::ForeignCertificate),
                         [](const auto& info) { return name_of(info.param); });
class UntrustedRefusals : public UntrustedAnswersOf {};
INSTANTIATE_TEST_SUITE_P(Plain, UntrustedRefusals, ::testing::Values(Forgery::NotYet, Forgery::WrongProcess),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(UntrustedAnswersOf, test_link_that_resumes_outlives_them) {
  start(true);
  begin_to_connect();
  expect_connected();
  {
    Impostor impostor(GetParam());
    proxy_->lead_to(impostor.port());
    proxy_->reset_all();
    EXPECT_TRUE(impostor.answered(8));
    expect_alive();
    proxy_->lead_to(low_->port());
  }
  expect_both_ways();
  EXPECT_GT(high_channel_->stats().resumes, 0U);
}

// Where there are no keys, nothing but such answers is believed after some seconds (test_link_resume.cc).
TEST_P(UntrustedRefusals, test_link_that_resumes_outlives_some) {
  start(false);
  begin_to_connect();
  expect_connected();
  {
    Impostor impostor(GetParam());
    proxy_->lead_to(impostor.port());
    proxy_->reset_all();
    EXPECT_TRUE(impostor.answered(5));
    proxy_->lead_to(low_->port());
  }
  expect_both_ways();
  EXPECT_GT(high_channel_->stats().resumes, 0U);
}

TEST_P(UntrustedAnswersOf, test_first_connection_is_made_after_them) {
  start(true);
  Impostor impostor(GetParam());
  proxy_->lead_to(impostor.port());
  begin_to_connect();
  EXPECT_TRUE(impostor.answered(2));
  proxy_->lead_to(low_->port());
  expect_connected();
}

// ---- keys that are changed while a job runs ----

TEST_F(UntrustedAnswers, test_certificate_that_ran_out_may_be_renewed_while_the_link_resumes) {
  start(true);
  begin_to_connect();
  expect_connected();
  LoggedWarnings warnings;
  CertificatePlan expired;
  expired.valid_to_seconds = -60;
  authority_.write_keys(keys_a_, expired);
  reset_until_logged(warnings, "cannot resume the link with rank 0 (low)");
  EXPECT_NE(warnings.text().find("expired on"), std::string::npos) << warnings.text();
  expect_alive();
  authority_.write_keys(keys_a_, "geocomm://job/a");
  expect_both_ways();
}

// The other way round: the acceptor says it in a Refuse that is proven.
TEST_F(UntrustedAnswers, test_certificate_of_the_dialer_may_be_renewed_as_well) {
  start(true);
  begin_to_connect();
  expect_connected();
  LoggedWarnings warnings;
  CertificatePlan expired;
  expired.uris = {"geocomm://job/b"};
  expired.valid_to_seconds = -60;
  authority_.write_keys(keys_b_, expired);
  reset_until_logged(warnings, "cannot resume the link with rank 0 (low)");
  expect_alive();
  authority_.write_keys(keys_b_, "geocomm://job/b");
  expect_both_ways();
}

TEST_F(UntrustedAnswers, test_new_ca_may_come_to_one_site_before_the_other) {
  start(true);
  begin_to_connect();
  expect_connected();
  LoggedWarnings warnings;
  Authority fresh;
  fresh.write_keys(keys_a_, "geocomm://job/a");
  reset_until_logged(warnings, "was signed by an unknown CA");
  expect_alive();
  fresh.write_keys(keys_b_, "geocomm://job/b");
  expect_both_ways();
}

TEST_F(UntrustedAnswers, test_certificate_that_stays_expired_is_named_at_the_link_deadline) {
  EndpointOptions options;
  options.link_deadline = 2s;
  start(true, options);
  begin_to_connect();
  expect_connected();
  LoggedWarnings warnings;
  CertificatePlan expired;
  expired.valid_to_seconds = -60;
  authority_.write_keys(keys_a_, expired);
  reset_until_logged(warnings, "expired on");
  const Deadline end = patience();
  while (high_channel_->status().is_ok() && !end.expired()) {
    // Of streams that are there, as some came back with the old certificate. Then none until the deadline: a
    // reset in the middle of the last handshake would be what ended the link.
    proxy_->reset_all();
    const Deadline lost = Deadline::after(2 * options.link_deadline);
    while (high_channel_->status().is_ok() && !lost.expired()) std::this_thread::sleep_for(50ms);
  }
  const Status status = high_channel_->status();
  EXPECT_EQ(status.code(), StatusCode::PeerLost) << status.to_string();
  EXPECT_NE(status.message().find("link_deadline"), std::string::npos) << status.to_string();
  EXPECT_NE(status.message().find("expired on"), std::string::npos) << status.to_string();
}

}  // namespace
}  // namespace geocomm::transport::testing
