// Frames that consist of sections, one behind the other, whose sizes only the device knows: of some the bytes
// as they are, of others a plane that goes through the stage.
//
// A codec has the same sections in all of its frames; any may be empty. Encoding: its kernels put the content
// into the workspace and say how much it is, place_sections() (codec_family.h) does the rest. Decoding: the
// codec's kernels look at what is there and say the sizes of what follows, walk_sections() (sections.cuh)
// goes as far as these are known, decode_sections() undoes the stage, and so on to the last section.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/cuda/huffman_planes.h"
#include "codec/cuda/payload_plan.h"
#include "core/host_device.h"

namespace geocomm::codec::cuda {

inline constexpr unsigned kMostSections = 8;

struct SectionShape {
  std::uint32_t count = 0;
  std::uint32_t planes = 0;  // bit s: section s goes through the stage, if there is one
  // Largest content, in the largest frame. 0: none is kept in the workspace, since the codec itself writes
  // the section into the frame.
  std::uint32_t bytes[kMostSections] = {};
  bool is_received = false;  // the space is for decoding only, where the stage needs far less
};

// A section of one frame, in device memory.
struct Section {
  const std::uint8_t* content;  // its bytes before the stage; encoding: nullptr if the codec writes them
  std::uint32_t bytes;          // as many
  std::uint32_t at;             // in the frame's payload
  std::uint32_t coded_bytes;    // there
  std::uint32_t reserved;
};

struct SectionSpace {
  Section* sections = nullptr;
  std::uint8_t* contents = nullptr;
  std::uint64_t bytes_per_frame = 0;  // of contents
  std::uint32_t content_at[kMostSections] = {};
  std::uint32_t count = 0;
  std::uint32_t planes = 0;
  std::uint32_t frames = 0;
  bool has_stage = false;
  HuffmanSpace huffman = {};  // all frames' planes of one section, then those of the next

  GEOCOMM_HOST_DEVICE Section& section(std::uint64_t frame, std::uint32_t index) const {
    return sections[frame * count + index];
  }
  // Room in the workspace, aligned to 16; what lies behind the largest content is the codec's up to the next
  // multiple of 16.
  GEOCOMM_HOST_DEVICE std::uint8_t* content(std::uint64_t frame, std::uint32_t index) const {
    return contents + frame * bytes_per_frame + content_at[index];
  }
  // Encoding: so many bytes of that room are the section.
  GEOCOMM_HOST_DEVICE void name(std::uint64_t frame, std::uint32_t index, std::uint32_t bytes) const {
    section(frame, index) = {content(frame, index), bytes, 0, 0, 0};
  }
  GEOCOMM_HOST_DEVICE bool is_staged(std::uint32_t index) const {
    return has_stage && (planes >> index & 1u) != 0;
  }
  // In huffman.planes, of a section that is staged.
  GEOCOMM_HOST_DEVICE std::uint64_t plane(std::uint64_t frame, std::uint32_t index) const {
    std::uint32_t before = 0;
    for (std::uint32_t s = 0; s < index; ++s) before += planes >> s & 1u;
    return std::uint64_t{before} * frames + frame;
  }
};

SectionSpace take_section_space(const SectionShape& shape, const PayloadPlan& plan, bool has_stage,
                                SpaceCutter& room);

}  // namespace geocomm::codec::cuda
