// The payload of a Loco frame: LocoHead | a record per chunk | the values of raw chunks. docs/spec/codecs.md
// has the table. All sizes follow from the head, but that of the raw chunks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "codec/codec_spec.h"
#include "codec/top_k_format.h"

namespace geocomm::codec {

struct LocoHead {
  std::uint16_t k;         // elements of a whole chunk, 1 to 2048
  std::uint16_t reserved;  // 0
};
static_assert(sizeof(LocoHead) == 4);
inline constexpr std::size_t kLocoMaxK = kTopKChunk / 2;

// The two magnitudes of a chunk, bf16. low = kRawScale: the chunk is raw.
struct LocoLevels {
  std::uint16_t low;
  std::uint16_t high;
};
static_assert(sizeof(LocoLevels) == 4);

// A record: LocoLevels | places, 12 bits each | codes, 2 bits each. Both fill whole bytes.
constexpr std::size_t loco_place_bytes(std::size_t count) {
  return (3 * count + 1) / 2;
}
constexpr std::size_t loco_code_bytes(std::size_t count) {
  return (count + 3) / 4;
}
constexpr std::size_t loco_record_bytes(std::size_t count) {
  return sizeof(LocoLevels) + loco_place_bytes(count) + loco_code_bytes(count);
}

class LocoLayout {
 public:
  // `k` is from 1 to kLocoMaxK.
  constexpr LocoLayout(std::size_t k, std::size_t elements) : k_(k), elements_(elements) {}

  constexpr std::size_t k() const { return k_; }
  constexpr std::size_t chunks() const { return (elements_ + kTopKChunk - 1) / kTopKChunk; }
  // Elements of a chunk, and how many of them it gives.
  constexpr std::size_t length(std::size_t chunk) const {
    return std::min<std::size_t>(kTopKChunk, elements_ - chunk * kTopKChunk);
  }
  constexpr std::size_t count(std::size_t chunk) const { return share_of(k_, length(chunk)); }
  // Of the chunks before this one, which are whole.
  constexpr std::size_t first_value(std::size_t chunk) const { return chunk * k_; }
  // Of the whole frame.
  constexpr std::size_t values() const {
    return chunks() == 0 ? 0 : first_value(chunks() - 1) + count(chunks() - 1);
  }

  constexpr std::size_t record_at(std::size_t chunk) const {
    return sizeof(LocoHead) + chunk * loco_record_bytes(k_);
  }
  // Of head and records, behind which raw chunks have their values.
  constexpr std::size_t bytes() const {
    if (chunks() == 0) return sizeof(LocoHead);
    return record_at(chunks() - 1) + loco_record_bytes(count(chunks() - 1));
  }
  // With all chunks raw.
  constexpr std::size_t most_bytes() const { return bytes() + values() * sizeof(float); }

 private:
  std::size_t k_;
  std::size_t elements_;
};

// That of an encoder.
inline LocoLayout loco_layout(const CodecSpec& spec, std::size_t elements) {
  return {std::clamp<std::size_t>(spec.k, 1, kLocoMaxK), elements};
}

}  // namespace geocomm::codec
