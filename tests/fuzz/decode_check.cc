#include "decode_check.h"

#include <cmath>
#include <optional>
#include <utility>

#include "codec/entropy/plane.h"
#include "codec/frames/codec.h"
#include "codec/frames/elements.h"
#include "codec/frames/thread_scratch.h"

namespace geocomm::fuzz {
namespace {

using codec::Accumulate;
using core::DType;
using core::Status;
using core::StatusCode;

// What an earlier frame left in the scratch memory must not matter: each level finds other bytes there.
void soil_scratch(core::CpuLevel level) {
  for (std::size_t use = 0; use < codec::kScratchUses; ++use) {
    const auto scratch = codec::thread_scratch(static_cast<codec::ScratchUse>(use), 4096);
    std::memset(scratch.data(), 0x5A + static_cast<int>(level), scratch.size());
  }
}

// Finite, not zero.
float initial_value(std::size_t index) {
  return 1.5f + static_cast<float>(index % 7);
}

bool same_or_both_nan(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

std::span<float> as_floats(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

Status accumulate(Input frame, std::span<std::byte> dst, Accumulate mode) {
  return codec::decompress_accumulate(frame, as_floats(dst), mode);
}

void require_possible(const Status& status, const codec::FrameView* view) {
  if (status.is_ok()) {
    require(view != nullptr, "decoded what parse_frame() refuses");
    return;
  }
  require(!status.message().empty(), "an error without a message");
  const bool lacks_stage = view != nullptr && !codec::has_stage(view->spec.entropy);
  require(status.code() == StatusCode::CorruptData || status.code() == StatusCode::VersionMismatch ||
              (lacks_stage && status.code() == StatusCode::Unsupported),
          "a status that no frame may cause");
}

void require_wrong_sizes_refused(Input frame, std::size_t bytes, std::size_t step) {
  ExactBytes larger(bytes + step, 0);
  require(codec::decompress(frame, larger.span()).code() == StatusCode::InvalidArgument,
          "dst of one element too many is not refused");
  if (bytes == 0) return;
  require(codec::decompress(frame, larger.span().first(bytes - step)).code() == StatusCode::OutputTooSmall,
          "dst of one element too few is not refused");
}

// The same values, rounded to the frame's dtype.
void require_rounded(DType dtype, Input elements, Input values) {
  const std::size_t count = values.size() / sizeof(float);
  codec::with_compressible(dtype, [&]<DType kType>() {
    for (std::size_t i = 0; i < count; ++i) {
      const float value = codec::load_unaligned<float>(values.data() + 4 * i);
      std::byte expected[4] = {};
      codec::store_element<kType>(expected, 0, value);
      const float rounded = codec::load_element<kType>(expected, 0);
      const float actual = codec::load_element<kType>(elements.data(), i);
      require(same_or_both_nan(rounded, actual), "decompress() differs from the rounded values of Assign");
    }
  });
}

void require_sums(Input sums, Input values) {
  for (std::size_t i = 0; i < values.size() / sizeof(float); ++i) {
    const float sum = initial_value(i) + codec::load_unaligned<float>(values.data() + 4 * i);
    require(same_or_both_nan(codec::load_unaligned<float>(sums.data() + 4 * i), sum),
            "Add is not the sum of dst and the values of Assign");
  }
}

struct Outcome {
  StatusCode code;
  ExactBytes elements;
  ExactBytes values;
  ExactBytes sums;
};

Outcome decode_at(core::CpuLevel level, Input frame, DType dtype, std::size_t count, Places places) {
  const auto parsed = codec::parse_frame(frame);
  const codec::FrameView* view = parsed.is_ok() ? &*parsed : nullptr;
  if (view == nullptr) count = 0;  // refused before dst is looked at
  const bool has_sums = core::is_compressible(dtype);
  const std::size_t float_bytes = has_sums ? count * sizeof(float) : 0;
  const std::size_t float_place = places.dst & ~(alignof(float) - 1);
  Outcome outcome{StatusCode::Ok, ExactBytes(count * core::size_of(dtype), places.dst),
                  ExactBytes(float_bytes, float_place), ExactBytes(float_bytes, float_place)};
  soil_scratch(level);
  const Status status = codec::decompress(frame, outcome.elements.span());
  require_possible(status, view);
  outcome.code = status.code();
  if (!has_sums) return outcome;

  const Status assigned = accumulate(frame, outcome.values.span(), Accumulate::Assign);
  require(assigned.code() == status.code(), "Assign and decompress() disagree on the status");
  for (std::size_t i = 0; i < count; ++i) {
    const float value = initial_value(i);
    std::memcpy(outcome.sums.data() + 4 * i, &value, 4);
  }
  const ExactBytes before(outcome.sums.span(), 0);
  const Status added = accumulate(frame, outcome.sums.span(), Accumulate::Add);
  require(added.code() == status.code(), "Add and decompress() disagree on the status");
  require(added.is_ok() || same_bytes(before.span(), outcome.sums.span()), "an error of Add changed dst");
  return outcome;
}

std::vector<float> to_floats(Input bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

Decoded decode_everywhere(Input frame, DType dtype, std::size_t elements, Places places) {
  const ExactBytes exact(frame, places.frame);
  std::optional<Outcome> reference;
  at_every_cpu_level([&](core::CpuLevel level) {
    Outcome outcome = decode_at(level, exact.span(), dtype, elements, places);
    if (!reference) {
      reference = std::move(outcome);
      return;
    }
    require(outcome.code == reference->code, "CPU levels disagree on the status");
    if (outcome.code != StatusCode::Ok) return;
    require(same_bytes(outcome.elements.span(), reference->elements.span()),
            "CPU levels disagree on decompress()");
    require(same_bytes(outcome.values.span(), reference->values.span()), "CPU levels disagree on Assign");
    require(same_bytes(outcome.sums.span(), reference->sums.span()), "CPU levels disagree on Add");
  });
  const Input bytes = reference->elements.span();
  const Input values = reference->values.span();
  if (reference->code == StatusCode::Ok) {
    require_wrong_sizes_refused(exact.span(), bytes.size(), core::size_of(dtype));
    if (core::is_compressible(dtype)) {
      require_rounded(dtype, bytes, values);
      require_sums(reference->sums.span(), values);
    }
  }
  return {reference->code, {bytes.begin(), bytes.end()}, to_floats(values)};
}

}  // namespace geocomm::fuzz
