#include "emulator/wan_config.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "core/str.h"
#include "emulator/wan_router.h"

namespace geocomm::emulator {
namespace {

using core::Result;
using core::Status;
using core::StatusCode;

constexpr std::size_t kMaxNameBytes = 64;
constexpr std::size_t kMaxControlPathBytes = 107;  // sockaddr_un

Status invalid(const std::string& message) {
  return {StatusCode::InvalidArgument, message};
}

template <typename T>
Status parse_number(std::string_view field, std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return invalid(core::str(field, ": '", text, "' is not a number in its range"));
  }
  return Status::ok();
}

Status parse_flag(std::string_view field, std::string_view text, bool& value) {
  if (text != "0" && text != "1") return invalid(core::str(field, ": '", text, "' is neither 0 nor 1"));
  value = text == "1";
  return Status::ok();
}

// The rule of geocomm/core/site.py.
bool is_site_name(std::string_view name) {
  const auto is_alnum = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  return !name.empty() && name.size() <= kMaxNameBytes && is_alnum(name[0]) &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return is_alnum(c) || c == '_' || c == '-' || c == '.'; });
}

Status add_site(const std::vector<std::string_view>& words, WanConfig& config) {
  if (words.size() != 2 || !is_site_name(words[1]))
    return invalid("site: expected one name of [A-Za-z0-9][A-Za-z0-9_.-]{0,63}");
  if (config.site_index(words[1])) return invalid(core::str("site: '", words[1], "' occurs twice"));
  if (!config.links.empty()) return invalid("site: all sites come before the first link");
  config.sites.emplace_back(words[1]);
  return Status::ok();
}

Status set_link(const std::vector<std::string_view>& words, WanConfig& config) {
  if (words.size() < 3) return invalid("link: expected two sites");
  const auto src = config.site_index(words[1]);
  const auto dst = config.site_index(words[2]);
  if (!src || !dst || src == dst) {
    return invalid(core::str("link: '", words[1], "' and '", words[2], "' are not two known sites"));
  }
  config.links.resize(config.sites.size() * config.sites.size());
  return apply_link_words({words.begin() + 3, words.end()}, config.links[*src * config.sites.size() + *dst]);
}

Status apply_line(std::string_view line, WanConfig& config) {
  const auto words = split_words(line);
  if (words.empty()) return Status::ok();
  const std::string_view key = words[0];
  if (key == "site") return add_site(words, config);
  if (key == "link") return set_link(words, config);
  if (words.size() < 2) return invalid(core::str(key, ": a value is missing"));
  const auto rest = line.substr(static_cast<std::size_t>(words[1].data() - line.data()));
  if (key == "keys") {
    config.keys_folder = std::string(rest);
    return Status::ok();
  }
  if (key == "control") {
    config.control_path = std::string(rest);
    return config.control_path.size() <= kMaxControlPathBytes
               ? Status::ok()
               : invalid(core::str("control: path of ", config.control_path.size(),
                                   " bytes, a socket's has at most ", kMaxControlPathBytes));
  }
  if (words.size() > 2) return invalid(core::str(key, ": more than one value"));
  if (key == "master_port") return parse_number(key, words[1], config.master_port);
  if (key == "seed") return parse_number(key, words[1], config.seed);
  if (key == "raw") return parse_flag(key, words[1], config.raw);
  if (key == "keep_going") return parse_flag(key, words[1], config.keep_going);
  if (key == "grace_ms") {
    std::uint32_t grace_ms = 0;
    GEOCOMM_RETURN_IF_ERROR(parse_number(key, words[1], grace_ms));
    config.grace = std::chrono::milliseconds(grace_ms);
    return Status::ok();
  }
  return invalid(core::str("unknown key '", key, "'"));
}

}  // namespace

std::vector<std::string_view> split_words(std::string_view line) {
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; (begin = line.find_first_not_of(" \t\r", begin)) != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(" \t\r", begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

std::optional<std::size_t> WanConfig::site_index(std::string_view name) const {
  const auto found = std::find(sites.begin(), sites.end(), name);
  if (found == sites.end()) return std::nullopt;
  return static_cast<std::size_t>(found - sites.begin());
}

Status apply_link_words(const std::vector<std::string_view>& words, LinkParams& params) {
  LinkParams changed = params;
  for (const std::string_view word : words) {
    const std::size_t equals = word.find('=');
    if (equals == std::string_view::npos) return invalid(core::str("link: '", word, "' is not key=value"));
    const std::string_view key = word.substr(0, equals);
    const std::string_view value = word.substr(equals + 1);
    if (key == "rate_bps") {
      GEOCOMM_RETURN_IF_ERROR(parse_number(key, value, changed.rate_bps));
    } else if (key == "delay_ns") {
      std::int64_t delay_ns = 0;
      GEOCOMM_RETURN_IF_ERROR(parse_number(key, value, delay_ns));
      changed.delay = std::chrono::nanoseconds(delay_ns);
    } else if (key == "loss") {
      GEOCOMM_RETURN_IF_ERROR(parse_number(key, value, changed.loss));
    } else if (key == "reorder") {
      GEOCOMM_RETURN_IF_ERROR(parse_number(key, value, changed.reorder));
    } else if (key == "duplicate") {
      GEOCOMM_RETURN_IF_ERROR(parse_number(key, value, changed.duplicate));
    } else if (key == "reset") {
      GEOCOMM_RETURN_IF_ERROR(parse_number(key, value, changed.reset));
    } else if (key == "queue_bytes") {
      GEOCOMM_RETURN_IF_ERROR(parse_number(key, value, changed.queue_limit_bytes));
    } else if (key == "up") {
      GEOCOMM_RETURN_IF_ERROR(parse_flag(key, value, changed.up));
    } else {
      return invalid(core::str("link: unknown key '", key, "'"));
    }
  }
  GEOCOMM_RETURN_IF_ERROR(changed.validate());
  params = changed;
  return Status::ok();
}

Result<WanConfig> parse_config(std::string_view text) {
  WanConfig config;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    ++number;
    if (const Status status = apply_line(text.substr(0, end), config); !status.is_ok()) {
      return invalid(core::str("configuration line ", number, ": ", status.message()));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (config.sites.size() < 2 || config.sites.size() > kMaxSites) {
    return invalid(core::str("there are ", config.sites.size(), " sites: 2 to ", kMaxSites, " are possible"));
  }
  config.links.resize(config.sites.size() * config.sites.size());
  return config;
}

}  // namespace geocomm::emulator
