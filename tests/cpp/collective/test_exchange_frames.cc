// Exchange::plan_frames(), with a thread in the part of the accelerator: whatever ranks use it and
// whatever ranks reduce host memory, all end with the same bits.
#include <atomic>
#include <condition_variable>
#include <limits>
#include <mutex>

#include "codec/frames/codec.h"
#include "collective/sums/reduction.h"
#include "exchange_fixture.h"

namespace geocomm::collective::testing {
namespace {

using codec::Accumulate;

// Does what FrameChunk says, by the host's codecs.
class Accelerator final : public FrameMaker {
 public:
  Accelerator(const FramePlan& plan, std::vector<StripeData>& stripes, DType dtype)
      : plan_(plan),
        stripes_(stripes),
        dtype_(dtype),
        own_frames_(plan.chunks.size()),
        sums_(plan.chunks.size()) {
    if (plan_.groups == 1) contribute(0);
    thread_ = std::thread([this] { run(); });
  }
  ~Accelerator() override {
    {
      std::lock_guard lock(mutex_);
      abandoned_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

  Status wait_for_contributions(std::uint32_t groups, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    if (changed_.wait_until(lock, deadline.when(), [&] { return contributed_ >= groups; }))
      return Status::ok();
    return {StatusCode::Timeout, "the accelerator is late"};
  }

  void contributions_arrived(std::uint32_t groups) override {
    std::lock_guard lock(mutex_);
    arrived_ = std::max(arrived_, groups);
    changed_.notify_all();
  }

  Status wait_for_results(std::uint32_t groups, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    EXPECT_GE(arrived_, groups);
    if (changed_.wait_until(lock, deadline.when(), [&] { return made_ >= groups; })) return Status::ok();
    return {StatusCode::Timeout, "the accelerator is late"};
  }

  std::uint32_t arrived() {
    std::lock_guard lock(mutex_);
    return arrived_;
  }

  // Step 5.
  void finish() {
    thread_.join();
    for (std::size_t c = 0; c < plan_.chunks.size(); ++c) {
      const FrameChunk& chunk = plan_.chunks[c];
      if (!chunk.receives) continue;
      if (chunk.has_result) {
        sums_[c].resize(chunk.range.size());
        const Status decoded =
            codec::decompress_accumulate(chunk.result.room(), sums_[c], Accumulate::Assign);
        EXPECT_TRUE(decoded.is_ok()) << decoded.to_string();
      }
      store_sums(dtype_, sums_[c], data_of(chunk).data());
    }
  }

 private:
  void contribute(std::uint32_t group) {
    for (std::size_t c = 0; c < plan_.chunks.size(); ++c) {
      const FrameChunk& chunk = plan_.chunks[c];
      if (chunk.group != group || !chunk.contributes) continue;
      encode(data_of(chunk), dtype_, chunk.contribution_options, chunk.contribution);
      // The exchange sets the crcs of the original while this thread may read.
      const auto room = chunk.contribution.room();
      own_frames_[c].assign(room.begin(), room.end());
    }
    std::lock_guard lock(mutex_);
    contributed_ = group + 1;
    changed_.notify_all();
  }

  void run() {
    for (std::uint32_t group = contributed_; group < plan_.groups; ++group) {
      std::this_thread::sleep_for(1ms);
      contribute(group);
    }
    for (std::uint32_t group = 0; group < plan_.groups; ++group) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return arrived_ > group || abandoned_; });
        if (arrived_ <= group) return;
      }
      sum(group);
    }
  }

  void sum(std::uint32_t group) {
    for (std::size_t c = 0; c < plan_.chunks.size(); ++c) {
      const FrameChunk& chunk = plan_.chunks[c];
      if (chunk.group != group || !chunk.reduces) continue;
      sums_[c].resize(chunk.range.size());
      for (std::size_t site = 0; site < chunk.frames.size(); ++site) {
        const Accumulate mode = site == 0 ? Accumulate::Assign : Accumulate::Add;
        const core::Buffer& frame = chunk.frames[site];
        if (site == plan_.own_site && !chunk.contributes) {
          accumulate_elements(dtype_, data_of(chunk).data(), sums_[c], mode);
        } else {
          const bool own = frame.data() == chunk.contribution.data();
          const Status decoded = codec::decompress_accumulate(
              own ? std::span<const std::byte>(own_frames_[c]) : frame.room(), sums_[c], mode);
          EXPECT_TRUE(decoded.is_ok()) << decoded.to_string();
        }
      }
      divide(sums_[c], plan_.divisor);
      if (chunk.owns) {
        encode(std::as_writable_bytes(std::span(sums_[c])), DType::Float32, chunk.result_options,
               chunk.result);
      }
    }
    std::lock_guard lock(mutex_);
    made_ = group + 1;
    changed_.notify_all();
  }

