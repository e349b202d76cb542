// The Python module geocomm._C. Its types are in geocomm/_C.pyi.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "binding/device/device_reduction.h"
#include "binding/module/op_log_rows.h"
#include "binding/module/policy_values.h"
#include "binding/module/process_group.h"
#include "binding/module/python_endpoint.h"
#include "binding/module/reconfigurable_group.h"
#include "binding/module/wan_group.h"
#include "binding/tensors/element_passes.h"
#include "binding/tensors/tensor_codec.h"
#include "binding/tensors/tensor_delta.h"
#include "binding/torch/pybind_prelude.h"
#include "core/cpu.h"
#include "core/log.h"
#include "core/str.h"

// c10d::Backend is a base that torch's own module registered: with other pybind11 internals it would be an
// unknown one.
static_assert(
    PYBIND11_INTERNALS_VERSION == GEOCOMM_TORCH_PYBIND11_INTERNALS,
    "the pybind11 headers are not those that this torch was built with; use the ones inside torch/include");

namespace geocomm::binding {
namespace {

using core::StatusCode;

// Status code name → exception class of geocomm/core/errors.py. Leaked: the interpreter may be gone when
// statics die.
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

// Process id, host, port, description, whether it is reached over RDMA.
using PeerTuple = std::tuple<py::bytes, std::string, std::uint16_t, std::string, bool, int>;

// Shared, and freed under the GIL, since the group may die on any thread.
std::shared_ptr<py::object> hold(const py::object& callable) {
  return {new py::object(callable), [](py::object* object) {
            const py::gil_scoped_acquire gil;
            delete object;
          }};
}

ProcessGroupGeocomm::SplitFunction split_function(const py::object& callable) {
  if (callable.is_none()) return nullptr;
  return [held = hold(callable)](const c10::intrusive_ptr<ProcessGroupGeocomm>& parent,
                                 const std::vector<int>& ranks,
                                 const c10::intrusive_ptr<c10d::Backend::Options>& options) -> BackendPtr {
    const py::gil_scoped_acquire gil;
    py::object child = (*held)(parent, ranks, options);
    return child.is_none() ? nullptr : child.cast<BackendPtr>();
  };
}

ProcessGroupGeocomm::ShutdownFunction shutdown_function(const py::object& callable) {
  if (callable.is_none()) return nullptr;
  return [held = hold(callable)] {
    const py::gil_scoped_acquire gil;
    try {
      (*held)();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("on_shutdown of a process group");
    }
  };
}

c10::intrusive_ptr<ProcessGroupGeocomm> make_group(
    int rank, int size, Milliseconds timeout,
    const std::map<std::string, std::pair<BackendPtr, BackendPtr>>& inner, std::vector<int> site_of_rank,
    std::vector<std::string> site_names, const std::optional<PyEndpoint>& endpoint, std::uint64_t group,
    const py::bytes& token, const std::vector<PeerTuple>& peers, std::optional<PolicyTuple> policy,
    std::size_t min_compress_bytes, bool preserve_inputs, const py::object& split,
    const py::object& on_shutdown) {
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
    WanGroup config{.group = group,
                    .token = fixed_bytes<16>(token, "token"),
                    .peers = {},
                    .topology = topology,
                    .inner = backends,
                    .policy = nullptr,
                    .min_compress_bytes = min_compress_bytes,
                    .preserve_inputs = preserve_inputs};
    for (const auto& [id, host, port, description, rdma, path_channels] : peers) {
      const int site = topology.site_of(static_cast<int>(config.peers.size()));
      config.peers.push_back({fixed_bytes<16>(id, "a peer's id"), host, port, description,
                              topology.site_name(site), rdma, path_channels});
    }
    if (policy) {
      const auto sites = static_cast<std::size_t>(topology.site_count());
      config.policy = make_policy(sites, std::move(*policy));
    }
    wan = start_wan_collectives(process, std::move(config));
  }
  if (process && !process->acquire()) {
    throw_status(StatusCode::Aborted, "the endpoint closed when its last process group did");
  }
  return c10::make_intrusive<ProcessGroupGeocomm>(rank, size, timeout, std::move(backends), std::move(wan),
                                                  std::move(process), split_function(split),
                                                  shutdown_function(on_shutdown));
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE
c10::intrusive_ptr<ReconfigurableGroup> make_reconfigurable(int rank, int size, Milliseconds timeout,
                                                            const py::object& handle,
                                                            const py::object& reconfigure,
                                                            const py::object& on_shutdown) {
  return c10::make_intrusive<ReconfigurableGroup>(
      rank, size, timeout,
      [held = hold(handle)] {
        const py::gil_scoped_acquire gil;
        return (*held)().cast<std::string>();
      },
      [held = hold(reconfigure)](ReconfigurableGroup& group, const c10d::ReconfigureOptions& options) {
        const py::gil_scoped_acquire gil;
        const auto* listed = std::get_if<std::vector<c10d::ReconfigureHandle>>(&options.handles);
        const py::object handles =
            listed ? py::object(py::cast(*listed)) : py::object(py::cast(std::get<0>(options.handles)));
        (*held)(c10::intrusive_ptr<ReconfigurableGroup>::reclaim_copy(&group), options.uuid, handles,
                options.timeout);
      },
      shutdown_function(on_shutdown));
}
#endif

py::dict feedback_dict(const FeedbackWork& self) {
  const CallerFeedback& feedback = self.feedback();
  py::dict result;
  result["committed"] = feedback.committed() && !self.exception();
  result["input_square"] = feedback.report().input_square;
  result["residual_square"] = feedback.report().residual_square;
  result["result_square"] = feedback.report().result_square;
  result["scaled_square"] = feedback.report().scaled_square;
  result["wire_bytes"] = feedback.report().wire_bytes;
  return result;
}

py::dict group_stats(const ProcessGroupGeocomm& self) {
  py::dict result;
  const auto stats = self.spans_sites() ? self.wan()->stats() : collective::ExchangeStats{};
  result["operations"] = stats.operations;
  result["raw_bytes_sent"] = stats.raw_bytes_sent;
  result["wire_bytes_sent"] = stats.wire_bytes_sent;
  result["raw_bytes_received"] = stats.raw_bytes_received;
  result["wire_bytes_received"] = stats.wire_bytes_received;
  result["relayed_bytes"] = stats.relayed_bytes;
  result["encode_seconds"] = static_cast<double>(stats.encode_time) * 1e-9;
  result["decode_seconds"] = static_cast<double>(stats.decode_time) * 1e-9;
  result["exposed_seconds"] =
      self.spans_sites() ? static_cast<double>(self.wan()->exposed()->nanoseconds()) * 1e-9 : 0.0;
  return result;
}

void set_group_policy(const ProcessGroupGeocomm& self, PolicyTuple policy) {
  if (!self.spans_sites()) throw_status(StatusCode::InvalidArgument, "the group is inside one site");
  const auto sites = static_cast<std::size_t>(self.wan()->topology().site_count());
  throw_if_error(self.wan()->set_policy(make_policy(sites, std::move(policy))));
}

std::vector<std::tuple<int, std::uint64_t, double>> take_group_rates(const ProcessGroupGeocomm& self) {
  std::vector<std::tuple<int, std::uint64_t, double>> result;
  if (!self.spans_sites()) return result;
  for (const collective::PeerRate& rate : self.wan()->take_rates()) {
    result.emplace_back(rate.rank, rate.bytes, rate.seconds);
  }
  return result;
}

py::object last_error_dict() {
  const auto record = last_error();
  if (!record) return py::none();
  py::dict result;
  result["code"] = std::string(core::to_string(record->status.code()));
  result["message"] = record->status.message();
  result["peer"] = record->status.peer();
  result["op"] = record->status.op();
  result["seq"] = record->status.seq();
  result["errno"] = record->status.sys_errno();
  result["time"] = record->unix_time;
  return result;
}

}  // namespace
}  // namespace geocomm::binding

