// Reductions over sites on the device, all chunks at once: bits of the host.
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
#include "reduction_cases.h"
#include "simt.h"

namespace geocomm::collective {
namespace {

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
                         std::span<const ReducedBy> ways, std::span<const std::size_t> sizes,
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
    const ReducedBy way = ways[c % ways.size()];
    FrameChunk chunk;
    chunk.range = {begin, begin + sizes[c]};
    begin += sizes[c];
    chunk.contributes = way != ReducedBy::Owned;
    chunk.reduces = way != ReducedBy::OfOther;
    chunk.owns = way == ReducedBy::Owned;
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
    chunk.has_result = way != ReducedBy::Broadcast;
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
  const std::uint32_t groups = operation.plan->groups;
  for (std::uint32_t g = 0; g < groups; ++g) {
    ASSERT_TRUE(reduction.enqueue_contributions(g, nullptr).is_ok());
  }
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
  for (std::uint32_t g = 0; g < groups; ++g) ASSERT_TRUE(reduction.enqueue_sums(g, nullptr).is_ok());
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
constexpr ReducedBy kAll[] = {ReducedBy::Broadcast};
constexpr ReducedBy kOwners[] = {ReducedBy::Owned, ReducedBy::OfOther};

class CudaReduction : public ::testing::TestWithParam<std::string_view> {};

TEST_P(CudaReduction, test_results_have_the_bits_of_the_host) {
  for (const DType dtype : {DType::Float32, DType::BFloat16}) {
    for (const std::span<const ReducedBy> ways :
         {std::span<const ReducedBy>(kAll), std::span<const ReducedBy>(kOwners)}) {
      for (const int divisor : {1, 3}) {
        SCOPED_TRACE(std::string(core::to_string(dtype)) + (ways.size() == 1 ? ", all reduce" : ", owners") +
                     ", by " + std::to_string(divisor));
        Operation operation = make_operation(codec::spec_of(GetParam()), dtype, 3, divisor, ways, kSizes);
        if (divisor == 3) cut(operation, 2);
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
        counted_operation(codec::spec_of(most.codec), DType::Float32, 2, ReducedBy::Broadcast, bytes);
    const std::vector<std::span<std::byte>> data(operation.plan->chunks.size());
    const cuda::BatchedReduction reduction(operation.plan, operation.dtype, data);
    EXPECT_LE(static_cast<double>(reduction.device_bytes()) / static_cast<double>(bytes / 4), most.bytes)
        << most.codec;
  }
}

}  // namespace
}  // namespace geocomm::collective
