#include "codec/payload/expected_size.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "codec/quantizers/loco/loco_format.h"

namespace geocomm::codec {

using core::DType;

namespace {

constexpr double kScaleBytes = 2.0;  // per block, bfloat16

// Normal numbers, by step: bytes per element with the Huffman stage.
struct DeadZonePoint {
  double step;
  double bytes;
  double bit_planes_bytes;
};
constexpr std::array<DeadZonePoint, 9> kDeadZone = {{{0.05, 0.80, 0.81},
                                                     {0.35, 0.449, 0.452},
                                                     {0.5, 0.383, 0.383},
                                                     {0.7, 0.3245, 0.3222},
                                                     {1.0, 0.261, 0.253},
                                                     {1.4, 0.208, 0.1955},
                                                     {2.0, 0.145, 0.1336},
                                                     {2.8, 0.0715, 0.072},
                                                     {8.0, 0.003, 0.003}}};

double dead_zone_bytes(const CodecSpec& spec) {
  const auto bytes_at = [&](const DeadZonePoint& point) {
    return spec.id == CodecId::BitPlanes ? point.bit_planes_bytes : point.bytes;
  };
  for (std::size_t i = 1; i < kDeadZone.size(); ++i) {
    const auto &low = kDeadZone[i - 1], &high = kDeadZone[i];
    if (spec.step <= high.step) {
      const double part = std::clamp((spec.step - low.step) / (high.step - low.step), 0.0, 1.0);
      return bytes_at(low) + part * (bytes_at(high) - bytes_at(low));
    }
  }
  return bytes_at(kDeadZone.back());
}

double lossless_bytes(DType dtype) {
  switch (dtype) {
    case DType::Float32:
      return 3.33;
    case DType::Float16:
      return 1.69;
    case DType::BFloat16:
      return 1.33;
    default:
      return static_cast<double>(core::size_of(dtype));
  }
}

double top_k_bytes(const CodecSpec& spec) {
  const double kept = static_cast<double>(spec.k) / kTopKChunk;
  constexpr std::array<double, 4> kValueBytes = {4.0, 2.0, 1.0, 0.34};  // by Values, scales included
  constexpr double kPlaceBytes = 0.95;
  return kept * (kPlaceBytes + kValueBytes[static_cast<std::size_t>(spec.values)]);
}

double loco_bytes(const CodecSpec& spec) {
  return static_cast<double>(loco_record_bytes({kTopKChunk, spec.k})) / kTopKChunk;
}

}  // namespace

double expected_bytes_per_element(const CodecSpec& spec, DType dtype) {
  const auto raw = static_cast<double>(core::size_of(dtype));
  if (spec.id == CodecId::Lossless) return lossless_bytes(dtype);
  if (spec.id == CodecId::None || !core::is_compressible(dtype)) return raw;
  const double scale = spec.has_blocks() ? kScaleBytes / spec.block : 0.0;
  const bool packed = spec.entropy != Entropy::None;
  switch (spec.id) {
    case CodecId::Fp16:
    case CodecId::Bf16:
      return 2.0;
    case CodecId::Int8:
      return scale + (packed ? 0.935 : 1.0);
    case CodecId::Int4:
      return scale + (packed ? 0.414 : 0.5);
    case CodecId::Bit2:
      return scale + 0.25;
    case CodecId::Bit1:
      return scale + 0.125;
    case CodecId::DeadZone:
    case CodecId::BitPlanes:
      return scale + dead_zone_bytes(spec);
    case CodecId::TopK:
      return top_k_bytes(spec);
    case CodecId::Loco:
      return loco_bytes(spec);
    case CodecId::None:
    case CodecId::Lossless:
      break;
  }
  return raw;
}

}  // namespace geocomm::codec