// Torch itself lets go of the GIL in each call of a group: what it would guard has locks of its own.
PYBIND11_MODULE(_C, m, py::mod_gil_not_used()) {
  using namespace geocomm;           // NOLINT: the module's definition only
  using namespace geocomm::binding;  // NOLINT
  m.doc() = "Native core of geocomm.";
  m.attr("__torch_version__") = TORCH_VERSION;
  py::module_::import("torch.distributed");  // registers c10d::Backend, a base below
  py::register_exception_translator(&translate_exception);

  bind_policy_values(m);  // first: the signatures below name its types
  bind_endpoint(m);
  bind_mail(m);

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
           py::arg("policy") = py::none(), py::arg("min_compress_bytes") = 65536,
           py::arg("preserve_inputs") = false, py::arg("split") = py::none(),
           py::arg("on_shutdown") = py::none())
      .def_property_readonly("options", &ProcessGroupGeocomm::options)
      .def_property_readonly("spans_sites", &ProcessGroupGeocomm::spans_sites)
      .def_property_readonly("closed", &ProcessGroupGeocomm::closed)
      .def(
          "perform_nocolor_split", [](ProcessGroupGeocomm&, const at::Device&) {}, py::arg("device"))
      .def("stats", &group_stats)
      .def("all_reduce_compressed", &ProcessGroupGeocomm::all_reduce_compressed, py::arg("tensor"),
           py::arg("codec"), py::arg("residual"), py::arg("average"), py::arg("decay") = 1.0,
           py::arg("next_residual") = py::none(), py::arg("scale") = py::none(),
           py::call_guard<py::gil_scoped_release>())
      .def("encoded_range", &ProcessGroupGeocomm::encoded_range, py::arg("numel"), py::arg("dtype"))
      .def("set_policy", &set_group_policy, py::arg("policy"))
      .def("take_rates", &take_group_rates);

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  py::class_<ReconfigurableGroup, c10d::Backend, c10::intrusive_ptr<ReconfigurableGroup>>(
      m, "ReconfigurableGroup")
      .def(py::init(&make_reconfigurable), py::kw_only(), py::arg("rank"), py::arg("size"),
           py::arg("timeout"), py::arg("handle"), py::arg("reconfigure"), py::arg("on_shutdown"))
      .def_property_readonly("options", &ReconfigurableGroup::options)
      .def_property_readonly("current", &ReconfigurableGroup::current)
      .def("adopt", &ReconfigurableGroup::adopt, py::arg("members"), py::call_guard<py::gil_scoped_release>())
      .def("leave", &ReconfigurableGroup::leave, py::call_guard<py::gil_scoped_release>());
