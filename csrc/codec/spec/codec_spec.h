// CodecSpec: which codec, with which settings, and which entropy stage. Its string form is what users write:
// "int8", "int4:block=128,round=nearest+huffman", "balanced".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace geocomm::codec {

// The values stand on the wire (docs/spec/codecs.md): never renumber, and never give 6 again (it was the
// codec ternary).
enum class CodecId : std::uint8_t {
  None = 0,      // the elements as they are
  Fp16 = 1,      // cast to IEEE half, round to nearest even
  Bf16 = 2,      // cast to bfloat16, round to nearest even
  Int8 = 3,      // per block: bf16 scale = absmax / 127, q in [-127, 127]
  Int4 = 4,      // per block: bf16 scale = absmax / 7, q in [-7, 7], two per byte
  Bit2 = 5,      // per block: bf16 scale = rms, the four Lloyd-Max levels of a Gaussian, four per byte
  Bit1 = 7,      // per block: bf16 scale = mean magnitude, the sign, eight per byte
  DeadZone = 8,  // per block: bf16 step = f * rms, a wide zero bin; a bitmap and the values that are not zero
  TopK = 9,      // the largest elements: their places, and their values in a codec of their own
  Lossless = 10,  // byte planes of the element's bits
  Loco = 11,      // the k largest of each 4096 at a fixed rate: places in Elias-Fano, two magnitudes, signs
  BitPlanes = 12  // the values of DeadZone; codes as planes of bits
};
inline constexpr std::uint8_t kCodecIds = 13;  // all are below
constexpr bool is_codec(std::uint8_t id) {
  return id < kCodecIds && id != 6;
}

// Elements per scale: a power of two in this range.
inline constexpr std::uint32_t kMinBlock = 64;
inline constexpr std::uint32_t kMaxBlock = 4096;
inline constexpr std::uint32_t kDefaultBlock = 256;
bool is_valid_block(std::uint32_t block);

enum class Rounding : std::uint8_t { Nearest = 0, Stochastic = 1 };

// What packs the symbols that the lossy stage leaves. On the wire.
enum class Entropy : std::uint8_t { None = 0, Huffman = 1, Zstd = 2 };

// How TopK carries what it chose. On the wire.
enum class Values : std::uint8_t { Fp32 = 0, Bf16 = 1, Int8 = 2, Bit2 = 3 };
inline constexpr std::uint32_t kTopKChunk = 4096;

// A setting of a codec: block, "256".
struct Setting {
  std::string_view key;
  std::string value;
  friend bool operator==(const Setting&, const Setting&) = default;
};

// Grammar: name[:key=value,...][+stage].
//   name   a codec: none, fp16, bf16, int8, int4, bit2, bit1, deadzone, topk, lossless, loco, bitplanes;
//          or a preset, which takes neither settings nor a stage (presets())
//   block  elements per scale, a power of two from 64 to 4096; default 256, deadzone and bitplanes
//          4096. int8, int4, bit2, bit1, deadzone, bitplanes
//   round  nearest (default) | stochastic. int8, int4
//   step   step of deadzone and bitplanes in units of the rms, 0.05 to 8; default 0.7
//   k      elements kept of each 4096, 1 to 2048; default 64. topk, loco
//   values fp32 | bf16 | int8 (default) | bit2. topk
//   stage  none | huffman | zstd. Default huffman for deadzone, bitplanes, topk and lossless, none for the
//          others. The codec none takes no stage: lossless is what it would be. topk has no stage none; loco
//          has no other.
// What is not known, a key that the codec does not take, or a bad value is InvalidArgument with the nearest
// right spelling and the list of the right ones.
struct CodecSpec {
  CodecId id = CodecId::None;
  Rounding rounding = Rounding::Nearest;
  Entropy entropy = Entropy::None;
  std::uint32_t block = kDefaultBlock;  // elements per scale; ignored where there are no blocks
  float step = 0.7f;                    // DeadZone, BitPlanes; not in frames
  std::uint32_t k = 64;                 // TopK, Loco; not in the header of frames
  Values values = Values::Int8;         // TopK; not in frames

  // `given` takes the keys of the settings that the text names.
  static core::Result<CodecSpec> parse(std::string_view text, std::vector<std::string>* given = nullptr);
  // Canonical: parse(to_string()) gives the same spec; defaults are left out.
  std::string to_string() const;
  // The codec's name and stage, and all settings that it takes, as they stand in the string form.
  std::string_view family() const;
  std::string_view stage() const;
  std::vector<Setting> settings() const;
  // The same with another value of one setting. InvalidArgument as parse().
  core::Result<CodecSpec> with_setting(std::string_view key, std::string_view value) const;
  // Nothing is lost.
  bool is_exact() const { return id == CodecId::None || id == CodecId::Lossless; }
  // Whether the codec works on blocks that have a scale.
  bool has_blocks() const { return (id >= CodecId::Int8 && id <= CodecId::Bit1) || has_dead_zone(); }
  bool has_dead_zone() const { return id == CodecId::DeadZone || id == CodecId::BitPlanes; }
  bool has_rounding() const { return id == CodecId::Int8 || id == CodecId::Int4; }
  // Drops so much that only error feedback keeps what it drops.
  bool needs_feedback() const { return id == CodecId::TopK || id == CodecId::Loco; }
  friend bool operator==(const CodecSpec&, const CodecSpec&) = default;
};

// Whether two specs, as far as a frame's header tells them, are the same: id, block and stage.
bool same_frames(const CodecSpec& a, const CodecSpec& b);

// Names of codecs, in order of CodecId.
std::vector<std::string> codec_names();

// What users choose from who do not want to learn the table: a name, and the codec that it stands for.
struct Preset {
  std::string_view name;
  std::string_view codec;
};
std::vector<Preset> presets();

}  // namespace geocomm::codec
