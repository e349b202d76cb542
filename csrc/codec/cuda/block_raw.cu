// What raw blocks carry: their elements as they are, one block after the other, behind the codes of the
// frame.
#include "codec/cuda/block_place.cuh"
#include "codec/cuda/kernels.h"

namespace geocomm::codec::cuda {
namespace {

// Raw blocks are rare and may lie at any address: bytes will do.
template <core::DType kType>
__device__ void store_bytes(std::uint8_t* to, std::uint32_t bits) {
#pragma unroll
  for (unsigned i = 0; i < kElementBytes<kType>; ++i) to[i] = static_cast<std::uint8_t>(bits >> 8 * i);
}

template <core::DType kType>
__device__ std::uint32_t element_bits(const std::uint8_t* src, std::uint64_t element) {
  if constexpr (kType == core::DType::Float32) return reinterpret_cast<const std::uint32_t*>(src)[element];
  return reinterpret_cast<const std::uint16_t*>(src)[element];
}

template <core::DType kType, bool kFeedback>
__device__ void write_raw_block(const BlockEncode& args, const BlockPlace& place, std::uint8_t* to) {
  for (unsigned row = 0; row < place.rows; ++row) {
    const unsigned count = place.count(row);
    const std::uint64_t element = place.first + place.offset(row);
    std::uint8_t* out = to + std::uint64_t{place.offset(row)} * kElementBytes<kType>;
    if constexpr (kFeedback) {
      const Quad values = load_values<kType, true>(args.src, args.residual, element, count);
      Quad carried = values;
      for (unsigned c = 0; c < count; ++c) {
        if constexpr (kType == core::DType::Float32) {
          store_bytes<kType>(out + 4 * c, __float_as_uint(values.v[c]));
        } else {
          const std::uint16_t bits = narrow_saturated<kType>(values.v[c]);
          store_bytes<kType>(out + 2 * c, bits);
          carried.v[c] = widen<kType>(bits);
        }
      }
      store_residual(args.residual, element, values, carried, count);
    } else {
      for (unsigned c = 0; c < count; ++c) {
        store_bytes<kType>(out + c * kElementBytes<kType>, element_bits<kType>(args.src, element + c));
      }
    }
  }
}

template <core::DType kType, bool kFeedback>
__global__ void __launch_bounds__(kBlockThreads) write_raw(BlockEncode args) {
  if (args.workspace.state->irregular == 0) return;
  const std::uint64_t warps = std::uint64_t{gridDim.x} * kBlockWarps;
  std::uint64_t warp = std::uint64_t{blockIdx.x} * kBlockWarps + threadIdx.x / kWarp;
  BlockPlace place;
  for (; find_block(args.plan, warp, place); warp += warps) {
    const FrameRecord& record = args.workspace.records[place.frame];
    if (record.raw_elements == 0) continue;  // the same for the whole warp
    std::uint8_t* payload = args.dst + record.offset + sizeof(FrameHeader);
    const bool is_raw = place.length > 0 && load_u16(payload + 2 * place.index) == kRawScale;
    for (unsigned half = 0; half < kWarp / place.lanes; ++half) {
      const unsigned index = __shfl_sync(kFullMask, place.index, static_cast<int>(half * place.lanes));
      if (__shfl_sync(kFullMask, is_raw ? 1 : 0, static_cast<int>(half * place.lanes)) == 0) continue;
      const unsigned before = raw_blocks_before(payload, index);
      if (index != place.index) continue;
      write_raw_block<kType, kFeedback>(
          args, place,
          payload + record.raw_at + std::uint64_t{before} * args.plan.block * kElementBytes<kType>);
    }
  }
}

}  // namespace

core::Status write_raw_blocks(core::DType dtype, const BlockEncode& args, Stream stream) {
  const std::uint64_t work = (warps_of(args.plan) + kBlockWarps - 1) / kBlockWarps;
  const Grid grid{persistent_blocks(work, 8), kBlockThreads};
  return with_compressible(dtype, [&]<core::DType kType>() {
    return args.residual.data != nullptr ? launch(write_raw<kType, true>, grid, stream, args)
                                         : launch(write_raw<kType, false>, grid, stream, args);
  });
}

}  // namespace geocomm::codec::cuda
