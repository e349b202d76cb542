// pybind11, and what torch adds to it: for the files that define Python's classes and functions.
#pragma once

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/operators.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

namespace geocomm::binding {
namespace py = pybind11;
}
