// Reductions and moves whose frames go over a third site: the same bits, counted, and the relay is to blame
// when it is gone.
#include <gtest/gtest.h>

#include "exchange_fixture.h"

namespace geocomm::collective {
namespace {

using namespace testing;

constexpr std::size_t kRelayElements = 20'000;

ExchangeGroup::Tune tune_to(Way way, std::string_view codec = "none") {
  return [=](int, ExchangeConfig& config) {
    const auto sites = static_cast<std::size_t>(config.topology.site_count());
    config.policy = policy_of(spec_of(codec), links_for(way, sites));
    config.chunk_bytes = 2048;
  };
}

Status reduce_on(ExchangeGroup& group, int rank, std::uint64_t seq, SiteVectors& data,
                 const std::vector<bool>& receives) {
  auto stripes = data.stripes(rank, receives);
  return group.exchange(rank).reduce(context_of(OpKind::AllReduce, seq, DType::Float32, kRelayElements),
                                     ReduceOp::Sum, stripes);
}

std::vector<Bytes> reduced(ExchangeGroup& group, const std::vector<bool>& receives) {
  SiteVectors data(group.topology(0), DType::Float32, kRelayElements, 3);
  expect_all_ok(group.run([&](int rank) { return reduce_on(group, rank, 1, data, receives); }));
  return data.outputs();
}

TEST(ExchangeRelay, a_relay_changes_no_bit_with_any_codec) {
  for (const std::string_view codec : {"none", "lossless", "int8", "int4", "balanced"}) {
    for (const auto& sizes : {std::vector<int>{1, 1, 1}, std::vector<int>{2, 1, 3, 1}}) {
      const std::vector<bool> all(sizes.size(), true);
      ExchangeGroup straight(sizes, tune_to(Way::BroadcastAll, codec));
      ExchangeGroup relayed(sizes, tune_to(Way::RelayedBroadcast, codec));
      const auto outputs = reduced(relayed, all);
      EXPECT_EQ(outputs, reduced(straight, all)) << codec;
      for (const Bytes& output : outputs) EXPECT_EQ(output, outputs[0]) << codec;
      EXPECT_EQ(straight.exchange(1).stats().relayed_bytes, 0u);
    }
  }
}

TEST(ExchangeRelay, owners_that_meet_over_a_relay_sum_exactly_in_site_order) {
  const std::vector<int> sizes = {1, 2, 1, 1};
  ExchangeGroup straight(sizes, tune_to(Way::BroadcastAll));
  ExchangeGroup relayed(sizes, tune_to(Way::RelayedOwners));
  EXPECT_EQ(reduced(relayed, {true, true, true, true}), reduced(straight, {true, true, true, true}));
  EXPECT_GT(relayed.exchange(1).stats().relayed_bytes, 0u);
}

TEST(ExchangeRelay, the_relay_alone_counts_what_it_passes_on) {
  ExchangeGroup group({1, 1, 1}, tune_to(Way::RelayedBroadcast));
  reduced(group, {true, true, true});
  const ExchangeStats relay = group.exchange(1).stats();
  // Its own frames to both, and one of each for the other.
  EXPECT_GT(relay.relayed_bytes, 2 * kRelayElements * 4);
  EXPECT_EQ(relay.wire_bytes_sent, 2 * relay.relayed_bytes);
  EXPECT_EQ(relay.raw_bytes_sent, 4 * kRelayElements * 4);
  for (const int rank : {0, 2}) {
    const ExchangeStats stats = group.exchange(rank).stats();
    EXPECT_EQ(stats.relayed_bytes, 0u);
    EXPECT_EQ(stats.raw_bytes_sent, kRelayElements * 4);
    EXPECT_EQ(stats.raw_bytes_received, 2 * kRelayElements * 4);
  }
}

TEST(ExchangeRelay, what_one_site_alone_wants_is_relayed_to_it) {
  ExchangeGroup group({1, 1, 1, 1}, tune_to(Way::RelayedBroadcast));
  ExchangeGroup straight({1, 1, 1, 1}, tune_to(Way::BroadcastAll));
  EXPECT_EQ(reduced(group, {true, false, false, false}), reduced(straight, {true, false, false, false}));
  EXPECT_GT(group.exchange(1).stats().relayed_bytes, 2 * kRelayElements * 4);
}

TEST(ExchangeRelay, a_killed_relay_is_the_lost_peer_of_those_that_meet_over_it) {
  ExchangeGroup group({1, 1, 1}, tune_to(Way::RelayedBroadcast));
  reduced(group, {true, true, true});
  SiteVectors data(group.topology(0), DType::Float32, kRelayElements, 4);
  const auto results = group.run([&](int rank) {
    if (rank == 1) {
      group.at(1).endpoint->abort(Status(StatusCode::Aborted, "killed"));
      return Status::ok();
    }
    return reduce_on(group, rank, 2, data, {true, true, true});
  });
  for (const int rank : {0, 2}) {
    const Status& status = results[static_cast<std::size_t>(rank)];
    EXPECT_EQ(status.code(), StatusCode::PeerLost) << status.to_string();
    EXPECT_EQ(status.peer(), rank_name(group.topology(0), 1)) << status.to_string();
  }
}

// Rank 0's bytes to both others, over rank 1, which also sends its own.
Status forward_on(ExchangeGroup& group, int rank, std::uint64_t seq, const std::vector<Bytes>& data,
                  std::vector<Bytes>& received) {
  std::vector<SendPiece> sends;
  std::vector<ReceivePiece> receives;
  received.assign(2, Bytes());
  for (std::size_t i = 0; i < 2; ++i) received[i].resize(data[i].size());
  if (rank == 0) sends = {{1, data[0]}};
  if (rank == 1) {
    sends = {{2, data[1]}};
    receives = {{0, received[0], {2}}};
  }
  if (rank == 2) receives = {{1, received[1]}, {1, received[0], {}, true}};
  const auto context = context_of(OpKind::AllGather, seq, DType::UInt8, 0, Deadline::after(60s));
  return group.exchange(rank).move(context, sends, receives);
}

TEST(ExchangeRelay, what_is_forwarded_arrives_and_is_counted_where_it_passes) {
  ExchangeGroup group({1, 1, 1}, tune_to(Way::BroadcastAll));
  std::uint64_t relayed = 0;
  for (std::uint64_t seq = 1; const std::size_t bytes : {0, 1, 2048, 100'001}) {
    const std::vector<Bytes> data = {random_elements(DType::UInt8, bytes, seq),
                                     random_elements(DType::UInt8, 3000, seq + 100)};
    expect_all_ok(group.run([&](int rank) {
      std::vector<Bytes> received;
      Status status = forward_on(group, rank, seq, data, received);
      for (int origin = 0; origin < rank; ++origin) {
        const auto i = static_cast<std::size_t>(origin);
        EXPECT_EQ(received[i], data[i]);
      }
      return status;
    }));
    relayed += bytes;
    EXPECT_EQ(group.exchange(1).stats().relayed_bytes, relayed);
    ++seq;
  }
  EXPECT_EQ(group.exchange(0).stats().relayed_bytes, 0u);
}

TEST(ExchangeRelay, a_lost_origin_ends_the_relay_too) {
  ExchangeGroup group({1, 1, 1}, tune_to(Way::BroadcastAll));
  const std::vector<Bytes> data(2, random_elements(DType::UInt8, 50'000, 1));
  expect_all_ok(group.run([&](int rank) {
    std::vector<Bytes> own;
    return forward_on(group, rank, 1, data, own);
  }));
  const auto results = group.run([&](int rank) {
    if (rank == 0) {
      group.at(0).endpoint->abort(Status(StatusCode::Aborted, "killed"));
      return Status::ok();
    }
    std::vector<Bytes> own;
    if (rank == 1) {
      Status status = forward_on(group, rank, 2, data, own);
      group.exchange(2).abort(status);  // as the failure notice does
      return status;
    }
    return forward_on(group, rank, 2, data, own);
  });
  for (const int rank : {1, 2}) {
    const Status& status = results[static_cast<std::size_t>(rank)];
    EXPECT_EQ(status.code(), StatusCode::PeerLost) << status.to_string();
    EXPECT_EQ(status.peer(), rank_name(group.topology(0), 0)) << status.to_string();
  }
}

TEST(ExchangeRelay, memory_of_relayed_frames_is_given_back) {
  ExchangeGroup group({1, 1, 1}, tune_to(Way::RelayedBroadcast));
  reduced(group, {true, true, true});
  // Until the peers have acknowledged what was sent.
  const core::BufferPool& pool = *group.at(1).buffers;
  for (int i = 0; i < 1000 && pool.usage().out_bytes > 0; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(pool.usage().out_bytes, 0u);
}

}  // namespace
}  // namespace geocomm::collective
