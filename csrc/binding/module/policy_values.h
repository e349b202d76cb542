// The values that a policy is made of, as Python has them: codecs and links. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "codec/spec/codec_spec.h"
#include "collective/policy/wan_policy.h"

namespace pybind11 {
class module_;
}

namespace geocomm::binding {

// What Python calls CodecSpec.
struct PyCodecSpec {
  codec::CodecSpec spec;
  std::vector<std::string> given;  // the settings that its text named; no part of comparisons
};

// Bytes per second and one-way seconds, each [from * sites + to]; most that a site sends and receives, bytes
// per second; the number of its region; dollars for a byte that it sends to another one. Empty where unknown.
using LinksTuple = std::tuple<std::vector<double>, std::vector<double>, std::vector<double>,
                              std::vector<double>, std::vector<std::uint32_t>, std::vector<double>>;
// From so many raw bytes on, this codec; by ascending size.
using CodecClasses = std::vector<std::pair<std::uint64_t, PyCodecSpec>>;

// As collective::HostCoding.
using HostCodings = std::vector<std::tuple<PyCodecSpec, double, double, double>>;
using PolicyTuple = std::tuple<LinksTuple, CodecClasses, HostCodings>;

// Throws what WanPolicy::create() refuses.
std::shared_ptr<const collective::WanPolicy> make_policy(std::size_t sites, PolicyTuple policy);

// Adds CodecSpec and CostModel, and the functions that go with them.
void bind_policy_values(pybind11::module_& m);

}  // namespace geocomm::binding
