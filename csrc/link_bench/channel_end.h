// A channel of the transport between the two processes: operations of 64 chunks of 1 MiB, as an exchange
// of collectives sends them. The first operation is compared with what was sent.
#pragma once

#include <memory>

#include "link_bench/bench_process.h"

namespace geocomm::link_bench {

std::unique_ptr<End> make_channel_end(const Settings& settings, bool parent, const Partner& partner);

}  // namespace geocomm::link_bench