  void encode(std::span<const std::byte> elements, DType dtype, const codec::CompressOptions& options,
              const core::Buffer& frame) {
    const auto bytes = codec::compress(plan_.codec, dtype, elements, frame.room(), options);
    EXPECT_TRUE(bytes.is_ok()) << bytes.status().to_string();
  }

  std::span<std::byte> data_of(const FrameChunk& chunk) {
    const std::size_t size = core::size_of(dtype_);
    return stripes_[chunk.stripe].data.subspan(chunk.range.begin * size, chunk.range.size() * size);
  }

  const FramePlan& plan_;
  std::vector<StripeData>& stripes_;
  const DType dtype_;
  std::vector<Bytes> own_frames_;
  std::vector<std::vector<float>> sums_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::uint32_t contributed_ = 0;  // groups, as those below
  std::uint32_t arrived_ = 0;
  std::uint32_t made_ = 0;
  bool abandoned_ = false;  // the exchange failed
  std::thread thread_;
};

Status reduce_by_frames(
    Exchange& exchange, const OpContext& context, ReduceOp op, std::vector<StripeData>& stripes,
    const FrameOptions& options = {}, core::BufferPool memory = core::BufferPool(),
    const std::function<void()>& once_planned = [] {}) {
  auto frames = exchange.plan_frames(context, op, stripes, memory, options);
  if (!frames.is_ok()) return frames.status();
  once_planned();
  EXPECT_EQ(frames->plan->groups > 1, static_cast<bool>(options.group_bytes));
  Accelerator accelerator(*frames->plan, stripes, context.dtype);
  GEOCOMM_RETURN_IF_ERROR(frames->run(accelerator));
  accelerator.finish();
  return Status::ok();
}

ExchangeGroup::Tune with_codec(const char* text, Way way) {
  return [=](int, ExchangeConfig& config) {
    const auto sites = static_cast<std::size_t>(config.topology.site_count());
    config.policy = policy_of(spec_of(text), links_for(way, sites));
    config.chunk_bytes = 4096;
  };
}

class ExchangeFrames : public ::testing::TestWithParam<Way> {};

TEST_P(ExchangeFrames, all_reduce_gives_the_bits_of_reduce_whichever_ranks_use_it) {
  for (const std::vector<int>& sizes : std::vector<std::vector<int>>{{1, 1}, {1, 2, 1}, {1, 1, 1, 1}}) {
    for (const char* text : {"int8", "int4:round=stochastic", "bf16", "balanced", "int8+huffman"}) {
      ExchangeGroup group(sizes, with_codec(text, GetParam()));
      std::uint64_t seq = 0;
      for (const DType dtype : {DType::Float32, DType::BFloat16}) {
        for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Avg}) {
          std::vector<Bytes> expected;
          // Nobody, every second rank, all: seeds depend on the operation's number, so only codecs that round
          // to nearest compare across runs.
          // At last in groups, and with room on arrival.
          for (const int which : {0, 1, 2, 3}) {
            SiteVectors data(group.topology(0), dtype, 9001, 7);
            const std::uint64_t number = ++seq;
            expect_all_ok(group.run([&](int rank) {
              auto stripes = data.stripes(rank);
              const auto context = context_of(OpKind::AllReduce, number, dtype, data.elements());
              const bool by_frames = which >= 2 || (which == 1 && rank % 2 == 1);
              // Of others than its peers have.
              FrameOptions options;
              if (which == 3) options = groups_of(rank % 2 == 0 ? 1500 : 4000);
              return by_frames ? reduce_by_frames(group.exchange(rank), context, op, stripes, options)
                               : group.exchange(rank).reduce(context, op, stripes);
            }));
            for (const Bytes& output : data.outputs()) ASSERT_TRUE(output == data.outputs()[0]) << text;
            if (std::string_view(text).find("stochastic") == std::string_view::npos) {
              expected.push_back(data.outputs()[0]);
            }
          }
          for (const Bytes& output : expected) ASSERT_TRUE(output == expected[0]) << text;
        }
      }
    }
  }
}

