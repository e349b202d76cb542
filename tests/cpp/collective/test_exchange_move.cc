// Bytes moved between ranks over real sockets.
#include <gtest/gtest.h>

#include <array>
#include <future>
#include <map>
#include <random>

#include "exchange_fixture.h"

namespace geocomm::collective {
namespace {

using namespace testing;

const ExchangeGroup::Tune kSmallChunks = [](int, ExchangeConfig& config) { config.chunk_bytes = 1024; };

Bytes pattern(int from, int to, std::size_t bytes) {
  return random_elements(DType::UInt8, bytes, static_cast<std::uint64_t>(from * 1000 + to));
}

OpContext bytes_context(OpKind kind, std::uint64_t seq, Deadline deadline = Deadline::after(60s)) {
  return context_of(kind, seq, DType::UInt8, 0, deadline);
}

TEST(ExchangeMove, all_to_all_with_random_sizes_delivers_every_byte) {
  ExchangeGroup group({2, 1, 2}, kSmallChunks);
  std::mt19937 random(3);
  const int size = group.size();
  for (std::uint64_t seq = 0; seq < 10; ++seq) {
    std::map<std::pair<int, int>, std::size_t> bytes;
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to) bytes[{from, to}] = random() % 4 == 0 ? 0 : random() % 9000;
    }
    expect_all_ok(group.run([&](int rank) {
      std::vector<Bytes> outgoing;
      std::vector<Bytes> incoming;
      for (int peer = 0; peer < size; ++peer) {
        outgoing.push_back(pattern(rank, peer, bytes[{rank, peer}]));
        incoming.emplace_back(bytes[{peer, rank}]);
      }
      std::vector<SendPiece> sends;
      std::vector<ReceivePiece> receives;
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        sends.push_back({peer, outgoing[static_cast<std::size_t>(peer)]});
        receives.push_back({peer, incoming[static_cast<std::size_t>(peer)]});
      }
      Status status = group.exchange(rank).move(bytes_context(OpKind::AllToAll, seq), sends, receives);
      for (int peer = 0; peer < size && status.is_ok(); ++peer) {
        if (peer == rank) continue;
        EXPECT_EQ(incoming[static_cast<std::size_t>(peer)], pattern(peer, rank, bytes[{peer, rank}]));
      }
      return status;
    }));
  }
}

TEST(ExchangeMove, broadcast_of_one_buffer_reaches_all) {
  ExchangeGroup group({1, 2, 1}, kSmallChunks);
  const Bytes data = pattern(0, 0, 100'001);
  expect_all_ok(group.run([&](int rank) {
    const OpContext context = bytes_context(OpKind::Broadcast, 1);
    if (rank == 0) {
      const std::vector<SendPiece> sends = {{1, data}, {2, data}, {3, data}};
      return group.exchange(0).move(context, sends, {});
    }
    Bytes received(data.size());
    const std::vector<ReceivePiece> receives = {{0, received}};
    Status status = group.exchange(rank).move(context, {}, receives);
    EXPECT_EQ(received, data);
    return status;
  }));
}

TEST(ExchangeMove, several_pieces_to_one_peer_are_matched_in_order) {
  ExchangeGroup group({1, 1}, kSmallChunks);
  const std::vector<std::size_t> sizes = {0, 3000, 0, 1, 1024, 5};
  expect_all_ok(group.run([&](int rank) {
    std::vector<Bytes> pieces;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      pieces.push_back(rank == 0 ? pattern(0, static_cast<int>(i), sizes[i]) : Bytes(sizes[i]));
    }
    std::vector<SendPiece> sends;
    std::vector<ReceivePiece> receives;
    for (Bytes& piece : pieces) {
      if (rank == 0) sends.push_back({1, piece});
      if (rank == 1) receives.push_back({0, piece});
    }
    Status status = group.exchange(rank).move(bytes_context(OpKind::Scatter, 1), sends, receives);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ(pieces[i], pattern(0, static_cast<int>(i), sizes[i]));
    }
    return status;
  }));
}

TEST(ExchangeMove, barrier_waits_for_the_last_rank) {
  ExchangeGroup group({1, 1, 1});
  std::atomic<int> entered{0};
  expect_all_ok(group.run([&](int rank) {
    std::vector<SendPiece> sends;
    std::vector<ReceivePiece> receives;
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == rank) continue;
      sends.push_back({peer, {}});
      receives.push_back({peer, {}});
    }
    if (rank == 2) std::this_thread::sleep_for(50ms);
    ++entered;
    Status status = group.exchange(rank).move(bytes_context(OpKind::Barrier, 1), sends, receives);
    EXPECT_EQ(entered, 3);
    return status;
  }));
}

