// The Python module geocomm._C. Its types are in geocomm/_C.pyi.
#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "binding/process_group.h"
#include "binding/staging.h"
#include "codec/payload.h"
#include "core/log.h"
#include "core/str.h"

// c10d::Backend is a base that torch's own module registered: with other pybind11 internals it would be an
// unknown one.
static_assert(
    PYBIND11_INTERNALS_VERSION == GEOCOMM_TORCH_PYBIND11_INTERNALS,
    "the pybind11 headers are not those that this torch was built with; use the ones inside torch/include");

namespace py = pybind11;

namespace geocomm::binding {
namespace {

using core::StatusCode;

// ---- errors
// -------------------------------------------------------------------------------------------------------

// Status code name → exception class of geocomm/errors.py. Leaked: the interpreter may be gone when statics
// die.
std::map<std::string, py::object>& error_classes() {
  static auto* classes = new std::map<std::string, py::object>();
  return *classes;
}

void raise_in_python(const core::Status& status) {
  const std::string code{core::to_string(status.code())};
  const auto found = error_classes().find(code);
  if (found == error_classes().end()) {
    PyErr_SetString(PyExc_RuntimeError, status.to_string().c_str());
    return;
  }
  py::object error = found->second(status.to_string());
  error.attr("code") = code;
  error.attr("peer") = status.peer();
  error.attr("op") = status.op();
  error.attr("seq") = status.seq();
  error.attr("errno") = status.sys_errno();
  PyErr_SetObject(found->second.ptr(), error.ptr());
}

void translate_exception(std::exception_ptr error) {
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (const StatusCarrier& carrier) {
    raise_in_python(carrier.status);
  }
}

// ---- tensor codec
// -------------------------------------------------------------------------------------------------

core::Result<core::DType> compressible_dtype(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) {
    return core::Status(StatusCode::Unsupported, "cannot compress sparse tensors; use tensor.to_dense()");
  }
  const auto dtype = moved_dtype(tensor.scalar_type());
  if (dtype == core::DType::UInt8 && tensor.scalar_type() != at::kByte) {
    return core::Status(StatusCode::Unsupported,
                        core::str("cannot compress tensors of dtype ", c10::toString(tensor.scalar_type())));
  }
  if (!tensor.device().is_cpu()) {
    return core::Status(
        StatusCode::Unsupported,
        core::str("cannot compress a tensor on ", tensor.device().str(), "; move it to the CPU first"));
  }
  return dtype;
}

at::ScalarType scalar_type_of(core::DType dtype) {
  switch (dtype) {
    case core::DType::Float32:
      return at::kFloat;
    case core::DType::Float64:
      return at::kDouble;
    case core::DType::Float16:
      return at::kHalf;
    case core::DType::BFloat16:
      return at::kBFloat16;
    case core::DType::Int8:
      return at::kChar;
    case core::DType::UInt8:
      return at::kByte;
    case core::DType::Int16:
      return at::kShort;
    case core::DType::Int32:
      return at::kInt;
    case core::DType::Int64:
      return at::kLong;
    case core::DType::Bool:
      return at::kBool;
  }
  return at::kByte;
}

at::Tensor compress_tensor(const at::Tensor& tensor, const std::string& codec,
                           const std::optional<at::Tensor>& residual, std::uint64_t seed) {
  const auto spec = value_or_throw(codec::CodecSpec::parse(codec));
  const auto dtype = value_or_throw(compressible_dtype(tensor));
  codec::CompressOptions options;
  options.seed = seed;
  if (residual) {
    if (residual->scalar_type() != at::kFloat || !residual->device().is_cpu() || !residual->is_contiguous() ||
        residual->numel() != tensor.numel()) {
      throw_status(StatusCode::InvalidArgument,
                   core::str("residual must be a contiguous float32 CPU tensor of ", tensor.numel(),
                             " elements, got ", residual->numel(), " of ",
                             c10::toString(residual->scalar_type()), " on ", residual->device().str()));
    }
    options.feedback = {static_cast<std::byte*>(residual->data_ptr()), core::DType::Float32,
                        static_cast<std::size_t>(residual->numel())};
  }
  const auto source = flat(tensor);
  const auto bound = codec::payload_bound(spec, dtype, static_cast<std::size_t>(source.numel()));
  auto payload = at::empty({static_cast<std::int64_t>(bound)}, at::kByte);
  const auto size = value_or_throw(
      codec::compress_payload(spec, dtype, bytes_of(source), bytes_of(payload), options, nullptr));
  return payload.narrow(0, 0, static_cast<std::int64_t>(size)).clone();
}

at::Tensor decompress_tensor(const at::Tensor& payload, const std::optional<at::Tensor>& out) {
  if (payload.scalar_type() != at::kByte || !payload.device().is_cpu() || !payload.is_contiguous()) {
    throw_status(StatusCode::InvalidArgument,
                 "payload must be a contiguous uint8 CPU tensor, as geocomm.compress gives");
  }
  const auto info = value_or_throw(codec::inspect_payload(bytes_of(payload)));
  const auto type = scalar_type_of(info.dtype);
  if (!out) {
    auto result = at::empty({static_cast<std::int64_t>(info.elements)}, type);
    throw_if_error(codec::decompress_payload(bytes_of(payload), bytes_of(result), nullptr));
    return result;
  }
  if (out->scalar_type() != type || static_cast<std::uint64_t>(out->numel()) != info.elements ||
      !out->device().is_cpu()) {
    throw_status(StatusCode::InvalidArgument,
                 core::str("the payload holds ", info.elements, " elements of ", core::to_string(info.dtype),
                           "; out has ", out->numel(), " of ", c10::toString(out->scalar_type()), " on ",
                           out->device().str()));
  }
  auto target = is_flat_view(*out) ? *out : at::empty(out->sizes(), out->options());
  throw_if_error(codec::decompress_payload(bytes_of(payload), bytes_of(target), nullptr));
  if (!target.is_same(*out)) out->copy_(target);
  return *out;
}

// ---- process resources
// --------------------------------------------------------------------------------------------

// What Python calls Endpoint.
struct PyEndpoint {
  std::shared_ptr<ProcessResources> process;
};

template <std::size_t N>
std::array<std::uint8_t, N> fixed_bytes(const py::bytes& value, const char* what) {
  const std::string_view view = value;
  std::array<std::uint8_t, N> result{};
  if (view.size() != N) {
    throw_status(StatusCode::InvalidArgument, core::str(what, " must have ", N, " bytes, got ", view.size()));
  }
  std::memcpy(result.data(), view.data(), N);
  return result;
}

PyEndpoint make_endpoint(const std::string& bind_address, std::uint16_t port, int streams, bool insecure,
                         Milliseconds link_deadline, std::uint64_t max_pacing_bps, std::size_t threads) {
  transport::EndpointOptions options;
  options.bind_address = bind_address;
  options.port = port;
  options.streams = streams;
  options.security = insecure ? transport::Security::Insecure : transport::Security::Required;
  options.link_deadline = link_deadline;
  options.max_pacing_bps = max_pacing_bps;
  return {std::make_shared<ProcessResources>(value_or_throw(transport::Endpoint::create(options)), threads)};
}

py::list channel_stats(const PyEndpoint& self) {
  py::list result;
  for (const auto& channel : self.process->endpoint->channels()) {
    const auto stats = channel->stats();
    py::dict row;
    row["peer"] = channel->peer();
    row["bytes_sent"] = stats.bytes_sent;
    row["bytes_received"] = stats.bytes_received;
    row["payload_sent"] = stats.payload_sent;
    row["payload_received"] = stats.payload_received;
    row["retransmitted_segments"] = stats.retransmitted_segments;
    row["rtt_us"] = stats.rtt_us;
    row["streams"] = stats.streams;
    row["congestion_control"] = stats.congestion_control;
    result.append(std::move(row));
  }
  return result;
}

// ---- process group
// ------------------------------------------------------------------------------------------------

using PeerTuple = std::tuple<py::bytes, std::string, std::uint16_t, std::string>;

ProcessGroupGeocomm::SplitFunction split_function(const py::object& callable) {
  if (callable.is_none()) return nullptr;
  // Shared, and freed under the GIL, since the group may die on any thread.
  std::shared_ptr<py::object> held(new py::object(callable), [](py::object* object) {
    const py::gil_scoped_acquire gil;
    delete object;
  });
  return [held](const c10::intrusive_ptr<ProcessGroupGeocomm>& parent, const std::vector<int>& ranks,
                const c10::intrusive_ptr<c10d::Backend::Options>& options) -> BackendPtr {
    const py::gil_scoped_acquire gil;
    py::object child = (*held)(parent, ranks, options);
    return child.is_none() ? nullptr : child.cast<BackendPtr>();
  };
}

// Ranks that a rank always has a channel to: its partners in lanes, and those before and after it at its own
// site.
std::set<int> neighbours_of(const collective::Topology& topology) {
  std::set<int> result;
  for (const auto& lane : collective::lanes_of(topology, std::uint64_t{1} << 30)) {
    const auto& ranks = lane.rank_of_site;
    if (ranks[static_cast<std::size_t>(topology.site())] == topology.rank())
      result.insert(ranks.begin(), ranks.end());
  }
  const auto& beside = topology.ranks_of(topology.site());
  const auto count = beside.size();
  const auto place = static_cast<std::size_t>(topology.local_rank());
  result.insert(beside[(place + 1) % count]);
  result.insert(beside[(place + count - 1) % count]);
  result.erase(topology.rank());
  return result;
}

c10::intrusive_ptr<ProcessGroupGeocomm> make_group(
    int rank, int size, Milliseconds timeout,
    const std::map<std::string, std::pair<BackendPtr, BackendPtr>>& inner, std::vector<int> site_of_rank,
    std::vector<std::string> site_names, const std::optional<PyEndpoint>& endpoint, std::uint64_t group,
    const py::bytes& token, const std::vector<PeerTuple>& peers, const std::string& codec,
    std::size_t min_compress_bytes, bool preserve_inputs, const py::object& split) {
  InnerBackends backends;
  for (const auto& [device, pair] : inner) backends[at::Device(device).type()] = {pair.first, pair.second};
  auto topology =
      value_or_throw(collective::Topology::create(rank, std::move(site_of_rank), std::move(site_names)));
  if (topology.size() != size)
    throw_status(StatusCode::InvalidArgument, "site_of_rank must name a site for every rank");

  std::shared_ptr<WanCollectives> wan;
  std::shared_ptr<ProcessResources> process;
  if (topology.site_count() > 1) {
    if (!endpoint) throw_status(StatusCode::InvalidArgument, "a group that spans sites needs an endpoint");
    if (static_cast<int>(peers.size()) != size) {
      throw_status(StatusCode::InvalidArgument,
                   core::str("peers has ", peers.size(), " entries for ", size, " ranks"));
    }
    process = endpoint->process;
    const auto job = fixed_bytes<16>(token, "token");
    std::vector<transport::PeerAddress> addresses;
    for (const auto& [id, host, port, description] : peers) {
      addresses.push_back({fixed_bytes<16>(id, "a peer's id"), host, port, description});
    }
    process->endpoint->allow(job);
    // The ranks that this one exchanges lanes with are dialled now, and its neighbours at its own site, so
    // that each hears of the others' failures; all others when first needed.
    const auto channel_to = [process, addresses, job](int peer) {
      return process->endpoint->connect(addresses[static_cast<std::size_t>(peer)], job);
    };
    std::vector<std::shared_ptr<transport::Channel>> neighbours;
    for (const int peer : neighbours_of(topology)) neighbours.push_back(value_or_throw(channel_to(peer)));
    const bool on_one_site_only = topology.local_size() == 1;
    if (!on_one_site_only && backends.empty()) {
      throw_status(StatusCode::InvalidArgument, "a site of several ranks needs inner backends");
    }
    collective::ExchangeConfig config{.group = group,
                                      .topology = topology,
                                      .channel_to = channel_to,
                                      .codec = value_or_throw(codec::CodecSpec::parse(codec)),
                                      .min_compress_bytes = min_compress_bytes,
                                      .pool = &process->pool,
                                      .buffers = &process->buffers};
    wan = std::make_shared<WanCollectives>(
        value_or_throw(collective::Exchange::create(std::move(config))), backends, preserve_inputs,
        std::make_shared<FailureNotice>(group, std::move(neighbours), blocking_executor(), process->buffers));
    wan->start();
  }
  if (process && !process->acquire()) {
    throw_status(StatusCode::Aborted, "the endpoint closed when its last process group did");
  }
  return c10::make_intrusive<ProcessGroupGeocomm>(rank, size, timeout, std::move(backends), std::move(wan),
                                                  std::move(process), split_function(split));
}

py::dict group_stats(const ProcessGroupGeocomm& self) {
  py::dict result;
  const auto stats = self.spans_sites() ? self.wan()->stats() : collective::ExchangeStats{};
  result["operations"] = stats.operations;
  result["raw_bytes_sent"] = stats.raw_bytes_sent;
  result["wire_bytes_sent"] = stats.wire_bytes_sent;
  result["raw_bytes_received"] = stats.raw_bytes_received;
  result["wire_bytes_received"] = stats.wire_bytes_received;
  result["exposed_seconds"] =
      self.spans_sites() ? static_cast<double>(self.wan()->exposed()->load()) * 1e-9 : 0.0;
  return result;
}

py::object last_error_dict() {
  ErrorRecord record;
  if (!last_error(record)) return py::none();
  py::dict result;
  result["code"] = std::string(core::to_string(record.status.code()));
  result["message"] = record.status.message();
  result["peer"] = record.status.peer();
  result["op"] = record.status.op();
  result["seq"] = record.status.seq();
  result["errno"] = record.status.sys_errno();
  result["time"] = record.unix_time;
  return result;
}

}  // namespace
}  // namespace geocomm::binding