// Below: always broadcast-all; above: with three sites and more, chunks have owners.
INSTANTIATE_TEST_SUITE_P(Flows, ExchangeFrames,
                         ::testing::Values(Way::BroadcastAll, Way::EqualOwners, Way::UnequalOwners,
                                           Way::RelayedBroadcast, Way::RelayedOwners),
                         [](const auto& info) { return name_of(info.param); });

// How many frames' bounds an operation of `sites` sites takes memory for, by chunk.
double rooms_a_chunk(const char* codec, Way way, int sites, DType dtype = DType::Float32) {
  constexpr std::size_t kElements = 1 << 18;
  ExchangeGroup group(std::vector<int>(static_cast<std::size_t>(sites), 1), [=](int, ExchangeConfig& config) {
    config.policy = policy_of(spec_of(codec), links_for(way, static_cast<std::size_t>(sites)));
    config.chunk_bytes = 64 * 1024;
  });
  int pieces = 0;
  core::BufferPool memory(0, {[&](std::size_t bytes) {
                                ++pieces;
                                return core::heap_memory().allocate(bytes);
                              },
                              core::heap_memory().free});
  SiteVectors data(group.topology(0), dtype, kElements, 1);
  auto stripes = data.stripes(0);
  const auto context = context_of(OpKind::AllReduce, 1, dtype, kElements);
  auto frames = group.exchange(0).plan_frames(context, ReduceOp::Sum, stripes, memory);
  EXPECT_TRUE(frames.is_ok()) << frames.status().to_string();
  EXPECT_EQ(pieces, 1);
  EXPECT_LE(memory.usage().held_bytes, memory.usage().asked_bytes * 9 / 8);
  for (const FrameChunk& chunk : frames->plan->chunks) {
    const std::size_t bound = codec::compress_bound(frames->plan->codec, dtype, chunk.range.size());
    for (const core::Buffer* frame : {&chunk.contribution, &chunk.result}) {
      EXPECT_TRUE(frame->data() == nullptr || frame->capacity() >= bound);
    }
    EXPECT_EQ(chunk.result.data() != nullptr, chunk.has_result);
    EXPECT_EQ(chunk.contribution.data() != nullptr, chunk.contributes);
  }
  const double bounds = static_cast<double>(codec::compress_bound(frames->plan->codec, dtype, kElements));
  const double taken = static_cast<double>(memory.usage().asked_bytes);
  frames = core::Status(StatusCode::Internal, "");
  EXPECT_EQ(memory.usage().held_bytes, 0u);
  return taken / bounds;
}

TEST(ExchangeFrames, test_frames_of_an_operation_are_one_piece_of_memory_of_their_bounds) {
  for (const char* codec : {"int8", "balanced"}) {
    // Its own, and those of the others.
    EXPECT_NEAR(rooms_a_chunk(codec, Way::BroadcastAll, 2), 2, 0.1) << codec;
    EXPECT_NEAR(rooms_a_chunk(codec, Way::BroadcastAll, 8), 8, 0.1) << codec;
    // For each chunk its own or those of the others, and the result.
    EXPECT_NEAR(rooms_a_chunk(codec, Way::EqualOwners, 8), 2 * 7 / 8.0 + 1, 0.1) << codec;
  }
}

