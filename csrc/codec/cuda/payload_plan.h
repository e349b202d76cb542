// How a payload lies over its frames, and a workspace in parts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/cuda/cuda_codec.h"
#include "codec/frames/frame.h"
#include "codec/spec/codec_spec.h"
#include "core/dtype.h"
#include "core/host_device.h"

namespace geocomm::codec::cuda {

// Hands out memory from `room` on; from a room of nullptr it tells how much that would be.
class SpaceCutter {
 public:
  explicit SpaceCutter(void* room = nullptr) : begin_(reinterpret_cast<std::uintptr_t>(room)) {}

  template <typename T>
  T* take(std::uint64_t count) {
    T* memory = reinterpret_cast<T*>(begin_ + bytes_);
    bytes_ += aligned(count * sizeof(T));
    return memory;
  }
  std::size_t bytes() const { return bytes_; }
  std::uint8_t* rest() const { return reinterpret_cast<std::uint8_t*>(begin_ + bytes_); }

  static constexpr std::uint64_t aligned(std::uint64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  static constexpr std::uint64_t kAlignment = 16;

 private:
  const std::uintptr_t begin_;
  std::size_t bytes_ = 0;
};

constexpr std::uint32_t parts_of(std::uint64_t count, std::uint64_t part) {
  return static_cast<std::uint32_t>((count + part - 1) / part);
}

// Where things lie in the frames of a call, computed once on the host and handed to every kernel by value.
// Regular frames are those of the codec without raw blocks; what makes a frame larger, or one of None, is
// only known on the device. Codecs of sections have no regular frames: theirs are as large as those of None.
//
// The frames of a payload lie one behind the other, as do their elements. Those of a batch lie anywhere: a
// table of slots has where. Kernels count both alike, as if all frames but the last had `frame_elements`, and
// ask the plan for what there is of a frame.

struct FrameExtent {
  std::uint32_t elements;
  std::uint32_t blocks;    // 0 where the codec has none
  std::uint32_t codes_at;  // offset in the frame's payload
  std::uint32_t bytes;     // of the payload of a regular frame; raw blocks follow there
  // Payload sizes that received frames can have.
  std::uint32_t least_bytes;
  std::uint32_t most_bytes;
};

// A frame of a batch.
struct FrameSlot {
  std::uint8_t* elements;  // encoding: they are read there; decoding: they are put there
  std::uint8_t* frame;
  std::uint8_t* residual;        // encoding; nullptr where the batch has none
  const std::uint8_t* previous;  // encoding: the residual before, where that is apart
  const std::uint8_t* scale;     // encoding: what elements and residuals are divided by first; or nullptr
  std::uint8_t* outside;         // encoding: where the finished frame is copied to; or nullptr
  std::uint64_t room;            // bytes from `frame` on
  std::uint64_t seed;
  std::uint64_t first_element;
  FrameExtent extent;
};

// An error-feedback residual; data is nullptr where there is none.
struct ResidualView {
  std::uint8_t* data = nullptr;
  bool is_bfloat16 = false;
  float decay = 1.0f;

  GEOCOMM_HOST_DEVICE std::uint8_t* at(std::uint64_t element) const {
    return data + element * (is_bfloat16 ? 2 : 4);
  }
};

struct PayloadPlan {
  std::uint64_t elements;        // of a batch: `frame_elements` of each frame
  std::uint64_t frame_elements;  // of every frame but the last
  std::uint64_t frame_stride;    // bytes of such a frame, if regular
  std::uint32_t frames;
  std::uint32_t first_frame;  // of a batch, where a kernel takes the frames from there on only
  std::uint32_t block;
  std::uint32_t block_code_bytes;  // of a whole block
  std::uint32_t element_bytes;
  // Where there are several frames: log2 of the elements and of the blocks of all but the last.
  std::uint32_t log2_elements;
  std::uint32_t log2_blocks;
  FrameExtent full;
  FrameExtent last;
  const FrameSlot* slots;  // of a batch, on the device; nullptr: a payload