PYBIND11_MODULE(_C, m) {
  using namespace geocomm;           // NOLINT: the module's definition only
  using namespace geocomm::binding;  // NOLINT
  m.doc() = "Native core of geocomm.";
  m.attr("__torch_version__") = TORCH_VERSION;
  py::module_::import("torch.distributed");  // registers c10d::Backend, a base below
  py::register_exception_translator(&translate_exception);

  py::class_<PyEndpoint>(m, "Endpoint")
      .def(py::init(&make_endpoint), py::kw_only(), py::arg("bind_address") = "", py::arg("port") = 0,
           py::arg("streams") = 0, py::arg("insecure") = false,
           py::arg("link_deadline") = Milliseconds(60'000), py::arg("max_pacing_bps") = 0,
           py::arg("threads") = 1)
      .def_property_readonly("id",
                             [](const PyEndpoint& self) {
                               const auto& id = self.process->endpoint->id();
                               return py::bytes(reinterpret_cast<const char*>(id.data()), id.size());
                             })
      .def_property_readonly("port", [](const PyEndpoint& self) { return self.process->endpoint->port(); })
      .def("acquire", [](const PyEndpoint& self) { return self.process->acquire(); })
      .def(
          "release", [](const PyEndpoint& self) { self.process->release(); },
          py::call_guard<py::gil_scoped_release>())
      .def("channel_stats", &channel_stats);

  py::class_<ProcessGroupGeocomm, c10d::Backend, c10::intrusive_ptr<ProcessGroupGeocomm>> group(
      m, "ProcessGroupGeocomm");
  py::class_<ProcessGroupGeocomm::Options, c10d::Backend::Options,
             c10::intrusive_ptr<ProcessGroupGeocomm::Options>>(group, "Options")
      .def(py::init([](Milliseconds timeout) {
             return c10::make_intrusive<ProcessGroupGeocomm::Options>(timeout);
           }),
           py::arg("timeout") = Milliseconds(30 * 60 * 1000))
      .def("__deepcopy__", [](const ProcessGroupGeocomm::Options& self, const py::dict&) {
        return c10::make_intrusive<ProcessGroupGeocomm::Options>(self);
      });
  group
      .def(py::init(&make_group), py::kw_only(), py::arg("rank"), py::arg("size"), py::arg("timeout"),
           py::arg("inner"), py::arg("site_of_rank"), py::arg("site_names"), py::arg("endpoint") = py::none(),
           py::arg("group") = 0, py::arg("token") = py::bytes(), py::arg("peers") = std::vector<PeerTuple>{},
           py::arg("codec") = "none", py::arg("min_compress_bytes") = 65536,
           py::arg("preserve_inputs") = false, py::arg("split") = py::none())
      .def_property_readonly("options", &ProcessGroupGeocomm::options)
      .def_property_readonly("spans_sites", &ProcessGroupGeocomm::spans_sites)
      .def_property_readonly("closed", &ProcessGroupGeocomm::closed)
      .def(
          "perform_nocolor_split", [](ProcessGroupGeocomm&, const at::Device&) {}, py::arg("device"))
      .def("stats", &group_stats);

  m.def("compress", &compress_tensor, py::arg("tensor"), py::arg("codec"), py::arg("residual") = py::none(),
        py::arg("seed") = 0, py::call_guard<py::gil_scoped_release>());
  m.def("decompress", &decompress_tensor, py::arg("payload"), py::arg("out") = py::none(),
        py::call_guard<py::gil_scoped_release>());
  m.def(
      "canonical_codec",
      [](const std::string& codec) { return value_or_throw(codec::CodecSpec::parse(codec)).to_string(); },
      py::arg("codec"));
  m.def("codec_names", &codec::codec_names);
  m.def(
      "set_error_classes",
      [](const std::map<std::string, py::object>& classes) { error_classes() = classes; },
      py::arg("classes"));
  m.def("last_error", &last_error_dict);
  m.def(
      "set_log_level", [](int level) { core::set_log_level(static_cast<core::LogLevel>(level)); },
      py::arg("level"));
}
