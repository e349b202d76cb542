#include "codec/quantizers/dead_zone/bit_planes.h"

#include <array>
#include <cstring>
#include <utility>

#include "codec/entropy/plane.h"
#include "codec/frames/bitmap.h"
#include "codec/frames/frame.h"
#include "codec/frames/thread_scratch.h"
#include "codec/quantizers/dead_zone/dead_zone_kernels.h"
#include "core/cpu.h"

namespace geocomm::codec {
namespace {

using core::Status;

// Magnitudes up to here are told by bits alone.
constexpr unsigned kLastStep = 3;

Status take_bits(Entropy stage, std::span<const std::byte>& coded, std::span<std::byte> bits,
                 std::size_t count) {
  GEOCOMM_RETURN_IF_ERROR(take_plane(stage, coded, bits));
  if (has_bits_beyond(bits, count)) return corrupt_frame("a plane has bits beyond ", count, " codes");
  return Status::ok();
}

}  // namespace

std::size_t bit_planes_bound(Entropy stage, std::size_t codes) {
  return (1 + kLastStep) * plane_bound(stage, bitmap_bytes(codes)) + plane_bound(stage, codes);
}

std::size_t encode_bit_planes(Entropy stage, std::span<std::byte> codes, std::byte* dst) {
  const DeadZoneKernels& kernels = core::at_cpu_level<DeadZoneKernels>();
  const auto room = thread_scratch(ScratchUse::Codes, bitmap_bytes(codes.size()));
  const auto bits = thread_scratch(ScratchUse::Indices, bitmap_bytes(codes.size()));
  std::memset(codes.data() + codes.size(), 1, kDeadZoneUnit);  // the kernels take whole units
  std::size_t count = codes.size();
  std::size_t left = kernels.split(codes.data(), count, room.data(), bits.data());
  std::byte* end = dst + encode_plane(stage, room.first(bitmap_bytes(count)), dst);
  for (unsigned step = 1;; ++step) {
    end += encode_plane(stage, bits.first(bitmap_bytes(count)), end);
    count = left;
    if (step == kLastStep) break;
    std::memset(codes.data() + count, 0, kDeadZoneUnit);
    left = kernels.peel(codes.data(), count, step + 1, bits.data());
  }
  end += encode_plane(stage, codes.first(count), end);
  return static_cast<std::size_t>(end - dst);
}

Status take_bit_planes(Entropy stage, std::span<const std::byte>& coded, std::span<std::byte> codes) {
  const DeadZoneKernels& kernels = core::at_cpu_level<DeadZoneKernels>();
  // The planes of bits, and behind each the codes that it tells of.
  const std::size_t plane_room = (bitmap_bytes(codes.size()) + kDeadZoneUnit) / kDeadZoneUnit * kDeadZoneUnit;
  const auto planes = thread_scratch(ScratchUse::Codes, (1 + kLastStep) * plane_room);
  std::array<std::size_t, 2 + kLastStep> counts{codes.size(), codes.size()};
  std::array<std::byte*, 1 + kLastStep> bits;
  for (unsigned step = 0; step <= kLastStep; ++step) {
    bits[step] = planes.data() + step * plane_room;
    const std::span plane{bits[step], bitmap_bytes(counts[step])};
    GEOCOMM_RETURN_IF_ERROR(take_bits(stage, coded, plane, counts[step]));
    if (step > 0) counts[step + 1] = count_bits(plane);
    std::memset(plane.data() + plane.size(), 0, kDeadZoneUnit / 8);  // the kernels take whole units
  }
  auto magnitudes = thread_scratch(ScratchUse::Indices, codes.size());
  auto other = thread_scratch(ScratchUse::Places, codes.size());
  const auto large = magnitudes.first(counts.back());
  GEOCOMM_RETURN_IF_ERROR(take_plane(stage, coded, large));
  bool is_beyond = false;
  for (const std::byte magnitude : large)
    is_beyond |= magnitude <= std::byte{kLastStep} || magnitude > std::byte{127};
  if (is_beyond) return corrupt_frame("a code's magnitude is out of range");
  for (unsigned step = kLastStep; step > 1; --step) {
    kernels.fill(magnitudes.data(), bits[step], counts[step], step, other.data());
    std::swap(magnitudes, other);
  }
  kernels.join(magnitudes.data(), bits[0], bits[1], codes.size(), codes.data());
  return Status::ok();
}

}  // namespace geocomm::codec
