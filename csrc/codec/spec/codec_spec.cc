#include "codec/spec/codec_spec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <charconv>
#include <numeric>
#include <span>
#include <utility>

#include "core/str.h"

namespace geocomm::codec {
namespace {

using core::Status;
using core::StatusCode;

// By CodecId; empty where there is none.
constexpr std::array<std::string_view, kCodecIds> kNames = {
    "none", "fp16",     "bf16", "int8",     "int4", "bit2",     "",
    "bit1", "deadzone", "topk", "lossless", "loco", "bitplanes"};
constexpr std::array<Preset, 6> kPresets = {{{"lossless", "lossless"},
                                             {"int8", "int8"},
                                             {"int4", "int4"},
                                             {"balanced", "bitplanes:step=0.7"},
                                             {"small", "bitplanes:step=1"},
                                             {"tiny", "topk:k=64,values=bit2"}}};
constexpr std::array<std::string_view, 2> kRoundings = {"nearest", "stochastic"};
constexpr std::array<std::string_view, 3> kStages = {"none", "huffman", "zstd"};
constexpr std::array<std::string_view, 4> kValues = {"fp32", "bf16", "int8", "bit2"};
constexpr std::array<std::string_view, 7> kBlocks = {"64", "128", "256", "512", "1024", "2048", "4096"};
constexpr float kMinStep = 0.05f;
constexpr float kMaxStep = 8.0f;
constexpr std::uint32_t kMaxK = 2048;

// Levenshtein distance, without regard to case.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const bool same = std::tolower(static_cast<unsigned char>(a[i])) == b[j];
      const std::size_t replaced = diagonal + (same ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

std::string_view nearest(std::string_view text, std::span<const std::string_view> choices) {
  return *std::ranges::min_element(choices, {},
                                   [&](std::string_view choice) { return edit_distance(text, choice); });
}

std::vector<std::string_view> known_names() {
  std::vector<std::string_view> names;
  for (const std::string_view name : kNames) {
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

std::string join(std::span<const std::string_view> parts) {
  std::string text;
  for (const auto part : parts) text += (text.empty() ? "" : ", ") + std::string(part);
  return text;
}

// A codec string may be long (it comes from the environment): a message quotes the beginning.
std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 64;
  return core::str('\'', text.substr(0, kShown), text.size() > kShown ? "...'" : "'");
}

Status unknown(std::string_view whole, std::string_view what, std::string_view text,
               std::span<const std::string_view> choices) {
  const std::string shown = quoted(text);
  return {StatusCode::InvalidArgument,
          core::str("codec ", quoted(whole), ": ", shown, " is not a known ", what, "; did you mean '",
                    nearest(text.substr(0, 64), choices), "'? Known: ", join(choices))};
}

template <std::size_t kSize>
std::size_t index_of(const std::array<std::string_view, kSize>& choices, std::string_view text) {
  return static_cast<std::size_t>(std::ranges::find(choices, text) - choices.begin());
}

Status bad_value(std::string_view whole, std::string_view key, std::string_view value,
                 std::string_view wanted) {
  return {StatusCode::InvalidArgument, core::str("codec ", quoted(whole), ": ", key, "=", quoted(value),
                                                 " is not possible; it must be ", wanted)};
}

template <typename T>
bool parse_number(std::string_view text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

template <typename Enum, std::size_t kSize>
Status apply_choice(std::string_view whole, std::string_view key, std::string_view value,
                    const std::array<std::string_view, kSize>& choices, Enum& to) {
  const std::size_t index = index_of(choices, value);
  if (index == kSize) return unknown(whole, core::str("value of '", key, "'"), value, choices);
  to = static_cast<Enum>(index);
  return Status::ok();
}

std::vector<std::string_view> keys_of(const CodecSpec& spec) {
  std::vector<std::string_view> keys;
  if (spec.has_blocks()) keys.push_back("block");
  if (spec.has_rounding()) keys.push_back("round");
  if (spec.has_dead_zone()) keys.push_back("step");
  if (spec.id == CodecId::Loco) keys.push_back("k");
  if (spec.id == CodecId::TopK) keys.insert(keys.end(), {"k", "values"});
  return keys;
}

CodecSpec defaults_of(CodecId id) {
  CodecSpec spec;
  spec.id = id;
  if (spec.has_dead_zone()) spec.block = kMaxBlock;
  if (spec.has_dead_zone() || id == CodecId::TopK || id == CodecId::Lossless) {
    spec.entropy = Entropy::Huffman;
  }
  return spec;
}

Status takes_no_settings(std::string_view whole, std::string_view name) {
  return {StatusCode::InvalidArgument,
          core::str("codec ", quoted(whole), ": '", name, "' takes no settings; write '", name, "'")};
}

// As it stands in the string form; `key` is one of keys_of(spec).
std::string value_of(const CodecSpec& spec, std::string_view key) {
  if (key == "round") return std::string(kRoundings[static_cast<std::size_t>(spec.rounding)]);
  if (key == "values") return std::string(kValues[static_cast<std::size_t>(spec.values)]);
  if (key == "k") return core::str(spec.k);
  if (key == "block") return core::str(spec.block);
  std::array<char, 32> number{};
  const auto end = std::to_chars(number.data(), number.data() + number.size(), spec.step).ptr;
  return {number.data(), end};
}

// `key` is one of keys_of(spec).
Status apply_setting(std::string_view whole, std::string_view key, std::string_view value, CodecSpec& spec) {
  if (key == "round") return apply_choice(whole, key, value, kRoundings, spec.rounding);
  if (key == "values") return apply_choice(whole, key, value, kValues, spec.values);
  if (key == "step") {
    if (parse_number(value, spec.step) && spec.step >= kMinStep && spec.step <= kMaxStep) return Status::ok();
    return bad_value(whole, key, value, "a number from 0.05 to 8, in units of the rms");
  }
  if (key == "k") {
    if (parse_number(value, spec.k) && spec.k >= 1 && spec.k <= kMaxK) return Status::ok();
    return bad_value(whole, key, value, "a whole number from 1 to 2048: how many of each 4096 are kept");
  }
  if (parse_number(value, spec.block) && is_valid_block(spec.block)) return Status::ok();
  return unknown(whole, "value of 'block'", value, kBlocks);
}

Status apply_stage(std::string_view whole, std::string_view stage, CodecSpec& spec) {
  GEOCOMM_RETURN_IF_ERROR(apply_choice(whole, "stage", stage, kStages, spec.entropy));
  if (spec.id == CodecId::None && spec.entropy != Entropy::None) {
    return {StatusCode::InvalidArgument,
            core::str("codec ", quoted(whole), ": 'none' takes no stage; write '",
                      spec.entropy == Entropy::Zstd ? "lossless+zstd" : "lossless", "'")};
  }
  if (spec.id == CodecId::TopK && spec.entropy == Entropy::None) {
    return {StatusCode::InvalidArgument,
            core::str("codec ", quoted(whole), ": 'topk' packs its places; write 'topk' or 'topk+zstd'")};
  }
  if (spec.id == CodecId::Loco && spec.entropy != Entropy::None) {
    return {StatusCode::InvalidArgument,
            core::str("codec ", quoted(whole),
                      ": 'loco' takes no stage, its bits are packed already; write 'loco'")};
  }
  return Status::ok();
}

// What has settings or a stage: name[:key=value,...][+stage].
core::Result<CodecSpec> parse_codec(std::string_view text, std::vector<std::string>* given) {
  const std::size_t plus = text.find('+');
  const std::string_view before = text.substr(0, plus);
  const std::size_t colon = before.find(':');
  const std::string_view name = before.substr(0, colon);
  const std::size_t id = index_of(kNames, name);
  if (id == kNames.size() || name.empty()) {
    for (const Preset& preset : kPresets) {
      if (name != preset.name) continue;
      return Status(StatusCode::InvalidArgument,
                    core::str("codec ", quoted(text), ": the preset '", name,
                              "' takes neither settings nor a stage; it stands for '", preset.codec, "'"));
    }
    std::vector<std::string_view> names = known_names();
    for (const Preset& preset : kPresets) {
      if (std::ranges::find(names, preset.name) == names.end()) names.push_back(preset.name);
    }
    return unknown(text, "codec", name, names);
  }
  CodecSpec spec = defaults_of(static_cast<CodecId>(id));
  if (colon != std::string_view::npos) {
    const std::vector<std::string_view> keys = keys_of(spec);
    if (keys.empty()) return takes_no_settings(text, name);
    std::vector<std::string_view> seen;
    std::string_view rest = before.substr(colon + 1);
    for (bool more = true; more;) {
      const std::size_t comma = rest.find(',');
      const std::string_view setting = rest.substr(0, comma);
      more = comma != std::string_view::npos;
      if (more) rest.remove_prefix(comma + 1);
      const std::size_t equals = setting.find('=');
      if (equals == std::string_view::npos) {
        return Status(StatusCode::InvalidArgument,
                      core::str("codec ", quoted(text), ": expected key=value, got ", quoted(setting),
                                "; keys of '", name, "': ", join(keys)));
      }
      const std::string_view key = setting.substr(0, equals);
      if (std::ranges::find(keys, key) == keys.end()) {
        return unknown(text, core::str("key of '", name, "'"), key, keys);
      }
      if (std::ranges::find(seen, key) != seen.end()) {
        return Status(StatusCode::InvalidArgument,
                      core::str("codec ", quoted(text), ": '", key, "' is given twice"));
      }
      seen.push_back(key);
      GEOCOMM_RETURN_IF_ERROR(apply_setting(text, key, setting.substr(equals + 1), spec));
    }
    if (given != nullptr) given->assign(seen.begin(), seen.end());
  }
  if (plus != std::string_view::npos) {
    GEOCOMM_RETURN_IF_ERROR(apply_stage(text, text.substr(plus + 1), spec));
  }
  return spec;
}

}  // namespace

bool is_valid_block(std::uint32_t block) {
  return std::has_single_bit(block) && block >= kMinBlock && block <= kMaxBlock;
}

core::Result<CodecSpec> CodecSpec::parse(std::string_view text, std::vector<std::string>* given) {
  if (text.empty()) {
    return Status(StatusCode::InvalidArgument,
                  core::str("the codec's name is empty; name one of: ", join(known_names())));
  }
  for (const Preset& preset : kPresets) {
    if (text == preset.name) return parse_codec(preset.codec, nullptr);
  }
  return parse_codec(text, given);
}

std::string CodecSpec::to_string() const {
  const CodecSpec defaults = defaults_of(id);
  const std::vector<Setting> usual = defaults.settings();
  std::string text{family()};
  char separator = ':';
  for (const Setting& setting : settings()) {
    if (std::ranges::find(usual, setting) != usual.end()) continue;
    text += core::str(separator, setting.key, '=', setting.value);
    separator = ',';
  }
  if (entropy != defaults.entropy) text += core::str('+', stage());
  return text;
}

std::string_view CodecSpec::family() const {
  return kNames[static_cast<std::size_t>(id)];
}

std::string_view CodecSpec::stage() const {
  return kStages[static_cast<std::size_t>(entropy)];
}

std::vector<Setting> CodecSpec::settings() const {
  std::vector<Setting> result;
  for (const std::string_view key : keys_of(*this)) result.push_back({key, value_of(*this, key)});
  return result;
}

core::Result<CodecSpec> CodecSpec::with_setting(std::string_view key, std::string_view value) const {
  const std::string text = to_string();
  const std::vector<std::string_view> keys = keys_of(*this);
  if (keys.empty()) return takes_no_settings(text, family());
  if (std::ranges::find(keys, key) == keys.end()) {
    return unknown(text, core::str("key of '", family(), "'"), key, keys);
  }
  CodecSpec spec = *this;
  GEOCOMM_RETURN_IF_ERROR(apply_setting(text, key, value, spec));
  return spec;
}

bool same_frames(const CodecSpec& a, const CodecSpec& b) {
  return a.id == b.id && a.entropy == b.entropy && (!a.has_blocks() || a.block == b.block);
}

std::vector<std::string> codec_names() {
  const std::vector<std::string_view> names = known_names();
  return {names.begin(), names.end()};
}

std::vector<Preset> presets() {
  return {kPresets.begin(), kPresets.end()};
}

}  // namespace geocomm::codec
