// What the ranks are told when something goes wrong: who is to blame, in which operation.
#include <gtest/gtest.h>

#include <algorithm>

#include "codec/frames/codec.h"
#include "collective/layout/descriptor.h"
#include "exchange_fixture.h"

namespace geocomm::collective {
namespace {

using namespace testing;

constexpr std::size_t kFailureElements = 4096;

Status reduce_on(ExchangeGroup& group, int rank, const OpContext& context, ReduceOp op = ReduceOp::Sum) {
  SiteVectors data(group.topology(0), context.dtype, context.elements, 1);
  auto stripes = data.stripes(rank);
  return group.exchange(rank).reduce(context, op, stripes);
}

OpContext all_reduce_context(std::uint64_t seq, Deadline deadline = Deadline::after(30s)) {
  return context_of(OpKind::AllReduce, seq, DType::Float32, kFailureElements, deadline);
}

bool names(const Status& status, const std::string& who) {
  return status.peer().find(who) != std::string::npos;
}

void expect_mismatch(const std::vector<Status>& results) {
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].code(), StatusCode::InvalidArgument) << results[rank].to_string();
    EXPECT_TRUE(names(results[rank], rank == 0 ? "rank 1" : "rank 0")) << results[rank].to_string();
    EXPECT_EQ(results[rank].seq(), 7);
  }
}

TEST(ExchangeMismatch, another_kind_of_operation_is_an_error_on_both) {
  ExchangeGroup group({1, 1});
  expect_mismatch(group.run([&](int rank) {
    if (rank == 0) return reduce_on(group, 0, all_reduce_context(7));
    Bytes data(100);
    const std::vector<SendPiece> sends = {{0, data}};
    const std::vector<ReceivePiece> receives = {{0, data}};
    return group.exchange(1).move(context_of(OpKind::AllGather, 7, DType::Float32, 25), sends, receives);
  }));
}

TEST(ExchangeMismatch, another_dtype_reduction_or_size_is_an_error_on_both) {
  ExchangeGroup group({1, 1});
  const auto both = [&](const OpContext& second, ReduceOp op) {
    return group.run([&](int rank) {
      return rank == 0 ? reduce_on(group, 0, all_reduce_context(7)) : reduce_on(group, 1, second, op);
    });
  };
  expect_mismatch(both(context_of(OpKind::AllReduce, 7, DType::Int32, kFailureElements), ReduceOp::Sum));
  ExchangeGroup fresh({1, 1});
  expect_mismatch(fresh.run([&](int rank) {
    return reduce_on(fresh, rank, all_reduce_context(7), rank == 0 ? ReduceOp::Sum : ReduceOp::Max);
  }));
  ExchangeGroup sizes({1, 1});
  expect_mismatch(sizes.run([&](int rank) {
    return reduce_on(sizes, rank,
                     context_of(OpKind::AllReduce, 7, DType::Float32,
                                rank == 0 ? kFailureElements : kFailureElements + 1));
  }));
}

TEST(ExchangeMismatch, other_settings_are_an_error_on_both) {
  const std::vector<ExchangeGroup::Tune> tunes = {
      [](int rank, ExchangeConfig& config) {
        config.policy = policy_of(spec_of(rank == 1 ? "int8" : "none"), LinkMatrix::assumed(2));
      },
      [](int rank, ExchangeConfig& config) { config.chunk_bytes = rank == 0 ? 2048 : 4096; }};
  for (const auto& tune : tunes) {
    ExchangeGroup group({1, 1}, tune);
    expect_mismatch(group.run([&](int rank) { return reduce_on(group, rank, all_reduce_context(7)); }));
  }
}

class ExchangeTimeout : public ::testing::TestWithParam<Way> {};