TEST(ExchangeMove, send_and_receive_with_one_number_in_both_directions_do_not_meet) {
  ExchangeGroup group({1, 1});
  constexpr std::uint32_t kMessages = 20;
  expect_all_ok(group.run([&](int rank) {
    const int peer = 1 - rank;
    std::vector<Status> results(2 * kMessages);
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < kMessages; ++i) {
      const OpContext context = bytes_context(OpKind::SendRecv, p2p_seq(-7, i));
      threads.emplace_back([&, context, i] {
        const Bytes data = pattern(rank, static_cast<int>(i), 2000 + i);
        const std::vector<SendPiece> sends = {{peer, data}};
        results[2 * i] = group.exchange(rank).move(context, sends, {});
      });
      threads.emplace_back([&, context, i] {
        Bytes data(2000 + i);
        const std::vector<ReceivePiece> receives = {{peer, data}};
        results[2 * i + 1] = group.exchange(rank).move(context, {}, receives);
        EXPECT_EQ(data, pattern(peer, static_cast<int>(i), 2000 + i));
      });
    }
    for (auto& thread : threads) thread.join();
    for (const Status& status : results) {
      if (!status.is_ok()) return status;
    }
    return Status::ok();
  }));
}

TEST(ExchangeMove, p2p_numbers_differ_by_tag_and_counter_and_from_collectives) {
  EXPECT_NE(p2p_seq(0, 1), p2p_seq(1, 0));
  EXPECT_NE(p2p_seq(-1, 5), p2p_seq(1, 5));
  EXPECT_GT(p2p_seq(0, 0), std::uint64_t{1} << 60);
  EXPECT_LT(p2p_seq(-1, (1u << 24) - 1), std::uint64_t{1} << 63);
}

// spec operations 3.1: "A receiver whose own descriptor or chunk_count differs MUST fail the operation"
TEST(ExchangeMove, sizes_that_differ_are_refused_on_the_receiver_naming_both) {
  ExchangeGroup group({1, 1}, kSmallChunks);
  for (const auto& [sent, expected] : {std::pair{4096, 8192}, {100, 90}, {0, 5}, {5, 0}}) {
    const auto seq = static_cast<std::uint64_t>(sent * 100 + expected);
    const auto results = group.run([&, bytes = std::array{sent, expected}](int rank) {
      Bytes data(static_cast<std::size_t>(bytes[static_cast<std::size_t>(rank)]));
      if (rank == 0) {
        const std::vector<SendPiece> sends = {{1, data}};
        return group.exchange(0).move(bytes_context(OpKind::Broadcast, seq), sends, {});
      }
      const std::vector<ReceivePiece> receives = {{0, data}};
      return group.exchange(1).move(bytes_context(OpKind::Broadcast, seq), {}, receives);
    });
    EXPECT_TRUE(results[0].is_ok()) << results[0].to_string();
    EXPECT_EQ(results[1].code(), StatusCode::InvalidArgument) << results[1].to_string();
    EXPECT_EQ(results[1].peer(), rank_name(group.topology(1), 0));
  }
}

TEST(ExchangeMove, pieces_cut_elsewhere_are_refused) {
  ExchangeGroup group({1, 1}, kSmallChunks);
  const auto results = group.run([&](int rank) {
    Bytes data(1000);
    const std::span<std::byte> whole(data);
    const std::size_t cut = rank == 0 ? 400 : 300;
    if (rank == 0) {
      const std::vector<SendPiece> sends = {{1, whole.first(cut)}, {1, whole.subspan(cut)}};
      return group.exchange(0).move(bytes_context(OpKind::Gather, 1), sends, {});
    }
    const std::vector<ReceivePiece> receives = {{0, whole.first(cut)}, {0, whole.subspan(cut)}};
    return group.exchange(1).move(bytes_context(OpKind::Gather, 1), {}, receives);
  });
  EXPECT_EQ(results[1].code(), StatusCode::InvalidArgument) << results[1].to_string();
}

TEST(ExchangeMove, pieces_of_this_rank_or_of_none_are_refused) {
  ExchangeGroup group({1, 1});
  const Bytes data(4);
  for (int rank : {0, 2, -1}) {
    const std::vector<SendPiece> sends = {{rank, data}};
    EXPECT_EQ(group.exchange(0).move(bytes_context(OpKind::Gather, 1), sends, {}).code(),
              StatusCode::InvalidArgument);
  }
}

TEST(ExchangeMove, nothing_to_do_is_done_at_once) {
  ExchangeGroup group({1, 1});
  EXPECT_TRUE(group.exchange(0).move(bytes_context(OpKind::Gather, 1), {}, {}).is_ok());
}

