// Payload: how the lower halves of words of 32 bits are carried (one byte) | the planes of the upper halves,
// or of words of 16 bits, high bytes and low bytes | the planes of the lower halves. docs/spec/codecs.md has
// the table.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "codec/entropy/plane.h"
#include "codec/frames/bitmap.h"
#include "codec/frames/payload_codec.h"
#include "codec/frames/thread_scratch.h"
#include "codec/quantizers/cast/cast_kernels.h"
#include "codec/quantizers/cast/plain_codec.h"
#include "codec/quantizers/lossless/lossless_kernels.h"
#include "core/cpu.h"

namespace geocomm::codec {
namespace {

using core::DType;
using core::Status;

// First byte of the payload: the lower halves that are carried. Words of 16 bits have none.
enum class Lower : std::uint8_t { None = 0, NotZero = 1, All = 2 };

Lower choose(std::size_t not_zero, std::size_t elements) {
  if (not_zero == 0) return Lower::None;
  // A bitmap costs a sixteenth of all halves.
  return 16 * not_zero <= 15 * elements ? Lower::NotZero : Lower::All;
}

// Calls `run(first, count, src)` for the elements in whole units, then for a last unit padded with zeros.
template <typename Run>
void over_units(const std::byte* src, std::size_t element_bytes, std::size_t elements, const Run& run) {
  const std::size_t whole = elements / kLosslessUnit * kLosslessUnit;
  if (whole > 0) run(std::size_t{0}, whole, src);
  if (whole == elements) return;
  std::array<std::byte, kLosslessUnit * sizeof(float)> unit{};
  std::memcpy(unit.data(), src + whole * element_bytes, (elements - whole) * element_bytes);
  run(whole, kLosslessUnit, unit.data());
}

std::size_t bound_of(const CodecSpec& spec, DType dtype, std::size_t elements) {
  const std::size_t lower = dtype == DType::Float32 ? plane_bound(spec.entropy, bitmap_bytes(elements)) +
                                                          2 * plane_bound(spec.entropy, elements)
                                                    : 0;
  return 1 + 2 * plane_bound(spec.entropy, elements) + lower;
}

// What would not be shorter than the elements becomes a frame of None.
std::size_t usual_bound_of(const CodecSpec&, DType dtype, std::size_t elements) {
  return elements * core::size_of(dtype);
}

std::size_t encode_16(const FrameInput& input, std::byte* dst) {
  const Entropy stage = input.spec.entropy;
  const auto high = thread_scratch(ScratchUse::Codes, input.elements);
  const auto low = thread_scratch(ScratchUse::Values, input.elements);
  over_units(input.src, 2, input.elements, [&](std::size_t first, std::size_t count, const std::byte* src) {
    core::at_cpu_level<CastKernels>().split(src, count, high.data() + first, low.data() + first);
  });
  dst[0] = static_cast<std::byte>(Lower::None);
  std::size_t end = 1;
  end += encode_plane(stage, high, dst + end);
  end += encode_plane(stage, low, dst + end);
  return end;
}

std::size_t encode_32(const FrameInput& input, std::byte* dst) {
  const LosslessKernels& kernels = core::at_cpu_level<LosslessKernels>();
  const Entropy stage = input.spec.entropy;
  const auto high = thread_scratch(ScratchUse::Codes, input.elements);
  const auto low = thread_scratch(ScratchUse::Values, input.elements);
  const auto bitmap = thread_scratch(ScratchUse::Bitmap, bitmap_bytes(input.elements));
  std::size_t not_zero = 0;
  over_units(input.src, 4, input.elements, [&](std::size_t first, std::size_t count, const std::byte* src) {
    not_zero +=
        kernels.split32(src, count, high.data() + first, low.data() + first, bitmap.data() + first / 8);
  });
  const Lower lower = choose(not_zero, input.elements);
  dst[0] = static_cast<std::byte>(lower);
  std::size_t end = 1;
  end += encode_plane(stage, high, dst + end);
  end += encode_plane(stage, low, dst + end);
  if (lower == Lower::None) return end;

  const bool sparse = lower == Lower::NotZero;
  if (sparse) end += encode_plane(stage, bitmap, dst + end);
  const std::size_t carried = sparse ? not_zero : input.elements;
  std::size_t taken = 0;
  over_units(input.src, 4, input.elements, [&](std::size_t first, std::size_t count, const std::byte* src) {
    taken += kernels.split_lower(src, sparse ? bitmap.data() + first / 8 : nullptr, count,
                                 high.data() + taken, low.data() + taken);
  });
  end += encode_plane(stage, high.first(carried), dst + end);
  end += encode_plane(stage, low.first(carried), dst + end);
  return end;
}

std::size_t encode_frame(const FrameInput& input, std::byte* dst) {
  if (!core::is_compressible(input.dtype) || input.options.feedback.is_on() || input.elements == 0) {
    return kResortToNone;
  }
  const std::size_t bytes = input.dtype == DType::Float32 ? encode_32(input, dst) : encode_16(input, dst);
  return bytes < input.elements * core::size_of(input.dtype) ? bytes : kResortToNone;
}

SizeRange possible_sizes(const CodecSpec&, DType dtype, std::size_t elements) {
  return {2, std::max<std::size_t>(elements * core::size_of(dtype), 1) - 1};
}

// The planes of a frame, decoded.
struct Planes {
  std::span<const std::byte> high;
  std::span<const std::byte> low;
  LowerHalves lower;
};

core::Result<Planes> read_planes(const FrameView& frame) {
  const std::size_t elements = frame.elements;
  const auto lower = static_cast<std::uint8_t>(frame.payload.front());
  const Lower most = frame.dtype == DType::Float32 ? Lower::All : Lower::None;
  if (lower > static_cast<std::uint8_t>(most)) {
    return corrupt_frame("lower halves of kind ", int{lower}, " in ", core::to_string(frame.dtype));
  }
  auto rest = frame.payload.subspan(1);
  // Zeros follow a plane, since kernels take the bits of whole units.
  const auto read = [&](ScratchUse use, std::size_t bytes) -> core::Result<std::span<const std::byte>> {
    const auto plane = thread_scratch(use, bytes);
    GEOCOMM_RETURN_IF_ERROR(take_plane(frame.spec.entropy, rest, plane));
    std::memset(plane.data() + bytes, 0, kLosslessUnit / 8);
    return std::span<const std::byte>(plane);
  };
  Planes planes;
  GEOCOMM_ASSIGN_OR_RETURN(planes.high, read(ScratchUse::Codes, elements));
  GEOCOMM_ASSIGN_OR_RETURN(planes.low, read(ScratchUse::Values, elements));
  if (static_cast<Lower>(lower) != Lower::None) {
    std::size_t carried = elements;
    if (static_cast<Lower>(lower) == Lower::NotZero) {
      GEOCOMM_ASSIGN_OR_RETURN(const auto bitmap, read(ScratchUse::Bitmap, bitmap_bytes(elements)));
      if (has_bits_beyond(bitmap, elements)) {
        return corrupt_frame("the bitmap has bits beyond ", elements, " elements");
      }
      carried = count_bits(bitmap);
      planes.lower.bitmap = bitmap.data();
    }
    GEOCOMM_ASSIGN_OR_RETURN(const auto high, read(ScratchUse::Places, carried));
    GEOCOMM_ASSIGN_OR_RETURN(const auto low, read(ScratchUse::Indices, carried));
    planes.lower.high = high.data();
    planes.lower.low = low.data();
  }
  if (!rest.empty()) return corrupt_frame(rest.size(), " bytes after the last plane");
  return planes;
}

// Puts words together, of `count` elements from `first` on, in whole units; `taken` counts the lower halves.
void merge(const LosslessKernels& kernels, DType dtype, const Planes& planes, std::size_t first,
           std::size_t count, std::size_t& taken, std::byte* to) {
  if (dtype != DType::Float32) {
    core::at_cpu_level<CastKernels>().join(planes.high.data() + first, planes.low.data() + first, count, to);
    return;
  }
  LowerHalves lower = planes.lower;
  if (lower.bitmap != nullptr) lower.bitmap += first / 8;
  if (lower.high != nullptr) {
    lower.high += taken;
    lower.low += taken;
  }
  taken += kernels.merge32(planes.high.data() + first, planes.low.data() + first, lower, count, to);
}

Status decode_frame(const FrameView& frame, Sink sink, std::byte* dst) {
  constexpr std::size_t kPiece = 4096;
  const LosslessKernels& kernels = core::at_cpu_level<LosslessKernels>();
  GEOCOMM_ASSIGN_OR_RETURN(const Planes planes, read_planes(frame));
  std::array<std::byte, kPiece * sizeof(float)> words;
  std::size_t taken = 0;
  for (std::size_t first = 0; first < frame.elements; first += kPiece) {
    const std::size_t count = std::min<std::size_t>(kPiece, frame.elements - first);
    const std::size_t padded = (count + kLosslessUnit - 1) / kLosslessUnit * kLosslessUnit;
    std::byte* to = dst + first * element_bytes(sink);
    // Streaming stores were no faster here: putting words together is what takes the time.
    const bool in_place = sink == sink_of(frame.dtype) || sink == Sink::StreamedFloat32;
    if (in_place && padded == count) {
      merge(kernels, frame.dtype, planes, first, count, taken, to);
    } else {
      merge(kernels, frame.dtype, planes, first, padded, taken, words.data());
      decode_plain(frame.dtype, words.data(), count, sink, to);
    }
  }
  return Status::ok();
}

}  // namespace

const PayloadCodec kLosslessCodec{bound_of, usual_bound_of, encode_frame, possible_sizes, decode_frame};

}  // namespace geocomm::codec