TEST_P(ExchangeTimeout, a_rank_that_does_not_call_is_the_only_one_named) {
  ExchangeGroup group({1, 1, 1}, [](int, ExchangeConfig& config) {
    config.policy = policy_of({}, links_for(GetParam(), 3));
    config.chunk_bytes = 1024;
  });
  // Connected, so that only the operation is to blame.
  expect_all_ok(group.run([&](int rank) { return reduce_on(group, rank, all_reduce_context(1)); }));
  const auto results = group.run([&](int rank) {
    if (rank == 2) return Status::ok();
    return reduce_on(group, rank, all_reduce_context(2, Deadline::after(400ms)));
  });
  for (int rank : {0, 1}) {
    const Status& status = results[static_cast<std::size_t>(rank)];
    EXPECT_EQ(status.code(), StatusCode::Timeout) << status.to_string();
    EXPECT_EQ(status.peer(), rank_name(group.topology(0), 2)) << status.to_string();
    EXPECT_EQ(status.op(), "all_reduce");
    EXPECT_EQ(status.seq(), 2);
  }
  // The rank that comes late finds what was sent to it before, or nobody; the channels are as good as before.
  const Status late = reduce_on(group, 2, all_reduce_context(2, Deadline::after(200ms)));
  EXPECT_TRUE(late.is_ok() || late.code() == StatusCode::Timeout) << late.to_string();
  expect_all_ok(group.run([&](int rank) { return reduce_on(group, rank, all_reduce_context(3)); }));
}

INSTANTIATE_TEST_SUITE_P(Reduce, ExchangeTimeout, ::testing::Values(Way::EqualOwners, Way::BroadcastAll),
                         [](const auto& info) { return name_of(info.param); });

TEST(ExchangeFailure, move_that_times_out_names_the_sender_and_lets_the_memory_go) {
  ExchangeGroup group({1, 1});
  auto memory = std::make_shared<Bytes>(100);
  const std::weak_ptr<Bytes> watch = memory;
  OpContext context = context_of(OpKind::Broadcast, 1, DType::UInt8, 100, Deadline::after(200ms));
  context.keep_alive = memory;
  const std::vector<ReceivePiece> receives = {{1, *memory}};
  const Status status = group.exchange(0).move(context, {}, receives);
  EXPECT_EQ(status.code(), StatusCode::Timeout);
  EXPECT_TRUE(names(status, "rank 1"));
  context.keep_alive.reset();
  memory.reset();
  for (int i = 0; i < 1000 && !watch.expired(); ++i) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(watch.expired());
}

TEST(ExchangeFailure, killed_endpoint_is_a_lost_peer_on_the_survivors) {
  ExchangeGroup group({1, 1, 1});
  expect_all_ok(group.run([&](int rank) { return reduce_on(group, rank, all_reduce_context(1)); }));
  const auto results = group.run([&](int rank) {
    if (rank == 1) {
      group.at(1).endpoint->abort(Status(StatusCode::Aborted, "killed"));
      return Status::ok();
    }
    return reduce_on(group, rank, all_reduce_context(2));
  });
  for (int rank : {0, 2}) {
    const Status& status = results[static_cast<std::size_t>(rank)];
    EXPECT_EQ(status.code(), StatusCode::PeerLost) << status.to_string();
    EXPECT_TRUE(names(status, "rank 1")) << status.to_string();
    EXPECT_EQ(status.op(), "all_reduce");
    EXPECT_EQ(status.seq(), 2);
  }
}

TEST(ExchangeFailure, abort_ends_calls_in_flight_and_to_come) {
  ExchangeGroup group({1, 1});
  std::thread aborter([&] {
    std::this_thread::sleep_for(100ms);
    group.exchange(0).abort(Status(StatusCode::Aborted, "the user gave up"));
  });
  const Status status = reduce_on(group, 0, all_reduce_context(1));
  aborter.join();
  EXPECT_EQ(status.code(), StatusCode::Aborted) << status.to_string();
  EXPECT_EQ(reduce_on(group, 0, all_reduce_context(2)).code(), StatusCode::Aborted);
  EXPECT_EQ(group.exchange(0).move(all_reduce_context(3), {}, {}).code(), StatusCode::Aborted);
}

TEST(ExchangeFailure, no_channel_is_reported_as_it_is) {
  ExchangeGroup group({1, 1}, [](int, ExchangeConfig& config) {
    config.channel_to = [](int) -> core::Result<std::shared_ptr<transport::Channel>> {
      return Status(StatusCode::Authentication, "the peer is elsewhere");
    };
  });
  const Status status = reduce_on(group, 0, all_reduce_context(4));
  EXPECT_EQ(status.code(), StatusCode::Authentication);
  EXPECT_TRUE(names(status, "rank 1"));
  EXPECT_EQ(status.seq(), 4);
}