  GEOCOMM_HOST_DEVICE std::uint64_t blocks() const {
    return std::uint64_t{frames - 1} * full.blocks + last.blocks;
  }
  // Counted from first_frame on, as the element and the block are.
  GEOCOMM_HOST_DEVICE std::uint32_t frame_of_element(std::uint64_t element) const {
    return frames == 1 ? 0 : static_cast<std::uint32_t>(element >> log2_elements);
  }
  GEOCOMM_HOST_DEVICE std::uint32_t frame_of_block(std::uint64_t block) const {
    return frames == 1 ? 0 : static_cast<std::uint32_t>(block >> log2_blocks);
  }
  // Of what there is one of for each block.
  GEOCOMM_HOST_DEVICE std::uint64_t slot_of_block(std::uint64_t frame, std::uint32_t index) const {
    return frame * full.blocks + index;
  }
  GEOCOMM_HOST_DEVICE const FrameExtent& largest() const { return frames > 1 ? full : last; }
  // All regular.
  GEOCOMM_HOST_DEVICE std::uint64_t bytes() const {
    return (frames - 1) * frame_stride + sizeof(FrameHeader) + last.bytes;
  }
  // Of a batch: `count` of its frames, from `first` on.
  PayloadPlan part(std::uint32_t first, std::uint32_t count) const {
    PayloadPlan part = *this;
    if (count == frames) return part;
    part.first_frame = first;
    part.frames = count;
    part.elements = count * frame_elements;
    return part;
  }
  // By value and by member: a reference into a kernel's parameters would cost each thread a copy of them.
  GEOCOMM_HOST_DEVICE FrameExtent extent(std::uint64_t frame) const {
    if (slots != nullptr) return slots[frame].extent;
    const bool is_last = frame + 1 == frames;
    return {is_last ? last.elements : full.elements,       is_last ? last.blocks : full.blocks,
            is_last ? last.codes_at : full.codes_at,       is_last ? last.bytes : full.bytes,
            is_last ? last.least_bytes : full.least_bytes, is_last ? last.most_bytes : full.most_bytes};
  }
  // Its elements, of so many bytes each; of a payload, they begin at `base`.
  template <typename Byte>
  GEOCOMM_HOST_DEVICE Byte* elements_at(Byte* base, std::uint32_t bytes, std::uint64_t frame) const {
    return slots != nullptr ? slots[frame].elements : base + frame * frame_elements * bytes;
  }
  // The frame itself; of a payload, it is `offset` bytes behind `base`.
  template <typename Byte>
  GEOCOMM_HOST_DEVICE Byte* frame_at(Byte* base, std::uint64_t offset, std::uint64_t frame) const {
    return slots != nullptr ? slots[frame].frame : base + offset;
  }
  GEOCOMM_HOST_DEVICE ResidualView residual_of(const ResidualView& all, std::uint64_t frame) const {
    ResidualView residual = all;
    if (all.data != nullptr) {
      residual.data = slots != nullptr ? slots[frame].residual : all.at(frame * frame_elements);
    }
    return residual;
  }
};

PayloadPlan make_plan(const CodecSpec& spec, core::DType dtype, std::uint64_t elements, Framing framing);
// Of a batch of so many frames; `largest`: elements of the largest. Its slots are to be set.
PayloadPlan make_batch_plan(const CodecSpec& spec, core::DType dtype, std::uint64_t largest,
                            std::uint32_t frames);
FrameExtent extent_of(const CodecSpec& spec, core::DType dtype, std::uint64_t elements);

// What the device finds out about a frame.
struct FrameRecord {
  std::uint64_t offset;         // of its header in the payload; 0 in a batch
  std::uint64_t payload_bytes;  // after the header
  std::uint32_t raw_elements;   // in raw blocks; a cast's frame: not 0 if a value is beyond its range
  std::uint32_t is_plain;       // 1: a frame of None in place of the codec's
  std::uint32_t crc;            // of the payload, without crc32c's inversions, as its pieces are added
  std::uint32_t expected_crc;   // decoding: what the header says
  std::uint64_t raw_at;         // where, in its payload, raw blocks have their elements
};
static_assert(sizeof(FrameRecord) == 40);

// What it finds out about the payload.
struct PayloadState {
  std::uint32_t irregular;    // 1: some frame is not as the plan has it
  std::uint32_t first_moved;  // the first frame that does not begin where the plan has it; frames: none
  std::uint32_t reserved[2];
};

// The caller's workspace: the state, a record and, of a batch, a slot per frame, then what the codec's family
// needs.
struct Workspace {
  PayloadState* state;
  FrameRecord* records;
  FrameSlot* slots;
  std::uint8_t* room;  // aligned to 16
};
Workspace cut_workspace(const PayloadPlan& plan, bool is_batch, std::byte* workspace_dev);
// Of what is in front of the room.
std::size_t bytes_of_records(const PayloadPlan& plan, bool is_batch);

}  // namespace geocomm::codec::cuda