// A move in two steps. `over` is what is waited for in between.
struct BegunMove {
  std::future<void> over;
  Exchange::MoveEnd end;
  void begin(Exchange& exchange, const OpContext& context, std::span<const SendPiece> sends,
             std::span<const ReceivePiece> receives) {
    const auto promise = std::make_shared<std::promise<void>>();  // set on another thread, to its very end
    over = promise->get_future();
    auto begun = exchange.begin_move(context, sends, receives, [promise] { promise->set_value(); });
    ASSERT_TRUE(begun.is_ok()) << begun.status().to_string();
    end = std::move(begun).value();
  }
};

// A message from rank 0 to rank 1, both sides of which have begun.
struct BegunMessage {
  Bytes sent;
  Bytes received;
  BegunMove sender;
  BegunMove receiver;
  BegunMessage(ExchangeGroup& group, std::uint32_t number, std::size_t bytes, bool receive_first)
      : sent(pattern(0, 1, bytes)), received(bytes) {
    const OpContext context = bytes_context(OpKind::SendRecv, p2p_seq(0, number));
    const std::vector<SendPiece> sends = {{1, sent}};
    const std::vector<ReceivePiece> receives = {{0, received}};
    if (receive_first) receiver.begin(group.exchange(1), context, {}, receives);
    sender.begin(group.exchange(0), context, sends, {});
    if (!receive_first) receiver.begin(group.exchange(1), context, {}, receives);
  }
};

TEST(ExchangeBeginMove, both_sides_are_told_when_it_is_over_and_any_thread_may_end_it) {
  ExchangeGroup group({1, 1});
  std::uint32_t number = 0;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{5}, std::size_t{60'000}, std::size_t{3'000'000}}) {
    for (const bool receive_first : {true, false}) {
      BegunMessage message(group, number++, bytes, receive_first);
      ASSERT_EQ(message.receiver.over.wait_for(20s), std::future_status::ready);
      ASSERT_EQ(message.sender.over.wait_for(20s), std::future_status::ready);
      std::vector<Status> results(2);
      std::thread([&] { results = {message.sender.end(), message.receiver.end()}; }).join();
      expect_all_ok(results);
      EXPECT_EQ(message.received, message.sent);
    }
  }
}

TEST(ExchangeBeginMove, ending_a_receive_of_nothing_waits_until_the_deadline) {
  ExchangeGroup group({1, 1});
  Bytes received(8);
  const std::vector<ReceivePiece> receives = {{0, received}};
  BegunMove receiver;
  receiver.begin(group.exchange(1), bytes_context(OpKind::SendRecv, p2p_seq(0, 0), Deadline::after(100ms)),
                 {}, receives);
  EXPECT_EQ(receiver.over.wait_for(150ms),
            std::future_status::timeout);  // nobody watches the clock but who ends it
  const Status late = receiver.end();
  EXPECT_EQ(late.code(), StatusCode::Timeout) << late.to_string();
  EXPECT_EQ(late.peer(), rank_name(group.topology(1), 0));
  EXPECT_EQ(receiver.over.wait_for(0s), std::future_status::ready);
}

TEST(ExchangeBeginMove, abort_after_it_is_over_does_not_undo_it) {
  ExchangeGroup group({1, 1});
  BegunMessage message(group, 0, 500, true);
  ASSERT_EQ(message.receiver.over.wait_for(20s), std::future_status::ready);
  ASSERT_EQ(message.sender.over.wait_for(20s), std::future_status::ready);
  for (int rank : {0, 1}) group.exchange(rank).abort(Status(StatusCode::Aborted, "too late"));
  EXPECT_TRUE(message.receiver.end().is_ok());
  EXPECT_TRUE(message.sender.end().is_ok());
  EXPECT_EQ(message.received, message.sent);
}

TEST(ExchangeBeginMove, abort_ends_those_that_have_begun_and_refuses_others) {
  ExchangeGroup group({1, 1});
  Bytes received(8);
  const std::vector<ReceivePiece> receives = {{0, received}};
  BegunMove receiver;
  receiver.begin(group.exchange(1), bytes_context(OpKind::SendRecv, p2p_seq(0, 0)), {}, receives);
  group.exchange(1).abort(Status(StatusCode::PeerLost, "gone"));
  ASSERT_EQ(receiver.over.wait_for(0s), std::future_status::ready);
  EXPECT_EQ(receiver.end().code(), StatusCode::PeerLost);
  const auto refused = group.exchange(1).begin_move(bytes_context(OpKind::SendRecv, p2p_seq(0, 1)), {},
                                                    receives, [] { FAIL() << "over, but never begun"; });
  EXPECT_EQ(refused.status().code(), StatusCode::PeerLost);
}

}  // namespace
}  // namespace geocomm::collective
