// The kernels of Loco, in the order in which they run, and what they work in. Its chunks choose as TopK's do
// (top_k_stages.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/cuda/kernels.h"
#include "codec/cuda/section_space.h"
#include "codec/cuda/top_k_stages.h"
#include "codec/quantizers/loco/loco_format.h"
#include "core/status.h"

namespace geocomm::codec::cuda {

struct LocoSection {
  enum : std::uint32_t { Head, Records, Raw, Count };
};

// The sections are those of `chosen.space`, of which else only what chunks choose into is there.
struct LocoEncode {
  TopKEncode chosen;
  std::uint32_t k;
  std::uint32_t* raw_values;  // per frame, in raw chunks
};

struct LocoDecode {
  Decode frames;
  SectionSpace sections;
  std::uint32_t chunks_per_frame;
  std::uint32_t* ks;          // of each frame, 0 where there is nothing to put
  std::uint32_t* raw_before;  // of a chunk: values in raw chunks of the frame before it
};

// With its memory alone: the rest is the caller's.
LocoEncode take_loco_encoding(const CodecSpec& spec, const PayloadPlan& plan, SpaceCutter& room);
LocoDecode take_loco_decoding(const PayloadPlan& plan, SpaceCutter& room);

// When chunks have chosen: levels, places, codes and raw chunks; the residual keeps what they lose. All
// sections are then there.
core::Status write_loco_records(const LocoEncode& args, Stream stream);

// Does nothing once there is a verdict, as all that follows.
// Find: the head; the records; raw chunks.
core::Status expect_loco_heads(const LocoDecode& args, Stream stream);
core::Status read_loco_heads(const LocoDecode& args, Stream stream);
core::Status check_loco_levels(const LocoDecode& args, Stream stream);
// Whether places ascend and lie in their chunk.
core::Status check_loco_places(const LocoDecode& args, Stream stream);
// All has been checked.
core::Status put_loco_values(const LocoDecode& args, Stream stream);

}  // namespace geocomm::codec::cuda
