// What the kernels of codecs of sections do at their ends, when sizes of sections are known.
#pragma once

#include <cstdint>

#include "codec/cuda/codec_family.h"
#include "codec/cuda/huffman.cuh"
#include "codec/cuda/verdict.h"

namespace geocomm::codec::cuda {

// Encoding, by one thread, once the frame's sections are named: names its planes. A frame of None has none.
__device__ inline void name_planes(const SectionSpace& space, std::uint32_t frame, bool is_plain) {
  for (std::uint32_t s = 0; s < space.count; ++s) {
    if (!space.is_staged(s)) continue;
    const Section& section = space.section(frame, s);
    space.huffman.planes[space.plane(frame, s)] = {section.content, nullptr, 0, is_plain ? 0 : section.bytes,
                                                   frame};
  }
}

// Decoding, by the first warp of a block, when `bytes` of the sections [first, end) are set, at most the
// shape's: finds them in the frame, and sets their `content`, which lies at any address; of those that are
// staged it will be there once decode_sections() has run. Behind the last section of all the payload has to
// end. A frame of None is left out: its `content` is nullptr. Does nothing once there is a verdict.
__device__ inline void walk_sections(const Decode& args, const SectionSpace& space, std::uint32_t frame,
                                     std::uint32_t first, std::uint32_t end) {
  if (is_over_for_warp(args.verdict)) return;
  const bool is_first = threadIdx.x % kWarp == 0;
  const FrameRecord& record = args.workspace.records[frame];
  const bool is_plain = record.is_plain != 0;
  const std::uint8_t* payload = args.payload_of(frame);
  std::uint64_t at = 0;
  if (first > 0) {
    const Section& before = space.section(frame, first - 1);
    at = std::uint64_t{before.at} + before.coded_bytes;
  }
  for (std::uint32_t s = first; s < end; ++s) {
    Section& section = space.section(frame, s);
    const std::uint32_t bytes = is_plain ? 0 : section.bytes;
    const std::uint8_t* content = is_plain ? nullptr : payload + at;
    std::uint32_t coded_bytes = bytes;
    bool sound = true;
    if (space.is_staged(s)) {
      const std::uint64_t plane = space.plane(frame, s);
      if (!is_plain) {
        sound = read_plane_heads(payload + at, record.payload_bytes - at, bytes,
                                 space.huffman.blocks + space.huffman.slot(plane, 0), coded_bytes);
        content = space.content(frame, s);
      }
      if (is_first) {
        space.huffman.planes[plane] = {payload + at, space.content(frame, s), coded_bytes, bytes, frame};
      }
    } else {
      sound = bytes <= record.payload_bytes - at;
    }
    if (!sound) {
      const Fault fault = space.is_staged(s) ? Fault::Plane : Fault::SectionSize;
      if (is_first) report(args.verdict, fault, frame);
      return;
    }
    __syncwarp();
    if (is_first) {
      section = {content, bytes, static_cast<std::uint32_t>(at), coded_bytes, 0};
    }
    at += coded_bytes;
  }
  if (end == space.count && !is_plain && at != record.payload_bytes && is_first) {
    report(args.verdict, Fault::SectionSize, frame);
  }
}

}  // namespace geocomm::codec::cuda
