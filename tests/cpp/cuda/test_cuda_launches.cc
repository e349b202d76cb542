// How many kernels a reduction on the device takes, and how much of its memory: counted, with nothing run.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "codec/cuda/launch.h"
#include "collective/cuda/batched_reduction.h"
#include "cuda_cases.h"
#include "reduction_cases.h"
#include "simt.h"

namespace geocomm::collective {
namespace {

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
                             {"tiny", 26, 49, 26, 49, 32},
                             {"loco", 18, 33, 18, 33, 22}};

TEST(CudaLaunches, test_their_number_does_not_grow_with_the_operation) {
  for (const Bound& bound : kBounds) {
    const CodecSpec spec = codec::spec_of(bound.codec);
    EXPECT_EQ(count_launches_of_a_chunk(spec, 2), bound.by_chunks) << bound.codec;
    for (const std::size_t mebibytes : {2, 64, 1024}) {
      SCOPED_TRACE(std::string(bound.codec) + ", MiB: " + std::to_string(mebibytes));
      const Operation shared =
          counted_operation(spec, DType::Float32, 2, ReducedBy::Broadcast, mebibytes << 20);
      const Operation owned = counted_operation(spec, DType::Float32, 2, ReducedBy::Owned, mebibytes << 20);
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
      Operation operation = counted_operation(codec::spec_of(bound.codec), DType::Float32, 2,
                                              ReducedBy::Broadcast, std::size_t{64} << 20);
      cut(operation, groups);
      EXPECT_EQ(count_launches(operation), groups * bound.all_reduce);
      EXPECT_EQ(count_launches(operation, counted_feedback(operation, false)),
                groups * (bound.feedback - 1) + 1);
    }
  }
}

// As an operation of so many bytes is cut.
TEST(CudaLaunches, test_groups_are_so_large_that_launches_are_few) {
  for (const Bound& bound : kBounds) {
    const CodecSpec spec = codec::spec_of(bound.codec);
    EXPECT_EQ(cuda::launches_of_group(spec), bound.all_reduce) << bound.codec;
    for (const std::size_t mebibytes : {2, 64, 128, 256, 1024}) {
      SCOPED_TRACE(std::string(bound.codec) + ", MiB: " + std::to_string(mebibytes));
      Operation operation = counted_operation(spec, DType::Float32, 2, ReducedBy::Broadcast, mebibytes << 20);
      cut_groups(*operation.plan, DType::Float32, {cuda::group_bytes, true});
      const std::size_t launches = count_launches(operation);
      EXPECT_EQ(launches, operation.plan->groups * bound.all_reduce);
      EXPECT_LE(launches, std::max<std::size_t>(30, mebibytes / 4));
      EXPECT_TRUE(mebibytes != 64 || launches <= 30) << launches;
      EXPECT_TRUE(mebibytes != 1024 || operation.plan->groups == 8) << operation.plan->groups;
    }
  }
}

TEST(CudaLaunches, test_groups_know_their_launches) {
  for (const std::string_view codec :
       {"int4", "bit2", "bf16", "deadzone+none", "bitplanes+none", "bf16+huffman"}) {
    const CodecSpec spec = codec::spec_of(codec);
    const Operation operation =
        counted_operation(spec, DType::Float32, 2, ReducedBy::Broadcast, std::size_t{2} << 20);
    EXPECT_EQ(cuda::launches_of_group(spec), count_launches(operation)) << codec;
  }
}

// But for its own frames, an operation takes memory for one group at a time: floats of 16-bit tensors, too.
TEST(CudaReductions, test_memory_of_the_device_is_that_of_one_group) {
  for (const std::string_view codec : {"int8", "balanced"}) {
    const CodecSpec spec = codec::spec_of(codec);
    Operation operation =
        counted_operation(spec, DType::BFloat16, 2, ReducedBy::Broadcast, std::size_t{64} << 20);
    std::size_t frames = 0;
    for (const FrameChunk& chunk : operation.plan->chunks) {
      frames += codec::compress_bound(spec, DType::BFloat16, chunk.range.size());
    }
    const std::vector<std::span<std::byte>> data(operation.plan->chunks.size());
    const auto beside_frames = [&] {
      return cuda::BatchedReduction(operation.plan, operation.dtype, data).device_bytes() - frames;
    };
    const std::size_t whole = beside_frames();
    cut(operation, 8);
    EXPECT_LE(beside_frames(), whole / 8 * 11 / 10) << codec;
  }
}

// As where the driver has no more memory: the step that it belongs to says so.
TEST(CudaReductions, test_each_launch_that_is_refused_is_told) {
  const CodecSpec spec = codec::spec_of("bitplanes+huffman");
  for (const ReducedBy way : {ReducedBy::Broadcast, ReducedBy::Owned}) {
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
      EXPECT_EQ(refused, way == ReducedBy::Broadcast ? 31 : 60);
      break;
    }
    simt::only_count(false);
  }
}

}  // namespace
}  // namespace geocomm::collective
