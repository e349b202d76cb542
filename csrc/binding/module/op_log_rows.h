// What Python reads of the operation log.
#pragma once

#include <cstdint>

#include "binding/torch/pybind_prelude.h"

namespace geocomm::binding {

// A dict for each operation with a number above `after` that is still kept; times in ns of CLOCK_MONOTONIC,
// None where that has not happened.
py::list op_log_rows(std::uint64_t after);

}  // namespace geocomm::binding
