#include "codec/codec_spec.h"

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

constexpr std::array<std::string_view, 5> kNames = {"none", "fp16", "bf16", "int8", "int4"};
constexpr std::array<std::string_view, 2> kKeys = {"block", "round"};
constexpr std::array<std::string_view, 2> kRoundings = {"nearest", "stochastic"};
constexpr std::array<std::string_view, 7> kBlocks = {"64", "128", "256", "512", "1024", "2048", "4096"};

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

Status apply_setting(std::string_view whole, std::string_view key, std::string_view value, CodecSpec& spec) {
  if (key == "round") {
    const std::size_t rounding = index_of(kRoundings, value);
    if (rounding == kRoundings.size()) return unknown(whole, "value of 'round'", value, kRoundings);
    spec.rounding = static_cast<Rounding>(rounding);
    return Status::ok();
  }
  std::uint32_t block = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), block);
  if (error != std::errc() || end != value.data() + value.size() || !is_valid_block(block)) {
    return unknown(whole, "value of 'block'", value, kBlocks);
  }
  spec.block = block;
  return Status::ok();
}

}  // namespace

bool is_valid_block(std::uint32_t block) {
  return std::has_single_bit(block) && block >= kMinBlock && block <= kMaxBlock;
}

core::Result<CodecSpec> CodecSpec::parse(std::string_view text) {
  if (text.empty()) {
    return Status(StatusCode::InvalidArgument,
                  core::str("the codec's name is empty; name one of: ", join(kNames)));
  }
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const std::size_t id = index_of(kNames, name);
  if (id == kNames.size()) return unknown(text, "codec", name, kNames);
  CodecSpec spec;
  spec.id = static_cast<CodecId>(id);
  if (colon == std::string_view::npos) return spec;
  if (!spec.has_blocks()) {
    return Status(StatusCode::InvalidArgument,
                  core::str("codec ", quoted(text), ": '", name, "' takes no settings; write '", name, "'"));
  }

  std::string_view rest = text.substr(colon + 1);
  std::array<bool, kKeys.size()> seen{};
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    const std::string_view setting = rest.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
    const std::size_t equals = setting.find('=');
    if (equals == std::string_view::npos) {
      return Status(StatusCode::InvalidArgument,
                    core::str("codec ", quoted(text), ": expected key=value, got ", quoted(setting),
                              "; keys of '", name, "': ", join(kKeys)));
    }
    const std::string_view key = setting.substr(0, equals);
    const std::size_t index = index_of(kKeys, key);
    if (index == kKeys.size()) return unknown(text, core::str("key of '", name, "'"), key, kKeys);
    if (std::exchange(seen[index], true)) {
      return Status(StatusCode::InvalidArgument,
                    core::str("codec ", quoted(text), ": '", key, "' is given twice"));
    }
    GEOCOMM_RETURN_IF_ERROR(apply_setting(text, key, setting.substr(equals + 1), spec));
  }
  return spec;
}

std::string CodecSpec::to_string() const {
  std::string text{kNames[static_cast<std::size_t>(id)]};
  if (!has_blocks()) return text;
  char separator = ':';
  if (block != kDefaultBlock) {
    text += core::str(separator, "block=", block);
    separator = ',';
  }
  if (rounding != Rounding::Nearest) {
    text += core::str(separator, "round=", kRoundings[static_cast<std::size_t>(rounding)]);
  }
  return text;
}

std::vector<std::string> codec_names() {
  return {kNames.begin(), kNames.end()};
}

}  // namespace geocomm::codec