// Most memory for frames that a rank of eight asked for, in terms of its tensor, where each site's rank takes
// room as frames come. `scale`: of every third element; where it is not finite frames are as large as the
// tensor.
double most_memory(const char* codec, Way way, double scale) {
  constexpr std::size_t kElements = 1 << 18;
  constexpr int kSites = 8;
  ExchangeGroup group(std::vector<int>(kSites, 1), [=](int, ExchangeConfig& config) {
    config.policy = policy_of(spec_of(codec), links_for(way, kSites));
    // One, or one an owner.
    config.chunk_bytes = (way == Way::BroadcastAll ? 1024 : 128) * 1024;
  });
  SiteVectors data(group.topology(0), DType::Float32, kElements, 1);
  for (Bytes& input : data.inputs()) {
    for (std::size_t i = 0; i < kElements; i += 3) {
      set_value(DType::Float32, input, i, value_at(DType::Float32, input, i) * scale);
    }
  }
  data.reset_outputs();
  std::vector<double> most(kSites);
  expect_all_ok(group.run([&](int rank) {
    auto stripes = data.stripes(rank);
    const auto context = context_of(OpKind::AllReduce, 1, DType::Float32, kElements);
    core::BufferPool memory(0);
    const Status status =
        reduce_by_frames(group.exchange(rank), context, ReduceOp::Avg, stripes, groups_of(kElements), memory);
    most[static_cast<std::size_t>(rank)] =
        static_cast<double>(memory.usage().most_asked_bytes) / (4.0 * static_cast<double>(kElements));
    return status;
  }));
  for (const Bytes& output : data.outputs()) EXPECT_TRUE(output == data.outputs()[0]) << codec;
  return *std::ranges::max_element(most);
}

TEST(ExchangeFrames, test_room_on_arrival_is_that_of_what_comes) {
  EXPECT_LE(most_memory("balanced", Way::BroadcastAll, 1), 2.02);
  EXPECT_LE(most_memory("small", Way::BroadcastAll, 1), 1.9);
  EXPECT_LE(most_memory("int8", Way::EqualOwners, 1), 2.0);
  EXPECT_LE(most_memory("balanced", Way::EqualOwners, 1), 2.0);
  // What does not fit has memory of its own.
  const double larger = most_memory("balanced", Way::BroadcastAll, std::numeric_limits<double>::infinity());
  EXPECT_GT(larger, 2.0);
  EXPECT_LE(larger, 8 * 1.3);
}

// Where no more than the plan's piece is left. The other site says what it waited for.
TEST(ExchangeFramesErrors, no_room_for_a_frame_that_comes_ends_the_operation) {
  constexpr std::size_t kElements = 1 << 14;
  ExchangeGroup group({1, 1}, with_codec("balanced", Way::BroadcastAll));
  SiteVectors data(group.topology(0), DType::Float32, kElements, 1);
  for (Bytes& input : data.inputs()) {
    for (std::size_t i = 0; i < kElements; i += 3) {
      set_value(DType::Float32, input, i, std::numeric_limits<double>::infinity());
    }
  }
  data.reset_outputs();
  const auto results = group.run([&](int rank) {
    auto stripes = data.stripes(rank);
    std::atomic<int> left = 1;
    core::BufferPool memory(0, {[&](std::size_t bytes) {
                                  if (rank == 0 && left-- <= 0) throw std::bad_alloc();
                                  return core::heap_memory().allocate(bytes);
                                },
                                core::heap_memory().free});
    const auto context = context_of(OpKind::AllReduce, 1, DType::Float32, kElements, Deadline::after(2s));
    return reduce_by_frames(group.exchange(rank), context, ReduceOp::Sum, stripes, groups_of(kElements),
                            memory);
  });
  EXPECT_FALSE(results[0].is_ok());
  EXPECT_NE(results[0].code(), StatusCode::Timeout) << results[0].to_string();
}

TEST(ExchangeFrames, test_groups_have_so_many_bytes_and_are_eight_at_most) {
  constexpr std::size_t kElements = 1 << 18;
  ExchangeGroup group({1, 1, 1}, with_codec("int8", Way::EqualOwners));
  core::BufferPool memory;
  SiteVectors data(group.topology(0), DType::Float32, kElements, 1);
  auto stripes = data.stripes(0);
  const auto context = context_of(OpKind::AllReduce, 1, DType::Float32, kElements);
  for (const auto& [bytes, groups] : {std::pair{~std::size_t{0}, 1u},
                                      {std::size_t{3} << 19, 1u},
                                      {std::size_t{1} << 18, 4u},
                                      {std::size_t{1} << 15, 8u}}) {
    auto frames =
        group.exchange(0).plan_frames(context, ReduceOp::Sum, stripes, memory, groups_of(bytes, false));
    ASSERT_TRUE(frames.is_ok());
    EXPECT_EQ(frames->plan->groups, groups) << bytes;
    std::vector<std::size_t> chunks(groups);
    for (const FrameChunk& chunk : frames->plan->chunks) ++chunks.at(chunk.group);
    const auto [least, most] = std::ranges::minmax(chunks);
    EXPECT_LE(most - least, 1u) << bytes;
  }
}