#endif

  py::class_<FeedbackWork, c10d::Work, c10::intrusive_ptr<FeedbackWork>>(m, "FeedbackWork")
      .def("feedback", &feedback_dict)
      .def("succeeded", &FeedbackWork::succeeded);

  m.def("compress", &compress_tensor, py::arg("tensor"), py::arg("codec"), py::arg("residual") = py::none(),
        py::arg("seed") = 0, py::arg("decay") = 1.0, py::arg("out") = py::none(), py::arg("threads") = 0,
        py::call_guard<py::gil_scoped_release>());
  m.def("decompress", &decompress_tensor, py::arg("payload"), py::arg("out") = py::none(),
        py::arg("add") = false, py::arg("max_elems") = py::none(), py::arg("threads") = 0,
        py::call_guard<py::gil_scoped_release>());
  m.def("make_delta", &make_tensor_delta, py::arg("tensor"), py::arg("base"), py::arg("threads") = 0,
        py::call_guard<py::gil_scoped_release>());
  m.def("apply_delta", &apply_tensor_delta, py::arg("delta"), py::arg("tensor"), py::arg("threads") = 0,
        py::call_guard<py::gil_scoped_release>());
  m.def("compress_bound", &tensor_bound, py::arg("tensor"), py::arg("codec"));
  m.def("learn_scales", &learn_scales, py::arg("values"), py::arg("first"), py::arg("weight"),
        py::arg("floor_bits"), py::arg("mean_square"), py::arg("scale"),
        py::call_guard<py::gil_scoped_release>());
  m.def("outer_delta", &outer_delta, py::arg("anchor"), py::arg("local"), py::arg("delta"),
        py::arg("kept") = py::none(), py::call_guard<py::gil_scoped_release>());
  m.def("outer_mean", &outer_mean, py::arg("deltas"), py::arg("shares"), py::arg("mean"),
        py::call_guard<py::gil_scoped_release>());
  m.def("outer_step", &outer_step, py::arg("lr"), py::arg("mu"), py::arg("delta"), py::arg("anchor"),
        py::arg("momentum") = py::none(), py::call_guard<py::gil_scoped_release>());
  m.def("outer_carry", &outer_carry, py::arg("own"), py::arg("anchor"), py::arg("begin"),
        py::call_guard<py::gil_scoped_release>());
  m.def("outer_blend", &outer_blend, py::arg("own"), py::arg("anchor"), py::arg("keep"),
        py::call_guard<py::gil_scoped_release>());
  m.def("wait_in_background", &ExposedTime::leave_out_this_thread);
  m.def("set_codec_threads", &set_codec_threads, py::arg("threads"));
  m.def("cpu_level", [] { return std::string(core::to_string(core::cpu_level())); });
  m.def("detected_cpu_level", [] { return std::string(core::to_string(core::detected_cpu_level())); });
  m.def("use_device_batches", &DeviceReduction::use_batches, py::arg("uses"));
  m.def(
      "code_on_device_from",
      [](const std::string& codec, std::optional<std::uint64_t> least_bytes) {
        const auto spec = value_or_throw(codec::CodecSpec::parse(codec));
        DeviceReduction::places().set_least_bytes(spec.to_string(),
                                                  least_bytes.value_or(CodingPlaces::kNever));
      },
      py::arg("codec"), py::arg("least_bytes"));
  m.def(
      "set_cpu_level",
      [](const std::string& level) {
        throw_if_error(core::force_cpu_level(value_or_throw(core::parse_cpu_level(level))));
      },
      py::arg("level"));
  m.def(
      "set_error_classes",
      [](const std::map<std::string, py::object>& classes) { error_classes() = classes; },
      py::arg("classes"));
  m.def("last_error", &last_error_dict);
  m.def("op_log", &op_log_rows, py::arg("after") = 0);
  m.def(
      "set_log_level", [](int level) { core::set_log_level(static_cast<core::LogLevel>(level)); },
      py::arg("level"));
  m.def(
      "log",
      [](std::string line) {
        core::write_log_line(std::move(line));
        // A thread of the user: the line comes before what it prints next, unless nobody reads stderr.
        core::flush_log(core::Deadline::after(Milliseconds(100)));
      },
      py::arg("line"), py::call_guard<py::gil_scoped_release>());
  m.def("set_log_json", &core::set_log_json, py::arg("fields"));
}
