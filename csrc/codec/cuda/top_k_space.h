// What TopK's kernels work in beside its frames' sections: in one struct per direction every address,
// computed on the host and handed to kernels by value.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/cuda/payload_plan.h"
#include "codec/cuda/section_space.h"
#include "codec/quantizers/top_k/top_k_format.h"
#include "codec/quantizers/top_k/top_k_two_level.h"
#include "codec/spec/codec_spec.h"

namespace geocomm::codec::cuda {

// The sections of a frame. Of those of values a form has some: Fp32 and Bf16 `Packed`; Bit2 all but the
// plane, and for scales its levels; Int8 all but `Packed`, which is the payload of an Int8 frame.
struct TopKSection {
  enum : std::uint32_t { Head, Index, Scales, Packed, Plane, Raw, Count };
};

// Int8 and Bit2 code values in blocks of as many.
inline constexpr std::uint32_t kValueBlock = kTwoLevelBlock;
static_assert(kValueBlock == kDefaultBlock);

GEOCOMM_HOST_DEVICE constexpr bool has_value_blocks(Values form) {
  return form == Values::Int8 || form == Values::Bit2;
}
// Bytes: of a block's scale; of the section `Packed`.
GEOCOMM_HOST_DEVICE constexpr std::uint32_t scale_bytes(Values form) {
  return form == Values::Bit2 ? 4 : form == Values::Int8 ? 2 : 0;
}
GEOCOMM_HOST_DEVICE constexpr std::uint32_t packed_bytes(Values form, std::uint32_t count) {
  return form == Values::Fp32   ? 4 * count
         : form == Values::Bf16 ? 2 * count
         : form == Values::Bit2 ? (count + 3) / 4
                                : 0;
}

// What a chunk of kTopKChunk elements gives. Places are those in the frame.
struct ChunkRecord {
  std::uint32_t count;
  std::uint32_t first_place;
  std::uint32_t last_place;
  std::uint32_t inner_bytes;  // of its gaps but the first
  // Known when all chunks of the frame are:
  std::uint32_t gaps_at;     // bytes of their gaps
  std::uint32_t next_place;  // one behind the last one chosen there, 0 where none was
  std::uint32_t reserved[2];
};

struct ChosenFrame {
  TopKHead head;
  std::uint32_t raw_values;  // in raw blocks of values
};

struct TopKEncodeSpace {
  std::uint32_t chunks_per_frame;
  std::uint32_t chunk_limit;       // chosen of a whole chunk, at most
  std::uint32_t values_per_frame;  // room
  std::uint32_t blocks_per_frame;  // of values
  ChunkRecord* chunks;
  ChosenFrame* frames;
  // Chosen elements, those of a frame's chunk c from c * chunk_limit on.
  float* values;
  std::uint32_t* places;
  SectionSpace sections;

  GEOCOMM_HOST_DEVICE std::uint64_t first_value(std::uint64_t frame) const {
    return frame * values_per_frame;
  }
};

// A part of an index: its places, and the elements that it passes over. Then: of the parts before it.
inline constexpr std::uint32_t kIndexTile = 4096;  // bytes
struct IndexTile {
  std::uint32_t places;
  std::uint32_t span;
};

struct TopKDecodeSpace {
  std::uint32_t tiles_per_frame;
  std::uint32_t blocks_per_frame;  // of values
  TopKHead* heads;                 // zeros where there is nothing to put
  IndexTile* tiles;
  std::uint32_t* raw_before;  // of a block of values: values in raw blocks before it
  SectionSpace sections;
};

TopKEncodeSpace take_top_k_encoding(const CodecSpec& spec, const PayloadPlan& plan, SpaceCutter& room);
TopKDecodeSpace take_top_k_decoding(const PayloadPlan& plan, SpaceCutter& room);

}  // namespace geocomm::codec::cuda