TEST(ExchangeFramesErrors, what_the_host_has_to_reduce_is_refused_and_a_lost_peer_ends_it) {
  ExchangeGroup group({1, 1}, with_codec("int8", Way::EqualOwners));
  core::BufferPool memory;
  SiteVectors data(group.topology(0), DType::Float32, 5000, 1);
  auto stripes = data.stripes(0);
  const auto minimum = context_of(OpKind::AllReduce, 1, DType::Float32, 5000);
  EXPECT_EQ(group.exchange(0).plan_frames(minimum, ReduceOp::Min, stripes, memory).status().code(),
            StatusCode::Unsupported);
  const core::MemorySource nothing{[](std::size_t) -> std::byte* { throw std::bad_alloc(); },
                                   [](std::byte*, std::size_t) {}};
  core::BufferPool empty(0, nothing);
  const auto sum = context_of(OpKind::AllReduce, 1, DType::Float32, 5000);
  EXPECT_EQ(group.exchange(0).plan_frames(sum, ReduceOp::Sum, stripes, empty).status().code(),
            StatusCode::Unsupported);

  expect_all_ok(group.run([&](int rank) {
    auto mine = data.stripes(rank);
    const auto context = context_of(OpKind::AllReduce, 2, DType::Float32, 5000);
    return reduce_by_frames(group.exchange(rank), context, ReduceOp::Sum, mine);
  }));
  const auto late = context_of(OpKind::AllReduce, 3, DType::Float32, 5000, Deadline::after(200ms));
  EXPECT_EQ(reduce_by_frames(group.exchange(0), late, ReduceOp::Sum, stripes).code(), StatusCode::Timeout);
  group.at(1).endpoint->abort(Status(StatusCode::Aborted, "gone"));
  const auto lost = context_of(OpKind::AllReduce, 4, DType::Float32, 5000);
  EXPECT_EQ(reduce_by_frames(group.exchange(0), lost, ReduceOp::Sum, stripes).code(), StatusCode::PeerLost);
}

TEST(ExchangeFrames, test_what_was_planned_is_exchanged_whatever_policy_comes_in_between) {
  ExchangeGroup group({1, 1, 1}, with_codec("int8", Way::EqualOwners));
  const auto other = policy_of(spec_of("int4"), links_for(Way::BroadcastAll, 3));
  std::vector<Bytes> results;
  for (const std::uint64_t seq : {1, 2}) {
    SiteVectors data(group.topology(0), DType::Float32, 9001, 1);
    expect_all_ok(group.run([&](int rank) {
      auto stripes = data.stripes(rank);
      const auto context = context_of(OpKind::AllReduce, seq, DType::Float32, 9001);
      Exchange& exchange = group.exchange(rank);
      return reduce_by_frames(exchange, context, ReduceOp::Sum, stripes, {}, core::BufferPool(),
                              [&] { EXPECT_TRUE(seq == 1 || exchange.set_policy(other).is_ok()); });
    }));
    results.push_back(data.outputs()[0]);
  }
  EXPECT_TRUE(results[0] == results[1]);
}

// A channel whose peer is in the middle of a chunk, with so many bytes, when the operation fails: it has the
// sink, and writes on.
struct HalfReceived final : transport::Channel {
  Status wait_ready(Deadline) override { return Status::ok(); }
  Status send(transport::OutgoingChunk, std::function<void(const Status&)> on_sent) override {
    if (on_sent) on_sent(Status::ok());
    return Status::ok();
  }
  Status post_receive(transport::OpKey, std::uint64_t, std::uint32_t,
                      std::shared_ptr<transport::ReceiveSink> posted) override {
    auto placed = posted->place(0, there.size());
    EXPECT_TRUE(placed.is_ok()) << placed.status().to_string();
    room = *placed;
    std::ranges::copy(there, room.begin());
    if (is_whole) posted->on_chunk(0);
    if (!is_whole) sink = std::move(posted);
    return Status::ok();
  }
  void cancel(transport::OpKey) override {}
  void expect_rate(double) override {}
  Status status() const override { return Status::ok(); }
  transport::ChannelStats stats() const override { return {}; }
  const std::string& peer() const override { return name; }

