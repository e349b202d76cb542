// OpKey as a key of std::unordered_map.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/channel.h"

namespace geocomm::transport {

struct OpKeyHash {
  std::size_t operator()(const OpKey& key) const {
    // Operation numbers are dense and groups random: the multiplication spreads the former.
    return static_cast<std::size_t>((key.group ^ (key.op * 0x9E3779B97F4A7C15ULL)) * 0xD6E8FEB86659FD93ULL);
  }
};

}  // namespace geocomm::transport