// A frame that rank 1 sends to rank 0 by hand, instead of taking part.
Status answer_with(const Bytes& frame, DType dtype = DType::Float32, codec::CodecSpec codec = {}) {
  ExchangeGroup group(
      {1, 1}, [&](int, ExchangeConfig& config) { config.policy = policy_of(codec, LinkMatrix::assumed(2)); });
  core::Buffer payload = group.at(1).buffers->acquire(frame.size());
  payload.resize(frame.size());
  std::copy(frame.begin(), frame.end(), payload.data());
  auto channel = group.channel(1, 0);
  EXPECT_TRUE(channel.is_ok());
  const Status sent =
      (*channel)->send({.key = {kGroup, 7},
                        .descriptor = pack_descriptor({OpKind::AllReduce, dtype, ReduceOp::Sum, codec, 1000}),
                        .chunk = 0,
                        .chunk_count = 1,
                        .payload = payload});
  EXPECT_TRUE(sent.is_ok());
  Status status = reduce_on(group, 0, context_of(OpKind::AllReduce, 7, dtype, 1000));
  EXPECT_EQ(names(status, "rank 1"), !status.is_ok()) << status.to_string();
  return status;
}

Bytes frame_of(const codec::CodecSpec& spec, DType dtype, std::size_t elements) {
  const Bytes data = random_elements(dtype, elements, 5);
  Bytes frame(codec::compress_bound(spec, dtype, elements));
  frame.resize(codec::compress(spec, dtype, data, frame).value());
  return frame;
}

TEST(ExchangeCorruption, a_sound_frame_by_hand_is_taken) {
  EXPECT_TRUE(answer_with(frame_of({}, DType::Float32, 1000)).is_ok());
  const codec::CodecSpec int8 = {.id = codec::CodecId::Int8};
  EXPECT_TRUE(answer_with(frame_of(int8, DType::Float32, 1000), DType::Float32, int8).is_ok());
}

TEST(ExchangeCorruption, a_flipped_bit_anywhere_is_corrupt_data) {
  for (const codec::CodecSpec& spec : {codec::CodecSpec{}, codec::CodecSpec{.id = codec::CodecId::Int8}}) {
    const Bytes sound = frame_of(spec, DType::Float32, 1000);
    for (std::size_t at :
         {std::size_t{0}, std::size_t{9}, std::size_t{30}, std::size_t{32}, sound.size() - 1}) {
      Bytes frame = sound;
      frame[at] ^= std::byte{4};
      EXPECT_EQ(answer_with(frame, DType::Float32, spec).code(), StatusCode::CorruptData) << "byte " << at;
    }
  }
}

// spec operations 5.3: "A receiver MUST refuse as CorruptData a frame that does not fill its chunk"
TEST(ExchangeCorruption, a_frame_of_something_else_is_corrupt_data) {
  const codec::CodecSpec int8 = {.id = codec::CodecId::Int8};
  const codec::CodecSpec int4 = {.id = codec::CodecId::Int4};
  EXPECT_EQ(answer_with({}).code(), StatusCode::CorruptData);
  EXPECT_EQ(answer_with(Bytes(31)).code(), StatusCode::CorruptData);
  EXPECT_EQ(answer_with(Bytes(1000)).code(), StatusCode::CorruptData);
  EXPECT_EQ(answer_with(Bytes(1 << 20)).code(), StatusCode::CorruptData);
  EXPECT_EQ(answer_with(frame_of({}, DType::Float32, 999)).code(), StatusCode::CorruptData);
  EXPECT_EQ(answer_with(frame_of({}, DType::Int32, 1000)).code(), StatusCode::CorruptData);
  EXPECT_EQ(answer_with(frame_of(int4, DType::Float32, 1000), DType::Float32, int8).code(),
            StatusCode::CorruptData);
  EXPECT_EQ(answer_with(frame_of(int8, DType::Float32, 1000)).code(), StatusCode::CorruptData);
  Bytes longer = frame_of(int8, DType::Float32, 1000);
  longer.push_back({});
  EXPECT_EQ(answer_with(longer, DType::Float32, int8).code(), StatusCode::CorruptData);
}

}  // namespace
}  // namespace geocomm::collective
