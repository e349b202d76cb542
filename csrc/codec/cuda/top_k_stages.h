// The kernels of TopK, in the order in which they run.
#pragma once

#include <cstdint>

#include "codec/cuda/kernels.h"
#include "codec/cuda/top_k_space.h"
#include "codec/frames/elements.h"
#include "core/dtype.h"
#include "core/status.h"

namespace geocomm::codec::cuda {

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
// Scales, codes and raw blocks of the values; the residual keeps what they lose. All sections are then there.
core::Status code_values(const TopKEncode& args, Stream stream);

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
