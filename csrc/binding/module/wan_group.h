// What a process group that spans sites runs on, put together: channels, exchange, notice of failures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "binding/calls/wan_collectives.h"
#include "binding/module/process_resources.h"

namespace geocomm::binding {

struct WanGroup {
  std::uint64_t group = 0;
  transport::JobToken token{};
  std::vector<transport::PeerAddress> peers;  // of all ranks
  collective::Topology topology;
  InnerBackends inner;
  std::shared_ptr<const collective::WanPolicy> policy;  // null: what is assumed where nobody has measured
  std::size_t min_compress_bytes = 0;
  bool preserve_inputs = false;
};

// Begins to dial the rank's neighbours; all others are dialled when first needed. Throws InvalidArgument, and
// what Endpoint::connect() and Exchange::create() refuse.
std::shared_ptr<WanCollectives> start_wan_collectives(const std::shared_ptr<ProcessResources>& process,
                                                      WanGroup config);

}  // namespace geocomm::binding
