#include "binding/tensors/element_passes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "binding/torch/comm_error.h"
#include "binding/torch/staging.h"
#include "codec/frames/streaming.h"
#include "codec/simd/partial_sums.h"
#include "collective/outer/element_scales.h"
#include "collective/outer/outer_kernels.h"
#include "core/cpu.h"
#include "core/float_rules.h"
#include "core/str.h"

namespace geocomm::binding {
namespace {

using collective::OuterKernels;

std::span<float> floats_of(const at::Tensor& tensor, const char* name) {
  if (tensor.scalar_type() != at::kFloat || !tensor.device().is_cpu() || tensor.layout() != at::kStrided ||
      !is_flat_view(tensor)) {
    throw_status(core::StatusCode::InvalidArgument,
                 core::str(name, " must be a contiguous float32 tensor on the CPU"));
  }
  return {static_cast<float*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel())};
}

void require_size(std::size_t size, std::size_t expected, const char* name) {
  if (size == expected) return;
  throw_status(core::StatusCode::InvalidArgument,
               core::str(name, " has ", size, " elements, and must have ", expected));
}

std::span<float> floats_of(const at::Tensor& tensor, std::size_t size, const char* name) {
  const std::span<float> floats = floats_of(tensor, name);
  require_size(floats.size(), size, name);
  return floats;
}

std::vector<std::span<float>> pieces_of(const Tensors& tensors, std::size_t size, const char* name) {
  std::vector<std::span<float>> pieces;
  std::size_t found = 0;
  for (const auto& tensor : tensors) {
    pieces.push_back(floats_of(tensor, name));
    found += pieces.back().size();
  }
  require_size(found, size, name);
  return pieces;
}

// Sums of squares on their way to one.
struct Squares {
  std::array<double, codec::kSquareSums> sums{};
  double total() { return codec::fold_sums(sums.data(), sums.size()); }
};

template <typename Run>
void in_steps(std::size_t count, const Run& run) {
  core::in_steps<OuterKernels>(count, codec::kSquareSums, run);
}

// delta = anchor - local. Returns the sum of its squares.
double subtract(const float* anchor, std::span<const float> local, float* delta) {
  Squares squares;
  in_steps(local.size(), [&](const OuterKernels& kernels, std::size_t first, std::size_t count) {
    kernels.subtract(anchor + first, local.data() + first, count, delta + first, squares.sums.data());
  });
  return squares.total();
}

// So few that what one pass has read is in the first-level cache for the next.
constexpr std::size_t kAtOnce = 2048;

// `kept` gets what `local` has. Nobody reads it soon, so it goes past the caches where it can.
double subtract_and_keep(const float* anchor, std::span<const float> local, float* delta, float* kept) {
  const bool streams = reinterpret_cast<std::uintptr_t>(kept) % 16 == 0;
  double squares = 0;
  for (std::size_t first = 0; first < local.size(); first += kAtOnce) {
    const auto part = local.subspan(first, std::min(kAtOnce, local.size() - first));
    const auto bytes = std::as_bytes(part);
    auto* const to = reinterpret_cast<std::byte*>(kept + first);
    if (streams) {
      codec::copy_streaming(to, bytes.data(), bytes.size());
    } else {
      std::memcpy(to, bytes.data(), bytes.size());
    }
    squares += subtract(anchor + first, part, delta + first);
  }
  return squares;
}

}  // namespace

double outer_delta(const at::Tensor& anchor, const Tensors& local, const at::Tensor& delta,
                   const std::optional<at::Tensor>& kept) {
  const core::FloatRules rules;
  const std::span<const float> from = floats_of(anchor, "anchor");
  const std::span<float> to = floats_of(delta, from.size(), "delta");
  const std::span<float> copy = kept ? floats_of(*kept, from.size(), "kept") : std::span<float>();
  double squares = 0;
  std::size_t at = 0;
  for (const auto piece : pieces_of(local, from.size(), "local")) {
    squares += kept ? subtract_and_keep(&from[at], piece, &to[at], &copy[at])
                    : subtract(from.data() + at, piece, to.data() + at);
    at += piece.size();
  }
  if (kept) codec::end_streaming();
  return squares;
}

