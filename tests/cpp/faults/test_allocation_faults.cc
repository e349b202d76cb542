// Every allocation fails once in turn, over the codecs and over an exchange of two endpoints in one process.
// Codecs turn it into an error. An exchange ends with an error, or ends the process in words, where others
// would otherwise wait for ever: never in silence, and never by a bad access (AddressSanitizer looks on).
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../collective/exchange_fixture.h"
#include "../sanitizers.h"
#include "codec/payload/payload.h"
#include "failing_heap.h"

namespace geocomm::faults {
namespace {

using collective::OpContext;
using collective::OpKind;
using collective::ReduceOp;
using collective::testing::Bytes;
using core::Deadline;
using core::DType;
using core::Status;
using core::StatusCode;
using namespace std::chrono_literals;

constexpr std::int64_t kStride = kUnderAsan || kUnderTsan ? 11 : 1;  // to fork takes ten times as long there

Outcome outcome_of(const Status& status) {
  return status.is_ok() ? Outcome::Right : Outcome::Error;
}

// A payload of several frames, shared out over a pool, there and back.
Outcome there_and_back(const codec::CodecSpec& spec, std::int64_t before) {
  constexpr std::size_t kElements = codec::kPayloadFrameBytes / sizeof(float) * 5 / 2;
  const Bytes input = collective::testing::random_elements(DType::Float32, kElements, 1);
  Bytes output(input.size());
  Bytes payload(codec::payload_bound(spec, DType::Float32, kElements));
  core::ThreadPool pool(2, "codec");
  fail_after(before);
  const auto size = codec::compress_payload(spec, DType::Float32, input, payload, {}, &pool);
  if (!size.is_ok()) return Outcome::Error;
  return outcome_of(codec::decompress_payload(std::span(payload).first(*size), output, &pool));
}

class CodecAllocations : public ::testing::TestWithParam<const char*> {};

TEST_P(CodecAllocations, test_each_that_fails_is_an_error_of_the_call) {
  const codec::CodecSpec spec = collective::testing::spec_of(GetParam());
  EXPECT_GT(try_each([&](std::int64_t before) { return there_and_back(spec, before); }, false, 1), 5);
}

INSTANTIATE_TEST_SUITE_P(Faults, CodecAllocations,
                         ::testing::Values("none", "int8", "topk", "lossless", "deadzone"),
                         [](const auto& param) { return std::string(param.param); });

// What the fixture makes before memory fails: its own mistakes are not what is looked for.
class TwoSites {
 public:
  TwoSites() {
    core::set_log_level(core::LogLevel::Off);
    token_.fill(9);
    policy_ = collective::testing::policy_of(
        collective::testing::spec_of("int8"),
        collective::testing::links_for(collective::testing::Way::EqualOwners, 2), 100'000);
  }

  // Its steps as each rank takes them; the first error ends it for both.
  Status run() {
    std::vector<collective::Topology> topologies = collective::testing::topologies_of({1, 1}, true);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      Site& site = sites_[rank];
      transport::EndpointOptions options;
      options.streams = 2;
      GEOCOMM_ASSIGN_OR_RETURN(site.endpoint, transport::Endpoint::create(options));
      site.endpoint->allow(token_);
      site.pool = std::make_unique<core::ThreadPool>(2, "codec");
      if (site.pool->thread_count() == 0) return {StatusCode::Internal, "a pool without threads"};
      GEOCOMM_ASSIGN_OR_RETURN(site.exchange, collective::Exchange::create(
                                                  {.group = collective::testing::kGroup,
                                                   .topology = topologies[rank],
                                                   .channel_to = [this, rank](int) { return channel(rank); },
                                                   .policy = policy_,
                                                   .chunk_bytes = 64 * 1024,
                                                   .pool = site.pool.get(),
                                                   .buffers = &site.buffers}));
    }
    go_ = 1;
    go_.notify_all();
    const Status own = operations(0);
    other_done_.wait(false);
    return own.is_ok() ? other_ : own;
  }

  // The thread of rank 1.
  void wait_and_run() {
    go_.wait(0);
    if (go_ == 1) other_ = core::without_throwing([&] { return operations(1); });
    other_done_ = true;
    other_done_.notify_all();
  }
  void dismiss() {
    if (go_ == 0) go_ = 2;
    go_.notify_all();
  }

  bool is_right() const {
    for (const auto& floats : exact_) {
      for (const float value : floats) {
        if (value != 3) return false;
      }
    }
    return moved_[0] == sent_of(1) && moved_[1] == sent_of(0);
  }

  Status end() {
    for (Site& site : sites_) {
      if (site.endpoint) site.endpoint->abort({StatusCode::Aborted, "over"});
    }
    for (Site& site : sites_) site.exchange.reset();
    for (Site& site : sites_) site.pool.reset();
    for (Site& site : sites_) site.endpoint.reset();
    return Status::ok();
  }

 private:
  struct Site {
    std::unique_ptr<transport::Endpoint> endpoint;
    core::BufferPool buffers;
    std::unique_ptr<core::ThreadPool> pool;
    std::unique_ptr<collective::Exchange> exchange;
  };

  static constexpr std::size_t kFew = 1000;
  static constexpr std::size_t kMany = 100'000;

