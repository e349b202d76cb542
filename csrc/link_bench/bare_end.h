// What the kernel, and OpenSSL on top of it, move with nothing else in the way: a thread that sends in a loop
// over one blocking connection, and one that receives.
#pragma once

#include <memory>

#include "link_bench/bench_process.h"

namespace geocomm::link_bench {

std::unique_ptr<End> make_bare_end(const Settings& settings, bool parent, const Partner& partner);

}  // namespace geocomm::link_bench
