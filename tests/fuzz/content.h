// Elements for the encoder targets, made from few bytes of input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "fuzz_target.h"

namespace geocomm::fuzz {

struct Fill {
  std::uint8_t kind;      // FillKind, modulo their number
  std::uint8_t spread;    // Noise: how unlike in magnitude; Palette: how skewed
  std::uint8_t exponent;  // Noise: of the magnitude
  std::uint8_t sparsity;  // Noise: so many of 256 elements are zero
};

enum class FillKind : std::uint8_t {
  Repeat,   // the input's bytes, again and again
  Noise,    // pseudorandom floats with a bell's shape, then patches of the input: place and bits
  Coarse,   // as Noise, with the low 16 bits of every Float32 zero but in patches
  Palette,  // a pseudorandom choice of the input's elements, the first ones more often
};
inline constexpr std::uint8_t kFillKinds = 4;

// The bytes of `elements` elements. Noise of what is no float is pseudorandom bytes.
std::vector<std::byte> make_content(const Fill& fill, core::DType dtype, std::size_t elements, Input input);

}  // namespace geocomm::fuzz