double outer_mean(const Tensors& deltas, const std::vector<double>& shares, const at::Tensor& mean) {
  const core::FloatRules rules;
  const std::span<float> to = floats_of(mean, "mean");
  std::vector<const float*> from;
  for (const auto& delta : deltas) from.push_back(floats_of(delta, to.size(), "delta").data());
  if (deltas.empty() || shares.size() != deltas.size()) {
    throw_status(core::StatusCode::InvalidArgument,
                 core::str(deltas.size(), " deltas have ", shares.size(), " shares"));
  }
  const std::vector<float> factors(shares.begin(), shares.end());
  Squares squares;
  in_steps(to.size(), [&](const OuterKernels& kernels, std::size_t first, std::size_t count) {
    kernels.mean(from.data(), factors.data(), from.size(), first, count, to.data(), squares.sums.data());
  });
  return squares.total();
}

std::pair<double, double> outer_step(double lr, double mu, const at::Tensor& delta, const at::Tensor& anchor,
                                     const std::optional<at::Tensor>& momentum) {
  const core::FloatRules rules;
  const std::span<float> to = floats_of(anchor, "anchor");
  const float* const from = floats_of(delta, to.size(), "delta").data();
  float* const velocity = momentum ? floats_of(*momentum, to.size(), "momentum").data() : nullptr;
  Squares moved;
  Squares given;
  in_steps(to.size(), [&](const OuterKernels& kernels, std::size_t first, std::size_t count) {
    kernels.step(static_cast<float>(lr), static_cast<float>(mu), from + first, count, to.data() + first,
                 velocity == nullptr ? nullptr : velocity + first, moved.sums.data(), given.sums.data());
  });
  return {moved.total(), given.total()};
}

void outer_carry(const Tensors& own, const at::Tensor& anchor, const at::Tensor& begin) {
  const core::FloatRules rules;
  const std::span<const float> from = floats_of(anchor, "anchor");
  const float* before = floats_of(begin, from.size(), "begin").data();
  std::size_t at = 0;
  for (const auto piece : pieces_of(own, from.size(), "own")) {
    in_steps(piece.size(), [&](const OuterKernels& kernels, std::size_t first, std::size_t count) {
      kernels.carry(from.data() + at + first, before + at + first, count, piece.data() + first);
    });
    at += piece.size();
  }
  for (const auto& tensor : own) mark_written(tensor);
}

void outer_blend(const Tensors& own, const at::Tensor& anchor, double keep) {
  const core::FloatRules rules;
  const std::span<const float> from = floats_of(anchor, "anchor");
  std::size_t at = 0;
  for (const auto piece : pieces_of(own, from.size(), "own")) {
    if (keep == 0) {  // NaN and Inf do not stay
      std::copy_n(from.data() + at, piece.size(), piece.data());
    } else {
      in_steps(piece.size(), [&](const OuterKernels& kernels, std::size_t first, std::size_t count) {
        kernels.blend(static_cast<float>(keep), static_cast<float>(1 - keep), from.data() + at + first, count,
                      piece.data() + first);
      });
    }
    at += piece.size();
  }
  for (const auto& tensor : own) mark_written(tensor);
}

void learn_scales(const at::Tensor& values, std::int64_t first, double weight, std::int64_t floor_bits,
                  const at::Tensor& mean_square, const at::Tensor& scale) {
  const std::span<const float> all = floats_of(values, "values");
  const std::span<float> squares = floats_of(mean_square, "mean_square");
  const std::span<float> scales = floats_of(scale, squares.size(), "scale");
  const auto begin = static_cast<std::size_t>(first);
  if (first < 0 || begin > all.size() || squares.size() > all.size() - begin) {
    throw_status(core::StatusCode::InvalidArgument,
                 core::str("mean_square has ", squares.size(), " elements, values ", all.size(),
                           ", looked at from ", first, " on"));
  }
  collective::learn_squares(all.subspan(begin, squares.size()), static_cast<float>(1 - weight),
                            static_cast<float>(weight), squares);
  const std::int32_t floor = collective::mean_exponent(all) + static_cast<std::int32_t>(floor_bits);
  collective::scales_from(squares, floor, scales);
}

}  // namespace geocomm::binding
