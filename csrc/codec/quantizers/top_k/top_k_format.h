// The payload of a TopK frame: TopKHead | index plane | values. docs/spec/codecs.md has the table.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "codec/entropy/plane.h"
#include "codec/frames/bitmap.h"
#include "codec/frames/frame.h"
#include "codec/spec/codec_spec.h"

namespace geocomm::codec {

// How the places of the chosen elements are written. On the wire.
enum class IndexMode : std::uint8_t {
  Gaps = 0,   // per element the gap to the one before it, less one: bytes, 255 means 255 and read on
  Bitmap = 1  // a bit per element of the frame
};
inline constexpr std::uint32_t kLongGap = 255;

struct TopKHead {
  std::uint32_t count;        // chosen elements
  std::uint32_t index_bytes;  // of the index plane, before its stage
  std::uint8_t index_mode;    // IndexMode
  std::uint8_t values;        // Values
  std::uint16_t reserved;     // 0
};
static_assert(sizeof(TopKHead) == 12);

inline TopKHead read_top_k_head(const std::byte* payload) {
  TopKHead head;
  std::memcpy(&head, payload, sizeof(head));
  return head;
}

// The mode an encoder takes: a bitmap from a twelfth of the elements on.
constexpr IndexMode index_mode_of(std::size_t count, std::size_t elements) {
  return 12 * std::uint64_t{count} > elements ? IndexMode::Bitmap : IndexMode::Gaps;
}
// Worst case of the index plane of a frame in which up to `count` elements are chosen.
constexpr std::size_t max_index_bytes(std::size_t count, std::size_t elements) {
  const std::size_t gaps = count + elements / kLongGap;
  return std::max(gaps, bitmap_bytes(elements));
}

}  // namespace geocomm::codec
