// The places of the chosen elements of a TopK frame, as bytes and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/frames/elements.h"
#include "codec/quantizers/top_k/top_k_format.h"
#include "core/status.h"

namespace geocomm::codec {

// The index plane of these increasing places in a frame of `elements`, in this thread's scratch memory
// (ScratchUse::Indices).
std::span<const std::byte> write_places(IndexMode mode, const std::uint32_t* places, std::size_t count,
                                        std::size_t elements);

// Whether an index plane can be one of `bytes` bytes: a check of the head alone.
bool is_possible_index(const TopKHead& head, std::size_t elements);

// Whether `index`, of a possible size, names exactly `count` elements inside the frame.
bool is_valid_index(IndexMode mode, std::span<const std::byte> index, std::size_t count,
                    std::size_t elements);

// values[i] goes to the i-th place. Precondition: is_valid_index().
void scatter(IndexMode mode, std::span<const std::byte> index, const float* values, Sink sink,
             std::byte* dst);

}  // namespace geocomm::codec
