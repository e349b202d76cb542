// The payload of a Loco frame: LocoHead | a record per chunk | the values of raw chunks. docs/spec/codecs.md
// has the table. All sizes follow from the head, but that of the raw chunks.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "codec/quantizers/select/top_k_select.h"
#include "codec/spec/codec_spec.h"

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

// The places of a chunk in the code of Elias (1974) and Fano (1971), one vector of bits that fills whole
// bytes: the low bits of each place, then what is above them in unary: bit (place >> low_bits) + index is 1.
// There are no fewer bytes for more places.
struct LocoPlaces {
  std::size_t length;  // elements of the chunk, 1 to kTopKChunk
  std::size_t count;   // places, 1 to length

  // The most with which count << low_bits <= length.
  constexpr unsigned low_bits() const { return static_cast<unsigned>(std::bit_width(length / count)) - 1; }
  // Of the unary part; the bits before it are count * low_bits().
  constexpr std::size_t high_bits() const { return count + ((length - 1) >> low_bits()); }
  constexpr std::size_t bytes() const { return (count * low_bits() + high_bits() + 7) / 8; }
};
// Two bits each.
constexpr std::size_t loco_code_bytes(std::size_t count) {
  return (count + 3) / 4;
}
// A record: LocoLevels | places | codes.
constexpr std::size_t loco_record_bytes(const LocoPlaces& places) {
  return sizeof(LocoLevels) + places.bytes() + loco_code_bytes(places.count);
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
  constexpr LocoPlaces places(std::size_t chunk) const { return {length(chunk), count(chunk)}; }
  // Of the chunks before this one, which are whole.
  constexpr std::size_t first_value(std::size_t chunk) const { return chunk * k_; }
  // Of the whole frame.
  constexpr std::size_t values() const {
    return chunks() == 0 ? 0 : first_value(chunks() - 1) + count(chunks() - 1);
  }

  constexpr std::size_t record_at(std::size_t chunk) const {
    return sizeof(LocoHead) + chunk * loco_record_bytes({kTopKChunk, k_});
  }
  // Of head and records, behind which raw chunks have their values.
  constexpr std::size_t bytes() const {
    if (chunks() == 0) return sizeof(LocoHead);
    return record_at(chunks() - 1) + loco_record_bytes(places(chunks() - 1));
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
