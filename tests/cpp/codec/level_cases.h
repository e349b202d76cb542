// Frames that every CPU level must give alike: those of Scalar are the reference.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "codec_cases.h"
#include "core/cpu.h"
#include "core/str.h"
#include "plane_cases.h"

namespace geocomm::codec {

// All that one frame gives: its bytes, the new residual, and what each sink makes of it.
struct FrameResult {
  Bytes frame;
  Bytes residual;
  Bytes elements;
  std::vector<float> assigned;
  std::vector<float> added;
};

// `offset`: how far from their alignment all buffers lie.
inline FrameResult run_frame(const CodecSpec& spec, DType dtype, std::span<const std::byte> src,
                             const ErrorFeedback& feedback, std::size_t offset) {
  const auto shifted = [offset](std::span<const std::byte> bytes) {
    Bytes moved(offset + bytes.size());
    if (!bytes.empty()) std::memcpy(moved.data() + offset, bytes.data(), bytes.size());
    return moved;
  };
  const std::size_t elements = src.size() / core::size_of(dtype);
  FrameResult result;
  const Bytes moved_src = shifted(src);
  if (feedback.is_on()) {
    result.residual = shifted({feedback.residual, elements * core::size_of(feedback.dtype)});
  }
  CompressOptions options;
  options.feedback = feedback;
  if (feedback.is_on()) options.feedback.residual = result.residual.data() + offset;

  Bytes dst(offset + compress_bound(spec, dtype, elements));
  const auto room = std::span(dst).subspan(offset);
  const auto size = compress(spec, dtype, std::span(moved_src).subspan(offset), room, options);
  EXPECT_TRUE(size.is_ok()) << size.status().to_string();
  const auto frame = room.first(size.is_ok() ? *size : 0);
  result.frame.assign(frame.begin(), frame.end());

  Bytes out(offset + src.size());
  EXPECT_TRUE(decompress(frame, std::span(out).subspan(offset)).is_ok());
  result.elements.assign(out.begin() + static_cast<std::ptrdiff_t>(offset), out.end());
  result.assigned = accumulated(frame, elements);
  result.added = gaussian(elements, 2.0f, 77);
  EXPECT_TRUE(decompress_accumulate(frame, result.added, Accumulate::Add).is_ok());
  return result;
}

// Every level, aligned and at some offset from 1 to 3, gives the bytes of Scalar.
inline void expect_same_at_every_level(const CodecSpec& spec, DType dtype, std::span<const std::byte> src,
                                       const ErrorFeedback& feedback = {}) {
  FrameResult expected;
  at_every_cpu_level([&] {
    for (const std::size_t offset : {std::size_t{0}, 1 + src.size() / core::size_of(dtype) % 3}) {
      FrameResult result = run_frame(spec, dtype, src, feedback, offset);
      result.residual.erase(
          result.residual.begin(),
          result.residual.begin() + static_cast<std::ptrdiff_t>(result.residual.empty() ? 0 : offset));
      if (core::cpu_level() == core::CpuLevel::Scalar && offset == 0) {
        expected = std::move(result);
        continue;
      }
      const std::string what = core::str(spec.to_string(), " of ", core::to_string(dtype), ", ", src.size(),
                                         " bytes at offset ", offset);
      ASSERT_EQ(result.frame, expected.frame) << what;
      ASSERT_EQ(result.residual, expected.residual) << what;
      ASSERT_EQ(result.elements, expected.elements) << what;
      ASSERT_TRUE(same_bits(result.assigned, expected.assigned)) << what;
      ASSERT_TRUE(same_bits(result.added, expected.added)) << what;
    }
  });
}

}  // namespace geocomm::codec
