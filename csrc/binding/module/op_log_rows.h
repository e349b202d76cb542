// What Python reads of the operation log.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace geocomm::binding {

// A dict for each operation with a number above `after` that is still kept; times in ns of CLOCK_MONOTONIC,
// None where that has not happened.
pybind11::list op_log_rows(std::uint64_t after);

}  // namespace geocomm::binding
