// For tests of frames that no encoder wrote: their checksums made right, and that every decoder refuses them.
#pragma once

#include <gtest/gtest.h>

#include "codec_cases.h"
#include "level_cases.h"

namespace geocomm::codec {

// By every sink at every level, and an accumulation leaves no trace. The frame gets right checksums first.
inline void expect_forgery_refused(Bytes frame, std::size_t elements, DType dtype = DType::Float32) {
  reseal(frame);
  at_every_cpu_level([&] {
    Bytes out(elements * core::size_of(dtype));
    EXPECT_EQ(decompress(frame, out).code(), StatusCode::CorruptData);
    const auto before = gaussian(elements, 1.0f, 9);
    auto sum = before;
    EXPECT_EQ(decompress_accumulate(frame, sum, Accumulate::Add).code(), StatusCode::CorruptData);
    EXPECT_TRUE(same_bits(sum, before));
  });
}

// What the header says follows what was cut off or appended.
inline void set_payload_bytes(Bytes& frame) {
  FrameHeader header;
  std::memcpy(&header, frame.data(), sizeof(header));
  header.payload_bytes = frame.size() - sizeof(header);
  std::memcpy(frame.data(), &header, sizeof(header));
}

}  // namespace geocomm::codec
