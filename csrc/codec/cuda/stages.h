// Families whose kernels are in more than one file: these, in the order in which they run, and what they work
// in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/cuda/codec_family.h"
#include "codec/cuda/kernels.h"
#include "codec/cuda/payload_plan.h"
#include "codec/cuda/section_space.h"
#include "codec/frames/elements.h"
#include "codec/quantizers/top_k/top_k_format.h"
#include "codec/quantizers/top_k/top_k_two_level.h"
#include "codec/spec/codec_spec.h"
#include "core/dtype.h"
#include "core/status.h"

namespace geocomm::codec::cuda {

// DeadZone and BitPlanes on the device. A payload is steps | bitmap | codes that are not zero | raw elements;
// of BitPlanes the codes are signs, bits of magnitudes of two, three and four or more, and magnitudes. Blocks
// pack their codes on their own; a scan over the frame then says where each block's begin.

// Those from kSigns to kFours are empty in DeadZone.
enum DeadZoneSection : std::uint32_t {
  kSteps,
  kBitmap,
  kSigns,
  kTwos,
  kThrees,
  kFours,
  kCodes,
  kRawElements,
  kDeadZoneSections
};

inline constexpr std::uint32_t kMaxStep = 0x7BFF;  // as bf16: any code times it is finite

// What a block has of the frame's codes and raw elements.
struct DeadZoneRun {
  std::uint32_t codes;
  std::uint32_t codes_at;  // codes of the blocks before
  std::uint32_t raw_at;    // elements of the raw blocks before
};

struct DeadZoneSpace {
  SectionSpace sections;
  DeadZoneRun* runs;           // of every block of the payload
  std::uint8_t* packed;        // encoding: each block's codes, where its elements would be
  std::uint64_t packed_bytes;  // of a frame
  std::uint32_t* counts;       // decoding: of every frame, codes that each of the sections tells of

  GEOCOMM_HOST_DEVICE DeadZoneRun& run(const PayloadPlan& plan, std::uint64_t frame,
                                       std::uint32_t block) const {
    return runs[plan.slot_of_block(frame, block)];
  }
  GEOCOMM_HOST_DEVICE std::uint32_t& count(std::uint64_t frame, std::uint32_t section) const {
    return counts[frame * kDeadZoneSections + section];
  }
};

// Encoding: names all sections, and brings the codes together.
core::Status gather_dead_zone_codes(const ElementEncode& args, const DeadZoneSpace& space, Stream stream);
// BitPlanes: takes the codes apart.
core::Status split_codes(const ElementEncode& args, const DeadZoneSpace& space, Stream stream);
// The sections have been placed: raw blocks, and their residuals.
core::Status write_dead_zone_raw(core::DType dtype, const ElementEncode& args, const DeadZoneSpace& space,
                                 Stream stream);

// Decoding. Finds steps and bitmap.
core::Status walk_dead_zone_blocks(const Decode& args, const DeadZoneSpace& space, Stream stream);
// These are there: checks both, and finds the runs and the rest; with planes, signs and bits of twos.
core::Status check_dead_zone_blocks(const Decode& args, const DeadZoneSpace& space, bool has_planes,
                                    Stream stream);
// BitPlanes: finds the rest, and puts the codes together.
core::Status find_codes(const DecodeRun& run, const DeadZoneSpace& space);

// What TopK's kernels work in beside its frames' sections: in one struct per direction every address,
// computed on the host and handed to kernels by value.

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

// The kernels of TopK, in the order in which they run.

inline constexpr unsigned kTopKThreads = 256;  // of most kernels
inline constexpr unsigned kTopKWarps = kTopKThreads / 32;

struct TopKEncode {
  const std::uint8_t* src;
  ResidualView residual;
  PayloadPlan plan;
  TopKEncodeSpace space;
  Values form;
};

// Each chunk chooses; the residual becomes v.
core::Status choose_elements(core::DType dtype, const TopKEncode& args, Stream stream);
// Heads and indices; values without gaps between chunks.
core::Status write_places(const TopKEncode& args, Stream stream);

struct TopKDecode {
  Decode frames;
  TopKDecodeSpace space;
};

// Does nothing once there is a verdict, as all that follows.
// Find: the head; what it tells, which is all but raw blocks; these.
core::Status expect_heads(const TopKDecode& args, Stream stream);
core::Status read_heads(const TopKDecode& args, Stream stream);
core::Status check_scales(const TopKDecode& args, Stream stream);
// Whether places lie in their frame and are as many as said.
core::Status check_places(const TopKDecode& args, Stream stream);
// Where nothing is added, zeros everywhere; and frames of None. All has been checked, as in what follows.
core::Status fill_unchosen(const Decode& args, Stream stream);
core::Status put_chosen(const TopKDecode& args, Stream stream);

}  // namespace geocomm::codec::cuda
