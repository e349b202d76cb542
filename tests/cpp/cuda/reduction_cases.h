// Operations of BatchedReduction for tests: with data, or only to be counted.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "collective/cuda/batched_reduction.h"
#include "core/buffer.h"
#include "cuda_cases.h"
#include "simt.h"

namespace geocomm::collective {

using codec::Accumulate;
using codec::Bytes;
using codec::CodecSpec;
using codec::DeviceBytes;
using core::DType;

// Who reduces a chunk: every rank, for itself; this rank, for all; another one.
enum class ReducedBy { Broadcast, Owned, OfOther };

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

inline void cut(Operation& operation, std::uint32_t groups) {
  operation.plan->groups = groups;
  const std::size_t chunks = operation.plan->chunks.size();
  for (std::size_t c = 0; c < chunks; ++c) {
    operation.plan->chunks[c].group = static_cast<std::uint32_t>(c * groups / chunks);
  }
}

// Of an operation of so many bytes, in chunks of 1 MiB, none of which is there.
inline Operation counted_operation(const CodecSpec& spec, DType dtype, std::size_t sites, ReducedBy way,
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
    const ReducedBy of_chunk = way == ReducedBy::Broadcast ? way
                               : is_own                    ? ReducedBy::Owned
                                                           : ReducedBy::OfOther;
    chunk.range = {begin, begin + elements};
    chunk.contributes = of_chunk != ReducedBy::Owned;
    chunk.reduces = of_chunk != ReducedBy::OfOther;
    chunk.owns = of_chunk == ReducedBy::Owned;
    chunk.receives = true;
    if (chunk.contributes) chunk.contribution = room(dtype);
    chunk.has_result = of_chunk != ReducedBy::Broadcast;
    if (chunk.has_result) chunk.result = room(DType::Float32);
    for (std::size_t s = 0; chunk.reduces && s < sites; ++s) {
      chunk.frames.push_back(s == operation.own_site && chunk.owns ? core::Buffer() : room(dtype));
    }
    operation.plan->chunks.push_back(std::move(chunk));
  }
  return operation;
}

// Of an operation whose memory nobody has.
inline std::optional<cuda::DeviceFeedback> counted_feedback(const Operation& operation, bool replaces) {
  static float nowhere[16];
  cuda::DeviceFeedback feedback;
  feedback.replaces = replaces;
  for (const FrameChunk& chunk : operation.plan->chunks) {
    const std::size_t count = chunk.range.size();
    feedback.chunks.push_back({{nowhere, count}, {nowhere, count}, {nowhere, count}});
  }
  return feedback;
}

inline std::size_t count_launches(const Operation& operation,
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

}  // namespace geocomm::collective
