#include "binding/module/policy_values.h"

#include <map>
#include <optional>
#include <set>

#include "binding/torch/comm_error.h"
#include "binding/torch/pybind_prelude.h"
#include "codec/payload/expected_size.h"
#include "collective/policy/cost_model.h"
#include "core/str.h"

namespace geocomm::binding {
namespace {

using core::StatusCode;

PyCodecSpec parse_spec(const std::string& text) {
  PyCodecSpec result;
  result.spec = value_or_throw(codec::CodecSpec::parse(text, &result.given));
  return result;
}

PyCodecSpec with_setting(const PyCodecSpec& self, const std::string& key, const std::string& value) {
  PyCodecSpec result{value_or_throw(self.spec.with_setting(key, value)), self.given};
  if (std::ranges::find(result.given, key) == result.given.end()) result.given.push_back(key);
  return result;
}

std::map<std::string, std::string> settings_of(const PyCodecSpec& self) {
  std::map<std::string, std::string> result;
  for (const codec::Setting& setting : self.spec.settings()) result.emplace(setting.key, setting.value);
  return result;
}

double expected_bytes(const PyCodecSpec& self, const std::string& dtype) {
  for (const core::DType type : {core::DType::Float32, core::DType::Float16, core::DType::BFloat16}) {
    if (core::to_string(type) == dtype) return codec::expected_bytes_per_element(self.spec, type);
  }
  throw_status(StatusCode::InvalidArgument, core::str("dtype ", dtype, " is not compressed"));
}

collective::LinkMatrix link_matrix(std::size_t sites, LinksTuple links) {
  auto& [rates, delays, up, down, regions, prices] = links;
  return {sites,           std::move(rates),   std::move(delays), std::move(up),
          std::move(down), std::move(regions), std::move(prices)};
}

collective::CostModel make_cost_model(std::size_t sites, LinksTuple links) {
  return value_or_throw(collective::CostModel::create(link_matrix(sites, std::move(links))));
}

// (from, over, to) of sites.
std::set<std::tuple<std::size_t, int, std::size_t>> relayed_pairs(const collective::RelayTurns& relays) {
  std::set<std::tuple<std::size_t, int, std::size_t>> pairs;
  for (const collective::RelayPaths& turn : relays.turns) {
    for (std::size_t pair = 0; pair < turn.over.size(); ++pair) {
      if (turn.over[pair] >= 0) pairs.emplace(pair / turn.sites, turn.over[pair], pair % turn.sites);
    }
  }
  return pairs;
}

std::set<std::tuple<std::size_t, int, std::size_t>> relays_for(std::size_t sites, LinksTuple given) {
  const collective::LinkMatrix links = link_matrix(sites, std::move(given));
  throw_if_error(links.validate());
  return relayed_pairs(collective::choose_relays(links));
}

py::dict scheme_values(const collective::CostModel& self, const collective::ReduceScheme& scheme,
                       double wire_bytes, double coding_s) {
  std::vector<double> shares;
  for (const std::uint32_t parts : scheme.shares) {
    shares.push_back(static_cast<double>(parts) / collective::kShareParts);
  }
  py::dict result;
  result["seconds"] = scheme.seconds(wire_bytes, coding_s);
  result["shares"] = shares;
  result["by_region"] = scheme.relays.has_adders();
  result["relays"] = relayed_pairs(scheme.relays);
  result["loads"] = scheme.link_loads(self.links().sites);
  return result;
}

collective::Pattern pattern_of(const std::string& name) {
  if (name == "all_reduce") return collective::Pattern::AllReduce;
  if (name == "reduce_scatter") return collective::Pattern::ReduceScatter;
  if (name == "all_gather") return collective::Pattern::AllGather;
  throw_status(StatusCode::InvalidArgument, core::str("there is no pattern ", name));
}

py::dict cost_choice(const collective::CostModel& self, double wire_bytes, const std::string& pattern,
                     double coding_s) {
  return scheme_values(self, self.choose(wire_bytes, pattern_of(pattern), coding_s), wire_bytes, coding_s);
}

std::vector<py::dict> cost_schemes(const collective::CostModel& self, double wire_bytes,
                                   const std::string& pattern) {
  std::vector<py::dict> all;
  for (const collective::ReduceScheme& scheme : self.schemes(pattern_of(pattern))) {
    all.push_back(scheme_values(self, scheme, wire_bytes, 0.0));
  }
  return all;
}

}  // namespace

std::shared_ptr<const collective::WanPolicy> make_policy(std::size_t sites, PolicyTuple policy) {
  auto& [links, codecs, codings] = policy;
  std::vector<collective::CodecClass> classes;
  for (const auto& [from_bytes, codec] : codecs) classes.push_back({from_bytes, codec.spec});
  std::vector<collective::HostCoding> coding;
  for (const auto& [codec, encode_s, decode_s, copy_s] : codings) {
    coding.push_back({codec.spec, encode_s, decode_s, copy_s});
  }
  return value_or_throw(collective::WanPolicy::create(link_matrix(sites, std::move(links)),
                                                      std::move(classes), std::move(coding)));
}

void bind_policy_values(py::module_& m) {
  py::class_<PyCodecSpec>(m, "CodecSpec")
      .def_static("parse", &parse_spec, py::arg("text"))
      .def("with_setting", &with_setting, py::arg("key"), py::arg("value"))
      .def("expected_bytes_per_element", &expected_bytes, py::arg("dtype") = "float32")
      .def_property_readonly("family", [](const PyCodecSpec& self) { return self.spec.family(); })
      .def_property_readonly("settings", &settings_of)
      .def_property_readonly("given", [](const PyCodecSpec& self) { return py::tuple(py::cast(self.given)); })
      .def_property_readonly("stage", [](const PyCodecSpec& self) { return self.spec.stage(); })
      .def_property_readonly("exact", [](const PyCodecSpec& self) { return self.spec.is_exact(); })
      .def_property_readonly("needs_feedback",
                             [](const PyCodecSpec& self) { return self.spec.needs_feedback(); })
      .def(
          "__eq__", [](const PyCodecSpec& self, const PyCodecSpec& other) { return self.spec == other.spec; },
          py::is_operator())
      .def("__hash__",
           [](const PyCodecSpec& self) { return std::hash<std::string>()(self.spec.to_string()); })
      .def("__str__", [](const PyCodecSpec& self) { return self.spec.to_string(); })
      .def("__repr__", [](const PyCodecSpec& self) {
        return core::str("CodecSpec.parse('", self.spec.to_string(), "')");
      });
  m.def("codec_names", &codec::codec_names);
  m.def("codec_presets", [] {
    std::vector<std::pair<std::string, std::string>> result;
    for (const auto& preset : codec::presets()) result.emplace_back(preset.name, preset.codec);
    return result;
  });

  py::class_<collective::CostModel>(m, "CostModel")
      .def(py::init(&make_cost_model), py::arg("sites"), py::arg("links"))
      .def("choice", &cost_choice, py::arg("wire_bytes"), py::arg("pattern") = "all_reduce",
           py::arg("coding_s") = 0.0)
      .def("schemes", &cost_schemes, py::arg("wire_bytes"), py::arg("pattern") = "all_reduce");
  m.def("choose_relays", &relays_for, py::arg("sites"), py::arg("links"));
}

}  // namespace geocomm::binding
