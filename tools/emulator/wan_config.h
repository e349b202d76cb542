// What `wan_emulator run` is told: lines of words, ended by "go". Written by
// geocomm/lab/emulator/emulated_wan.py:
//   site <name>
//       once per site, in order of rank; letters, digits, '_', '-', '.'; at most 32
//   link <src> <dst> <key>=<value>…
//       keys rate_bps, delay_ns, loss, queue_bytes, up (0 or 1), reorder, duplicate, reset; after the sites
//   master_port <port> | grace_ms <n> | seed <n> | raw <0|1> | keep_going <0|1>
//   control <path>
//       where the control socket is made; the rest of the line, at most 107 bytes
//   keys <folder>
//       the rest of the line; GEOCOMM_KEYS of a site is its folder in there
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "emulator/wan_link.h"

namespace geocomm::emulator {

struct WanConfig {
  std::vector<std::string> sites;
  std::vector<LinkParams> links;  // sites.size()^2, link (src, dst) at src * sites.size() + dst
  std::uint16_t master_port = 29500;
  std::chrono::milliseconds grace{5000};
  std::uint64_t seed = 1;
  bool raw = false;
  bool keep_going = false;
  std::string control_path;
  std::string keys_folder;  // empty: GEOCOMM_KEYS is left alone

  std::optional<std::size_t> site_index(std::string_view name) const;
};

// All lines up to and without "go". InvalidArgument names the line and the field.
core::Result<WanConfig> parse_config(std::string_view text);

// Applies "<key>=<value>" words to `params` and validates the outcome; on error `params` is unchanged.
core::Status apply_link_words(const std::vector<std::string_view>& words, LinkParams& params);

std::vector<std::string_view> split_words(std::string_view line);

}  // namespace geocomm::emulator
