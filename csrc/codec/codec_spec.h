// CodecSpec: which codec, with which settings. Its string form is what users write: "int8",
// "int4:block=128,round=nearest".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace geocomm::codec {

// The values stand on the wire (docs/wire-format.md): never renumber.
enum class CodecId : std::uint8_t {
  None = 0,  // the elements as they are
  Fp16 = 1,  // cast to IEEE half, round to nearest even
  Bf16 = 2,  // cast to bfloat16, round to nearest even
  Int8 = 3,  // per block: bf16 scale = absmax / 127, q in [-127, 127]
  Int4 = 4,  // per block: bf16 scale = absmax / 7, q in [-7, 7], two per byte
};

// Elements per scale: a power of two in this range.
inline constexpr std::uint32_t kMinBlock = 64;
inline constexpr std::uint32_t kMaxBlock = 4096;
inline constexpr std::uint32_t kDefaultBlock = 256;
bool is_valid_block(std::uint32_t block);

enum class Rounding : std::uint8_t { Nearest = 0, Stochastic = 1 };

// Grammar: name[:key=value,...]. Keys: `block` (power of two, 64-4096, default 256; int8 and int4), `round`
// (nearest | stochastic; int8 and int4; default nearest). A name that is not a codec, a key that the codec
// does not take, or a bad value is InvalidArgument with the nearest right spelling and the list of the right
// ones.
struct CodecSpec {
  CodecId id = CodecId::None;
  Rounding rounding = Rounding::Nearest;
  std::uint32_t block = kDefaultBlock;  // elements per scale; ignored by None, Fp16, Bf16

  static core::Result<CodecSpec> parse(std::string_view text);
  // Canonical: parse(to_string()) gives the same spec; defaults are left out.
  std::string to_string() const;
  bool is_exact() const { return id == CodecId::None; }
  // Whether the codec works on blocks that have a scale.
  bool has_blocks() const { return id == CodecId::Int8 || id == CodecId::Int4; }
  friend bool operator==(const CodecSpec&, const CodecSpec&) = default;
};

// Names that parse() takes, in order of CodecId.
std::vector<std::string> codec_names();

}  // namespace geocomm::codec
