// A group of ranks in this process, each with an endpoint of its own, over real sockets on 127.0.0.1.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collective/run/exchange.h"
#include "core/log.h"
#include "core/str.h"
#include "element_values.h"
#include "link_shapes.h"
#include "topology_shapes.h"
#include "transport/endpoint.h"

namespace geocomm::collective::testing {

using core::Deadline;
using core::Status;
using core::StatusCode;
using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

inline constexpr std::uint64_t kGroup = 0xC0FFEE;

inline codec::CodecSpec spec_of(std::string_view text) {
  auto spec = codec::CodecSpec::parse(text);
  EXPECT_TRUE(spec.is_ok()) << spec.status().to_string();
  return *spec;
}

// Every reduction of at least `from_bytes` takes `codec`, over such links between the sites.
inline std::shared_ptr<const WanPolicy> policy_of(const codec::CodecSpec& codec, LinkMatrix links,
                                                  std::uint64_t from_bytes = 0) {
  auto policy = WanPolicy::create(std::move(links), {{from_bytes, codec}});
  EXPECT_TRUE(policy.is_ok()) << policy.status().to_string();
  return *policy;
}

struct RankParts {
  Topology topology;
  std::unique_ptr<transport::Endpoint> endpoint;
  std::unique_ptr<core::BufferPool> buffers;
  std::unique_ptr<core::ThreadPool> pool;
  std::unique_ptr<Exchange> exchange;
};

inline std::string rank_name(const Topology& topology, int rank) {
  return core::str("rank ", rank, " (site ", topology.site_name(topology.site_of(rank)), ")");
}

class ExchangeGroup {
 public:
  using Tune = std::function<void(int rank, ExchangeConfig&)>;

  // `tune` may change each rank's settings.
  explicit ExchangeGroup(const std::vector<int>& site_sizes, const Tune& tune = nullptr, int threads = 2) {
    core::set_log_level(core::LogLevel::Off);
    token_.fill(9);
    for (Topology& topology : topologies_of(site_sizes, true)) {
      transport::EndpointOptions options;
      options.streams = 2;
      auto endpoint = transport::Endpoint::create(options);
      EXPECT_TRUE(endpoint.is_ok()) << endpoint.status().to_string();
      (*endpoint)->allow(token_);
      ranks_.push_back({std::move(topology), std::move(endpoint).value(),
                        std::make_unique<core::BufferPool>(),
                        std::make_unique<core::ThreadPool>(threads, "codec"), nullptr});
    }
    for (int rank = 0; rank < size(); ++rank) {
      ExchangeConfig config{.group = kGroup,
                            .topology = at(rank).topology,
                            .channel_to = [this, rank](int peer) { return channel(rank, peer); },
                            .pool = at(rank).pool.get(),
                            .buffers = at(rank).buffers.get()};
      if (tune) tune(rank, config);
      auto exchange = Exchange::create(std::move(config));
      EXPECT_TRUE(exchange.is_ok()) << exchange.status().to_string();
      at(rank).exchange = std::move(exchange).value();
    }
  }

  // Threads of pools, then endpoints, then what they use.
  ~ExchangeGroup() {
    for (RankParts& rank : ranks_) rank.endpoint->abort(Status(StatusCode::Aborted, "the test is over"));
    for (RankParts& rank : ranks_) rank.exchange.reset();
    for (RankParts& rank : ranks_) rank.pool.reset();
    for (RankParts& rank : ranks_) rank.endpoint.reset();
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  RankParts& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  Exchange& exchange(int rank) { return *at(rank).exchange; }
  const Topology& topology(int rank) { return at(rank).topology; }

  core::Result<std::shared_ptr<transport::Channel>> channel(int from, int to) {
    const RankParts& peer = at(to);
    return at(from).endpoint->connect(
        {peer.endpoint->id(), "127.0.0.1", peer.endpoint->port(), rank_name(peer.topology, to)}, token_);
  }

  // Runs `call` for all ranks at once, each on its own thread.
  std::vector<Status> run(const std::function<Status(int rank)>& call) {
    std::vector<Status> results(ranks_.size());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) {
      threads.emplace_back([&, rank] { results[static_cast<std::size_t>(rank)] = call(rank); });
    }
    for (auto& thread : threads) thread.join();
    return results;
  }

 private:
  transport::JobToken token_{};
  std::vector<RankParts> ranks_;
};

inline void expect_all_ok(const std::vector<Status>& results) {
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_TRUE(results[rank].is_ok()) << "rank " << rank << ": " << results[rank].to_string();
  }
}

inline OpContext context_of(OpKind kind, std::uint64_t seq, DType dtype, std::uint64_t elements,
                            Deadline deadline = Deadline::after(60s)) {
  return {
      .kind = kind, .seq = seq, .elements = elements, .dtype = dtype, .deadline = deadline, .keep_alive = {}};
}

// One reduction over a group: every site's partial vector, and each rank's piece of it, as an inner
// reduce-scatter would leave it.
class SiteVectors {
 public:
  SiteVectors(const Topology& topology, DType dtype, std::size_t elements, std::uint64_t seed)
      : topology_(topology), dtype_(dtype), elements_(elements) {
    for (int site = 0; site < topology.site_count(); ++site) {
      inputs_.push_back(random_elements(dtype, elements, seed * 100 + static_cast<std::uint64_t>(site)));
    }
    outputs_ = inputs_;
  }

  // The stripes of `rank`, over the outputs (in place). `receives` as in StripeData.
  std::vector<StripeData> stripes(int rank, const std::vector<bool>& receives) {
    std::vector<StripeData> mine;
    const auto site = static_cast<std::size_t>(topology_.site_of(rank));
    const std::size_t size = core::size_of(dtype_);
    for (const Stripe& stripe : stripes_of(topology_, elements_)) {
      if (stripe.rank_of_site[site] != rank) continue;
      mine.push_back(
          {stripe, receives,
           std::span(outputs_[site]).subspan(stripe.range.begin * size, stripe.range.size() * size)});
    }
    return mine;
  }
  std::vector<StripeData> stripes(int rank) { return stripes(rank, std::vector<bool>(inputs_.size(), true)); }

  std::vector<Bytes>& inputs() { return inputs_; }
  std::vector<Bytes>& outputs() { return outputs_; }
  std::size_t elements() const { return elements_; }
  // To change inputs before the reduction.
  void reset_outputs() { outputs_ = inputs_; }

 private:
  Topology topology_;
  DType dtype_;
  std::size_t elements_;
  std::vector<Bytes> inputs_;
  std::vector<Bytes> outputs_;
};

// What a rank reduces of a reduce-scatter: of four bytes an element, in the order of the layout's blocks.
inline std::vector<StripeData> scatter_stripes(const Topology& topology, const ReduceScatterLayout& layout,
                                               Bytes& block) {
  std::vector<StripeData> stripes;
  for (std::size_t i = 0; i < layout.stripes.size(); ++i) {
    std::vector<bool> receives(static_cast<std::size_t>(topology.site_count()), false);
    receives[static_cast<std::size_t>(topology.site_of(layout.receiver[i]))] = true;
    stripes.push_back({layout.stripes[i], receives,
                       std::span(block).subspan(layout.offset[i] * 4, layout.stripes[i].range.size() * 4)});
  }
  return stripes;
}

// Of so many bytes each, whatever the codec.
inline FrameOptions groups_of(std::size_t bytes, bool places_on_arrival = true) {
  return {[bytes](const codec::CodecSpec&) { return bytes; }, places_on_arrival};
}

}  // namespace geocomm::collective::testing