  static Bytes sent_of(std::size_t rank) { return Bytes(150'000, static_cast<std::byte>(rank + 1)); }

  core::Result<std::shared_ptr<transport::Channel>> channel(std::size_t from) {
    const Site& peer = sites_[1 - from];
    return sites_[from].endpoint->connect({peer.endpoint->id(), "127.0.0.1", peer.endpoint->port(), "peer"},
                                          token_);
  }

  // As the binding does: what one rank fails of ends the other's operations, too.
  Status operations(std::size_t rank) {
    const Status status = core::without_throwing([&] { return all_of(rank); });
    if (!status.is_ok()) {
      for (Site& site : sites_) {
        if (site.exchange) site.exchange->abort({StatusCode::Aborted, "the other rank has failed"});
      }
    }
    return status;
  }

  Status all_of(std::size_t rank) {
    collective::Exchange& exchange = *sites_[rank].exchange;
    const auto reduce = [&](std::uint64_t seq, std::vector<float>& floats) {
      std::vector<collective::StripeData> stripes;
      for (const auto& stripe : collective::stripes_of(exchange.topology(), floats.size())) {
        stripes.push_back({stripe, {true, true}, std::as_writable_bytes(std::span(floats))});
      }
      return exchange.reduce(context(OpKind::AllReduce, seq, floats.size()), ReduceOp::Sum, stripes);
    };
    exact_[rank].assign(kFew, static_cast<float>(rank + 1));
    GEOCOMM_RETURN_IF_ERROR(reduce(1, exact_[rank]));
    coded_[rank].assign(kMany, static_cast<float>(rank + 1));
    GEOCOMM_RETURN_IF_ERROR(reduce(2, coded_[rank]));
    const Bytes sent = sent_of(rank);
    moved_[rank].resize(sent.size());
    const collective::SendPiece send{static_cast<int>(1 - rank), sent};
    const collective::ReceivePiece receive{static_cast<int>(1 - rank), moved_[rank]};
    return exchange.move(context(OpKind::SendRecv, 3, 0), std::span(&send, 1), std::span(&receive, 1));
  }

  static OpContext context(OpKind kind, std::uint64_t seq, std::uint64_t elements) {
    return collective::testing::context_of(kind, seq, DType::Float32, elements, Deadline::after(20s));
  }

  transport::JobToken token_{};
  std::shared_ptr<const collective::WanPolicy> policy_;
  std::array<Site, 2> sites_;
  std::array<std::vector<float>, 2> exact_;
  std::array<std::vector<float>, 2> coded_;
  std::array<Bytes, 2> moved_;
  Status other_;
  std::atomic<int> go_{0};  // 1: the other rank's turn has come, 2: there is none
  std::atomic<bool> other_done_{false};
};

Outcome exchange(std::int64_t before) {
  TwoSites sites;
  std::thread other([&] { sites.wait_and_run(); });
  fail_after(before);
  const Status status = core::without_throwing([&] { return sites.run(); });
  sites.dismiss();
  other.join();
  const Status ended = core::without_throwing([&] { return sites.end(); });
  const bool reached = stop_failing();
  if (status.is_ok() && !sites.is_right()) return Outcome::Wrong;
  if (!reached) fail_after(std::numeric_limits<std::int64_t>::max());  // so that it is known
  return outcome_of(status.is_ok() ? ended : status);
}

TEST(ExchangeAllocations, test_each_that_fails_is_an_error_or_ends_the_process_in_words) {
  EXPECT_GT(try_each(exchange, true, kStride), 300 / kStride);
}

// A channel that is half made, or half forgotten, would keep its operations waiting for ever.
Outcome connect_and_forget(std::int64_t before) {
  core::set_log_level(core::LogLevel::Off);
  const auto here = transport::Endpoint::create({});
  const auto there = transport::Endpoint::create({});
  if (!here.is_ok() || !there.is_ok()) return Outcome::Wrong;
  const transport::PeerAddress peer{(*there)->id(), "127.0.0.1", (*there)->port(),
                                    "a peer whose description takes memory"};
  fail_after(before);
  std::shared_ptr<transport::Channel> channel;
  const Status connected = core::without_throwing([&]() -> Status {
    GEOCOMM_ASSIGN_OR_RETURN(channel, (*here)->connect(peer, {}));
    return Status::ok();
  });
  if (!connected.is_ok()) return (*here)->channels().empty() ? Outcome::Error : Outcome::Wrong;
  const Status forgotten = core::without_throwing([&] {
    (*here)->forget(peer.id, {StatusCode::Aborted, "the peer was let go of"});
    return Status::ok();
  });
  if (!forgotten.is_ok()) return (*here)->channels().size() == 1 ? Outcome::Error : Outcome::Wrong;
  const Status status = core::without_throwing([&] { return channel->wait_ready(Deadline::after(20s)); });
  if (status.code() == StatusCode::Timeout) return Outcome::Wrong;
  return status.code() == StatusCode::Aborted ? Outcome::Right : Outcome::Error;
}

TEST(EndpointAllocations, test_each_that_fails_leaves_no_channel_that_nobody_connects_or_ends) {
  EXPECT_GT(try_each(connect_and_forget, true, 1), 10);
}

}  // namespace
}  // namespace geocomm::faults
