// Reductions over sites on the device, all chunks at once: bits of the host, and a number of kernels that
// does not grow with the operation.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bus_watch.h"
#include "codec/cuda/launch.h"
#include "collective/cuda/batched_reduction.h"
#include "collective/sums/reduction.h"
#include "core/buffer.h"
#include "cuda_cases.h"
#include "simt.h"

namespace geocomm::collective {
namespace {

using codec::Accumulate;
using codec::Bytes;
using codec::CodecSpec;
using codec::DeviceBytes;
using core::DType;

// Who reduces a chunk: every rank, for itself; this rank, for all; another one.
enum class Way { Broadcast, Owned, OfOther };

struct Operation {
  DType dtype = DType::Float32;
  std::size_t sites = 2;
  std::size_t own_site = 1;
  std::shared_ptr<FramePlan> plan = std::make_shared<FramePlan>();
  std::vector<std::vector<Bytes>> elements;  // of a chunk, by site
  std::vector<std::unique_ptr<DeviceBytes>> data;
  core::BufferPool pool;

  std::vector<std::span<std::byte>> spans() const {
    std::vector<std::span<std::byte>> spans;
    for (const auto& bytes : data) spans.push_back(bytes->span());
    return spans;
  }
};

Bytes frame_on_host(const CodecSpec& spec, DType dtype, std::span<const std::byte> elements,
                    const codec::CompressOptions& options) {
  Bytes frame(codec::compress_bound(spec, dtype, elements.size() / core::size_of(dtype)));
  const auto size = codec::compress(spec, dtype, elements, frame, options);
  EXPECT_TRUE(size.is_ok());
  frame.resize(*size);
  return frame;
}

core::Buffer room_for(Operation& operation, DType dtype, std::size_t elements) {
  return operation.pool.acquire(codec::compress_bound(operation.plan->codec, dtype, elements));
}

Operation make_operation(const CodecSpec& spec, DType dtype, std::size_t sites, int divisor,
                         std::span<const Way> ways, std::span<const std::size_t> sizes,
                         core::BufferPool pool = core::BufferPool()) {
  Operation operation;
  operation.pool = std::move(pool);
  operation.dtype = dtype;
  operation.sites = sites;
  operation.plan->codec = spec;
  operation.plan->own_site = operation.own_site;
  operation.plan->divisor = divisor;
  std::size_t begin = 0;
  for (std::size_t c = 0; c < sizes.size(); ++c) {
    const Way way = ways[c % ways.size()];
    FrameChunk chunk;
    chunk.range = {begin, begin + sizes[c]};
    begin += sizes[c];
    chunk.contributes = way != Way::Owned;
    chunk.reduces = way != Way::OfOther;
    chunk.owns = way == Way::Owned;
    chunk.receives = true;
    chunk.contribution_options.seed = 11 + operation.own_site;
    chunk.contribution_options.first_element = chunk.range.begin;
    chunk.result_options.seed = 5;
    chunk.result_options.first_element = chunk.range.begin;
    operation.elements.emplace_back();
    for (std::size_t s = 0; s < sites; ++s) {
      auto values = codec::gaussian(sizes[c], 1.0f, static_cast<std::uint32_t>(1 + s + 10 * c));
      if (c == 1) values[sizes[c] / 2] = codec::kInf;
      operation.elements.back().push_back(codec::to_bytes(values, dtype));
    }
    operation.data.push_back(std::make_unique<DeviceBytes>(operation.elements[c][operation.own_site]));
    if (chunk.contributes) chunk.contribution = room_for(operation, dtype, sizes[c]);
    chunk.has_result = way != Way::Broadcast;
    if (chunk.has_result) chunk.result = room_for(operation, DType::Float32, sizes[c]);
    if (chunk.reduces) {
      for (std::size_t s = 0; s < sites; ++s) {
        const bool is_own = s == operation.own_site;
        chunk.frames.push_back(is_own && chunk.owns ? core::Buffer() : room_for(operation, dtype, sizes[c]));
        if (is_own && chunk.contributes) chunk.frames.back() = chunk.contribution;
      }
    }
    operation.plan->chunks.push_back(std::move(chunk));
  }
  return operation;
}

void put(const Bytes& bytes, const core::Buffer& room) {
  ASSERT_LE(bytes.size(), room.capacity());
  std::ranges::copy(bytes, room.data());
}

// What the sites sum up to, as the host has it.
std::vector<float> sum_on_host(const Operation& operation, std::size_t c) {
  const FrameChunk& chunk = operation.plan->chunks[c];
  std::vector<float> sums(chunk.range.size());
  for (std::size_t s = 0; s < operation.sites; ++s) {
    const auto mode = s == 0 ? Accumulate::Assign : Accumulate::Add;
    const Bytes& elements = operation.elements[c][s];
    if (s == operation.own_site && chunk.owns) {
      accumulate_elements(operation.dtype, elements.data(), sums, mode);
      continue;
    }
    codec::CompressOptions options = chunk.contribution_options;
    options.seed = 11 + s;
    const Bytes frame = frame_on_host(operation.plan->codec, operation.dtype, elements, options);
    EXPECT_TRUE(codec::decompress_accumulate(frame, sums, mode).is_ok());
  }
  divide(sums, operation.plan->divisor);
  return sums;
}

// The frames of the other sites come in.
void receive_contributions(Operation& operation) {
  for (std::size_t c = 0; c < operation.plan->chunks.size(); ++c) {
    FrameChunk& chunk = operation.plan->chunks[c];
    if (!chunk.reduces) continue;
    for (std::size_t s = 0; s < operation.sites; ++s) {
      if (s == operation.own_site) continue;
      codec::CompressOptions options = chunk.contribution_options;
      options.seed = 11 + s;
      put(frame_on_host(operation.plan->codec, operation.dtype, operation.elements[c][s], options),
          chunk.frames[s]);
    }
  }
}

void expect_bits_of_host(Operation& operation) {
  cuda::BatchedReduction reduction(operation.plan, operation.dtype, operation.spans());
  const DeviceBytes device(reduction.device_bytes());
  const DeviceBytes pinned(reduction.pinned_bytes());
  ASSERT_TRUE(reduction.take_memory(device.data(), pinned.data()).is_ok());
  ASSERT_TRUE(reduction.enqueue_contributions(0, nullptr).is_ok());
  for (std::size_t c = 0; c < operation.plan->chunks.size(); ++c) {
    const FrameChunk& chunk = operation.plan->chunks[c];
    if (!chunk.contributes) continue;
    const Bytes expected =
        frame_on_host(operation.plan->codec, operation.dtype, operation.elements[c][operation.own_site],
                      chunk.contribution_options);
    const auto sealed = codec::seal_frame(chunk.contribution.room());
    ASSERT_TRUE(sealed.is_ok());
    ASSERT_TRUE(std::ranges::equal(chunk.contribution.room().first(*sealed), expected))
        << "contribution " << c;
  }
  receive_contributions(operation);
  ASSERT_TRUE(reduction.enqueue_sums(0, nullptr).is_ok());
  std::vector<Bytes> expected;
  for (std::size_t c = 0; c < operation.plan->chunks.size(); ++c) {
    const FrameChunk& chunk = operation.plan->chunks[c];
    std::vector<float> sums = sum_on_host(operation, c);
    if (chunk.result.data() != nullptr) {
      const Bytes result = frame_on_host(operation.plan->codec, DType::Float32,
                                         std::as_bytes(std::span(sums)), chunk.result_options);
      if (chunk.owns) {
        const auto sealed = codec::seal_frame(chunk.result.room());
        ASSERT_TRUE(sealed.is_ok());
        ASSERT_TRUE(std::ranges::equal(chunk.result.room().first(*sealed), result)) << "result " << c;
      } else {
        put(result, chunk.result);
      }
      ASSERT_TRUE(codec::decompress_accumulate(result, sums, Accumulate::Assign).is_ok());
    }
    expected.emplace_back(operation.elements[c][0].size());
    store_sums(operation.dtype, sums, expected.back().data());
  }
  ASSERT_TRUE(reduction.enqueue_results(nullptr).is_ok());
  ASSERT_TRUE(reduction.verdict().is_ok()) << reduction.verdict().to_string();
  for (std::size_t c = 0; c < expected.size(); ++c) {
    ASSERT_TRUE(operation.data[c]->bytes() == expected[c]) << "chunk " << c;
  }
}

constexpr std::size_t kSizes[] = {20000, 16384, 300, 4097};
constexpr Way kAll[] = {Way::Broadcast};
constexpr Way kOwners[] = {Way::Owned, Way::OfOther};

class CudaReduction : public ::testing::TestWithParam<std::string_view> {};

TEST_P(CudaReduction, test_results_have_the_bits_of_the_host) {
  for (const DType dtype : {DType::Float32, DType::BFloat16}) {
    for (const std::span<const Way> ways : {std::span<const Way>(kAll), std::span<const Way>(kOwners)}) {
      for (const int divisor : {1, 3}) {
        SCOPED_TRACE(std::string(core::to_string(dtype)) + (ways.size() == 1 ? ", all reduce" : ", owners") +
                     ", by " + std::to_string(divisor));
        Operation operation = make_operation(codec::spec_of(GetParam()), dtype, 3, divisor, ways, kSizes);
        expect_bits_of_host(operation);
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, CudaReduction,
                         ::testing::Values("int8", "int8:round=stochastic+huffman", "bit2:block=64", "fp16",
                                           "deadzone", "bitplanes", "lossless", "tiny", "loco"),
                         [](const auto& info) { return codec::case_name(info); });

TEST(CudaReductions, test_a_damaged_frame_is_told_with_its_site) {
  Operation operation = make_operation(codec::spec_of("int8"), DType::Float32, 3, 1, kAll, kSizes);
  cuda::BatchedReduction reduction(operation.plan, operation.dtype, operation.spans());
  const DeviceBytes device(reduction.device_bytes());
  const DeviceBytes pinned(reduction.pinned_bytes());
  ASSERT_TRUE(reduction.take_memory(device.data(), pinned.data()).is_ok());
  ASSERT_TRUE(reduction.enqueue_contributions(0, nullptr).is_ok());
  receive_contributions(operation);
  operation.plan->chunks[2].frames[2].data()[1] ^= std::byte{1};
  ASSERT_TRUE(reduction.enqueue_sums(0, nullptr).is_ok());
  ASSERT_TRUE(reduction.enqueue_results(nullptr).is_ok());
  EXPECT_EQ(reduction.verdict().code(), core::StatusCode::CorruptData);
  EXPECT_NE(reduction.verdict().message().find("site 2"), std::string::npos) << reduction.verdict().message();
  for (std::size_t c = 0; c < operation.data.size(); ++c) {
    EXPECT_TRUE(operation.data[c]->bytes() == operation.elements[c][operation.own_site]) << c;
  }
}

// Of an operation of so many bytes, in chunks of 1 MiB, none of which is there.
Operation counted_operation(const CodecSpec& spec, DType dtype, std::size_t sites, Way way,
                            std::size_t bytes) {
  constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
  alignas(16) static std::byte nowhere[64];
  const std::shared_ptr<std::byte> address(nowhere, [](std::byte*) {});
  Operation operation;
  operation.dtype = dtype;
  operation.sites = sites;
  operation.plan->codec = spec;
  operation.plan->own_site = operation.own_site;
  operation.plan->divisor = static_cast<int>(sites);
  const std::size_t elements = kChunkBytes / core::size_of(dtype);
  const auto room = [&](DType of) {
    return core::Buffer::around(address, codec::compress_bound(spec, of, elements));
  };
  for (std::size_t begin = 0; begin < bytes / core::size_of(dtype); begin += elements) {
    FrameChunk chunk;
    // Owners share the chunks.
    const bool is_own = begin / elements % sites == operation.own_site;
    const Way of_chunk = way == Way::Broadcast ? way : is_own ? Way::Owned : Way::OfOther;
    chunk.range = {begin, begin + elements};
    chunk.contributes = of_chunk != Way::Owned;
    chunk.reduces = of_chunk != Way::OfOther;
    chunk.owns = of_chunk == Way::Owned;
    chunk.receives = true;
    if (chunk.contributes) chunk.contribution = room(dtype);
    chunk.has_result = of_chunk != Way::Broadcast;
    if (chunk.has_result) chunk.result = room(DType::Float32);
    for (std::size_t s = 0; chunk.reduces && s < sites; ++s) {
      chunk.frames.push_back(s == operation.own_site && chunk.owns ? core::Buffer() : room(dtype));
    }
    operation.plan->chunks.push_back(std::move(chunk));
  }
  return operation;
}

// Of an operation whose memory nobody has.
std::optional<cuda::DeviceFeedback> counted_feedback(const Operation& operation, bool replaces) {
  static float nowhere[16];
  cuda::DeviceFeedback feedback;
  feedback.replaces = replaces;
  for (const FrameChunk& chunk : operation.plan->chunks) {
    const std::size_t count = chunk.range.size();
    feedback.chunks.push_back({{nowhere, count}, {nowhere, count}, {nowhere, count}});
  }
  return feedback;
}

std::size_t count_launches(const Operation& operation,
                           std::optional<cuda::DeviceFeedback> feedback = std::nullopt) {
  alignas(16) static std::byte nowhere[64];
  const std::vector<std::span<std::byte>> data(operation.plan->chunks.size(),
                                               std::span<std::byte>(nowhere, 0));
  cuda::BatchedReduction reduction(operation.plan, operation.dtype, data, std::move(feedback));
  const Bytes pinned(reduction.pinned_bytes() + 16);
  auto* const begin = const_cast<std::byte*>(pinned.data());
  simt::only_count(true);
  const std::size_t before = simt::launches();
  // The device's memory is an address that nobody looks at.
  EXPECT_TRUE(reduction
                  .take_memory(reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40),
                               begin + (-reinterpret_cast<std::uintptr_t>(begin) & 15))
                  .is_ok());
  for (std::uint32_t g = 0; g < operation.plan->groups; ++g) {
    EXPECT_TRUE(reduction.enqueue_contributions(g, nullptr).is_ok());
    EXPECT_TRUE(reduction.enqueue_sums(g, nullptr).is_ok());
  }
  EXPECT_TRUE(reduction.enqueue_results(nullptr).is_ok());
  simt::only_count(false);
  return simt::launches() - before;
}

// The same for an operation of one chunk that is coded frame by frame, as it is without batches.
std::size_t count_launches_of_a_chunk(const CodecSpec& spec, std::size_t sites) {
  constexpr std::size_t kElements = std::size_t{1} << 18;
  auto* const nowhere = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);
  const std::span frame(nowhere, codec::compress_bound(spec, DType::Float32, kElements));
  const std::span workspace(nowhere, codec::cuda::workspace_bytes(spec, DType::Float32, kElements,
                                                                  codec::cuda::Framing::SingleFrame));
  auto* const word = reinterpret_cast<std::uint64_t*>(nowhere);
  constexpr auto kFraming = codec::cuda::Framing::SingleFrame;
  constexpr auto kChecksums = codec::cuda::Checksums::Host;
  simt::only_count(true);
  const std::size_t before = simt::launches();
  EXPECT_TRUE(codec::cuda::compress_payload(spec, DType::Float32, nowhere, kElements, frame,
                                            {.framing = kFraming, .checksums = kChecksums}, workspace, word,
                                            nullptr)
                  .is_ok());
  for (std::size_t s = 0; s < sites; ++s) {
    EXPECT_TRUE(codec::cuda::decompress_payload(spec, DType::Float32, frame, nowhere, kElements,
                                                codec::Sink::AddToFloat32, {kFraming, kChecksums, true},
                                                workspace, word, nullptr)
                    .is_ok());
  }
  const cuda::SumPiece piece[] = {{reinterpret_cast<float*>(nowhere), nullptr, kElements}};
  EXPECT_TRUE(cuda::finish_sums(DType::Float32, piece, static_cast<int>(sites), {}, nullptr).is_ok());
  simt::only_count(false);
  return simt::launches() - before;
}

struct Bound {
  std::string_view codec;
  std::size_t all_reduce;     // of two sites, where every rank reduces for itself
  std::size_t owners;         // where each chunk has an owner
  std::size_t feedback;       // every rank for itself, with error feedback
  std::size_t owns_feedback;  // owners, with error feedback
  std::size_t by_chunks;      // every rank for itself, without batches, per chunk
};

// The counts of benchmarks/results/gpu-launches.md.
constexpr Bound kBounds[] = {{"int8", 10, 19, 10, 19, 11},
                             {"int8+huffman", 19, 37, 19, 37, 22},
                             {"bit1", 10, 19, 10, 19, 11},
                             {"fp16", 9, 17, 9, 17, 9},
                             {"fp16+huffman", 17, 33, 19, 37, 19},
                             {"deadzone+huffman", 22, 43, 22, 43, 27},
                             {"bitplanes+huffman", 30, 59, 30, 59, 42},
                             {"lossless", 21, 41, 22, 43, 26},
                             {"tiny", 27, 51, 27, 51, 33},
                             {"loco", 19, 35, 19, 35, 23}};

TEST(CudaLaunches, test_their_number_does_not_grow_with_the_operation) {
  for (const Bound& bound : kBounds) {
    const CodecSpec spec = codec::spec_of(bound.codec);
    EXPECT_EQ(count_launches_of_a_chunk(spec, 2), bound.by_chunks) << bound.codec;
    for (const std::size_t mebibytes : {2, 64, 1024}) {
      SCOPED_TRACE(std::string(bound.codec) + ", MiB: " + std::to_string(mebibytes));
      const Operation shared = counted_operation(spec, DType::Float32, 2, Way::Broadcast, mebibytes << 20);
      const Operation owned = counted_operation(spec, DType::Float32, 2, Way::Owned, mebibytes << 20);
      EXPECT_EQ(count_launches(shared), bound.all_reduce);
      EXPECT_EQ(count_launches(owned), bound.owners);
      EXPECT_EQ(count_launches(shared, counted_feedback(shared, false)), bound.feedback);
      EXPECT_EQ(count_launches(owned, counted_feedback(owned, false)), bound.owns_feedback);
      EXPECT_EQ(count_launches(shared, counted_feedback(shared, true)), bound.feedback + 1);
    }
  }
}

// Each group takes the kernels of an operation; those that end the feedback are for all.
TEST(CudaLaunches, test_each_group_takes_as_many) {
  for (const Bound& bound : kBounds) {
    SCOPED_TRACE(bound.codec);
    for (const std::uint32_t groups : {4u, 8u}) {
      Operation operation = counted_operation(codec::spec_of(bound.codec), DType::Float32, 2, Way::Broadcast,
                                              std::size_t{64} << 20);
      operation.plan->groups = groups;
      const std::size_t chunks = operation.plan->chunks.size();
      for (std::size_t c = 0; c < chunks; ++c) {
        operation.plan->chunks[c].group = static_cast<std::uint32_t>(c * groups / chunks);
      }
      EXPECT_EQ(count_launches(operation), groups * bound.all_reduce);
      EXPECT_EQ(count_launches(operation, counted_feedback(operation, false)),
                groups * (bound.feedback - 1) + 1);
    }
  }
}

// As where the driver has no more memory: the step that it belongs to says so.
TEST(CudaReductions, test_each_launch_that_is_refused_is_told) {
  const CodecSpec spec = codec::spec_of("bitplanes+huffman");
  for (const Way way : {Way::Broadcast, Way::Owned}) {
    const Operation operation = counted_operation(spec, DType::Float32, 2, way, std::size_t{2} << 20);
    const std::vector<std::span<std::byte>> data(operation.plan->chunks.size());
    cuda::BatchedReduction reduction(operation.plan, operation.dtype, data,
                                     counted_feedback(operation, true));
    const DeviceBytes pinned(reduction.pinned_bytes());
    ASSERT_TRUE(
        reduction.take_memory(reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40), pinned.data()).is_ok());
    simt::only_count(true);
    for (int refused = 0;; ++refused) {
      int& until_refusal = codec::cuda::kernels_seen().until_refusal;
      until_refusal = refused;
      const core::Status steps[] = {reduction.enqueue_contributions(0, nullptr),
                                    reduction.enqueue_sums(0, nullptr), reduction.enqueue_results(nullptr)};
      const auto told = std::ranges::count(steps, core::StatusCode::Driver, &core::Status::code);
      const bool was_refused = until_refusal < 0;
      until_refusal = -1;
      EXPECT_EQ(told, was_refused ? 1 : 0) << refused;
      if (was_refused) continue;
      EXPECT_EQ(refused, way == Way::Broadcast ? 31 : 60);
      break;
    }
    simt::only_count(false);
  }
}

struct Moved {
  std::string_view codec;
  double most;  // of the tensor's bytes
};

// Over the bus, of what an all-reduce of 1 MiB of normal numbers with error feedback has in pinned memory:
// everything that the device and the host hand to each other.
double moved_over_bus(std::string_view codec) {
  constexpr std::size_t kElements[] = {std::size_t{1} << 18};
  simt::BusWatch bus(std::size_t{8} << 20);
  const core::BufferPool pinned(0, bus.source());
  Operation operation = make_operation(codec::spec_of(codec), DType::Float32, 2, 2, kAll, kElements, pinned);
  const DeviceBytes residual(Bytes(4 * kElements[0]));
  const DeviceBytes next(4 * kElements[0]);
  const auto floats = [&](const DeviceBytes& bytes) {
    return std::span(reinterpret_cast<float*>(bytes.data()), kElements[0]);
  };
  cuda::DeviceFeedback feedback;
  feedback.chunks.push_back({floats(residual), floats(next), {}});
  cuda::BatchedReduction reduction(operation.plan, operation.dtype, operation.spans(), feedback);
  const DeviceBytes device(reduction.device_bytes());
  EXPECT_TRUE(reduction.take_memory(device.data(), bus.source().allocate(reduction.pinned_bytes())).is_ok());
  bus.watch([&] { EXPECT_TRUE(reduction.enqueue_contributions(0, nullptr).is_ok()); });
  receive_contributions(operation);
  reduction.exchanged();
  bus.watch([&] {
    EXPECT_TRUE(reduction.enqueue_sums(0, nullptr).is_ok());
    EXPECT_TRUE(reduction.enqueue_results(nullptr).is_ok());
  });
  EXPECT_TRUE(reduction.verdict().is_ok());
  EXPECT_TRUE(reduction.committed());
  const double raw = 4.0 * static_cast<double>(kElements[0]);
  // The frame that goes out was written, the one that came was read.
  const auto header = codec::parse_frame(operation.plan->chunks[0].frames[0].room());
  EXPECT_TRUE(header.is_ok());
  const double frame = header.is_ok() ? static_cast<double>(codec::frame_bytes(*header)) : 0;
  EXPECT_GT(static_cast<double>(bus.bytes_written()), 0.99 * frame);
  EXPECT_GT(static_cast<double>(bus.bytes_read()), 0.99 * frame);
  return static_cast<double>(bus.bytes_written() + bus.bytes_read()) / raw;
}

// The numbers of benchmarks/results/gpu-launches.md.
TEST(CudaBus, test_an_all_reduce_with_error_feedback_moves_frames_alone) {
  if (!simt::BusWatch::is_possible()) GTEST_SKIP() << "single steps of this processor are not known";
  for (const Moved& moved : {Moved{"balanced", 0.163}, Moved{"small", 0.128}, Moved{"tiny", 0.011},
                             Moved{"loco", 0.018}, Moved{"int8", 0.507}, Moved{"deadzone+huffman", 0.164}}) {
    EXPECT_LE(moved_over_bus(moved.codec), moved.most) << moved.codec;
  }
}

// Of the device, for two sites: what benchmarks/results/gpu-launches.md says, in bytes per element.
TEST(CudaLaunches, test_memory_that_a_batch_takes) {
  struct Most {
    std::string_view codec;
    double bytes;
  };
  for (const Most& most : {Most{"int8", 5.1}, Most{"int8+huffman", 7.6}, Most{"fp16+huffman", 8.1},
                           Most{"deadzone+huffman", 10.3}, Most{"bitplanes+huffman", 17.4},
                           Most{"lossless", 15.9}, Most{"tiny", 8.1}, Most{"loco", 4.3}}) {
    const std::size_t bytes = std::size_t{64} << 20;
    const Operation operation =
        counted_operation(codec::spec_of(most.codec), DType::Float32, 2, Way::Broadcast, bytes);
    const std::vector<std::span<std::byte>> data(operation.plan->chunks.size());
    const cuda::BatchedReduction reduction(operation.plan, operation.dtype, data);
    EXPECT_LE(static_cast<double>(reduction.device_bytes()) / static_cast<double>(bytes / 4), most.bytes)
        << most.codec;
  }
}

}  // namespace
}  // namespace geocomm::collective
