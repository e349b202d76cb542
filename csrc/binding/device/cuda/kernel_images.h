// Whether the current device can run what this build would start on it. Loads it as well, before there are
// gates for which loading could wait.
#pragma once

#include <functional>
#include <string>

namespace geocomm::binding {

// `starts` enqueues kernels, of which none is run; the answer counts for all calls with this `key`. false:
// the host has to do it, which a warning says once for a device.
bool has_kernels(const std::string& key, const std::function<void()>& starts);

}  // namespace geocomm::binding