  std::string name = "half received";
  Bytes there = Bytes(2000);
  bool is_whole = false;
  std::shared_ptr<transport::ReceiveSink> sink;
  std::span<std::byte> room;
};

ExchangeGroup::Tune over(const std::shared_ptr<HalfReceived>& channel) {
  return [channel](int rank, ExchangeConfig& config) {
    with_codec("int8", Way::EqualOwners)(rank, config);
    config.channel_to = [channel](int) -> core::Result<std::shared_ptr<transport::Channel>> {
      return {channel};
    };
  };
}

TEST(ExchangeFramesErrors, a_damaged_frame_ends_the_operation_and_the_accelerator_never_sees_it) {
  constexpr std::size_t kElements = 500;
  const auto channel = std::make_shared<HalfReceived>();
  channel->is_whole = true;
  Bytes& frame = channel->there;
  frame.resize(codec::compress_bound(spec_of("int8"), DType::Float32, kElements));
  const Bytes elements = random_elements(DType::Float32, kElements, 1);
  frame.resize(codec::compress(spec_of("int8"), DType::Float32, elements, frame).value());
  for (const bool is_damaged : {false, true}) {
    if (is_damaged) frame.back() ^= std::byte{1};
    ExchangeGroup group({1, 1}, over(channel));
    SiteVectors data(group.topology(0), DType::Float32, kElements, 1);
    auto stripes = data.stripes(0);
    const auto context = context_of(OpKind::AllReduce, 1, DType::Float32, kElements);
    core::BufferPool memory;
    const auto frames = group.exchange(0).plan_frames(context, ReduceOp::Sum, stripes, memory);
    ASSERT_TRUE(frames.is_ok());
    Accelerator accelerator(*frames->plan, stripes, context.dtype);
    const Status status = frames->run(accelerator);
    EXPECT_EQ(status.code(), is_damaged ? StatusCode::CorruptData : StatusCode::Ok) << status.to_string();
    EXPECT_EQ(status.peer(), is_damaged ? channel->name : "");
    EXPECT_EQ(accelerator.arrived(), is_damaged ? 0u : 1u);
  }
}

TEST(ExchangeFramesErrors, a_frame_is_nobody_elses_as_long_as_a_channel_can_write_to_it) {
  for (const bool by_frames : {false, true}) {
    const auto channel = std::make_shared<HalfReceived>();
    ExchangeGroup group({1, 1}, over(channel));
    core::BufferPool frames(0);
    core::BufferPool& memory = by_frames ? frames : *group.at(0).buffers;
    SiteVectors data(group.topology(0), DType::Float32, 5000, 1);
    auto stripes = data.stripes(0);
    const auto context = context_of(OpKind::AllReduce, 1, DType::Float32, 5000, Deadline::after(100ms));
    if (by_frames) {
      const auto frames = group.exchange(0).plan_frames(context, ReduceOp::Sum, stripes, memory);
      ASSERT_TRUE(frames.is_ok());
      Accelerator accelerator(*frames->plan, stripes, context.dtype);
      EXPECT_EQ(frames->run(accelerator).code(), StatusCode::Timeout);
    } else {
      EXPECT_EQ(group.exchange(0).reduce(context, ReduceOp::Sum, stripes).code(), StatusCode::Timeout);
    }
    ASSERT_GE(channel->room.size(), 2000u);
    EXPECT_GE(memory.usage().out_bytes, channel->room.size()) << "by frames: " << by_frames;
    std::ranges::fill(channel->room, std::byte{1});  // as a late receive does: AddressSanitizer looks on
    channel->sink.reset();
    EXPECT_EQ(memory.usage().out_bytes, 0u) << "by frames: " << by_frames;
  }
}

}  // namespace
}  // namespace geocomm::collective::testing
