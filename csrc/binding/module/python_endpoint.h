// The endpoint of a process and the mail over it, as Python has them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

#include "binding/module/process_resources.h"
#include "binding/torch/comm_error.h"
#include "binding/torch/pybind_prelude.h"
#include "core/str.h"

namespace geocomm::binding {

// What Python calls Endpoint.
struct PyEndpoint {
  std::shared_ptr<ProcessResources> process;
};

py::bytes bytes_of(const transport::ProcessId& id);

// Throws InvalidArgument where it has another length.
template <std::size_t N>
std::array<std::uint8_t, N> fixed_bytes(const py::bytes& value, const char* what) {
  const std::string_view view = value;
  std::array<std::uint8_t, N> result{};
  if (view.size() != N) {
    throw_status(core::StatusCode::InvalidArgument,
                 core::str(what, " must have ", N, " bytes, got ", view.size()));
  }
  std::memcpy(result.data(), view.data(), N);
  return result;
}

// Adds Endpoint.
void bind_endpoint(py::module_& m);
// Adds Mail.
void bind_mail(py::module_& m);

}  // namespace geocomm::binding
