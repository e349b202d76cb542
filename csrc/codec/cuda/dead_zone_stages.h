// DeadZone and BitPlanes on the device. A payload is steps | bitmap | codes that are not zero | raw elements;
// of BitPlanes the codes are signs, bits of magnitudes of two, three and four or more, and magnitudes. Blocks
// pack their codes on their own; a scan over the frame then says where each block's begin.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/cuda/codec_family.h"
#include "codec/cuda/kernels.h"
#include "codec/cuda/section_space.h"
#include "core/dtype.h"
#include "core/status.h"

namespace geocomm::codec::cuda {

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

// Encoding: steps, bitmap, packed codes and their counts; the residuals of all blocks but the raw ones.
core::Status quantize_dead_zone(core::DType dtype, float step, const ElementEncode& args,
                                const DeadZoneSpace& space, Stream stream);
// Names all sections, and brings the codes together.
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
// All is there.
core::Status decode_dead_zone(const Decode& args, const DeadZoneSpace& space, Stream stream);

}  // namespace geocomm::codec::cuda
