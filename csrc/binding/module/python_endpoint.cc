#include "binding/module/python_endpoint.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "binding/torch/python_thread.h"

namespace geocomm::binding {

using core::StatusCode;

py::bytes bytes_of(const transport::ProcessId& id) {
  return {reinterpret_cast<const char*>(id.data()), id.size()};
}

namespace {

PyEndpoint make_endpoint(const std::string& bind_address, std::uint16_t port, int streams, bool insecure,
                         const std::string& keys, const std::string& site, Milliseconds link_deadline,
                         Milliseconds believed_refusal, bool outbound_only, std::uint64_t max_pacing_bps,
                         std::size_t threads, const std::string& rdma_plugin, bool rdma_trusted,
                         bool rdma_allow_tcp) {
  transport::EndpointOptions options;
  options.bind_address = bind_address;
  options.port = port;
  options.streams = streams;
  options.security = insecure ? transport::Security::Insecure : transport::Security::Required;
  options.keys = keys;
  options.site = site;
  options.link_deadline = link_deadline;
  options.believed_refusal = believed_refusal;
  options.outbound_only = outbound_only;
  options.max_pacing_bps = max_pacing_bps;
  options.tls_threads = transport::tls_threads_beside(threads);
  options.rdma = {.library = rdma_plugin, .trusted = rdma_trusted, .allow_tcp = rdma_allow_tcp};
  const GilRelease released;  // it may wait for the port
  return {ProcessResources::create(value_or_throw(transport::Endpoint::create(options)), threads)};
}

py::list channel_stats(const PyEndpoint& self) {
  py::list result;
  if (self.process->is_inherited()) return result;
  for (const auto& channel : self.process->endpoint->channels()) {
    const auto stats = [&channel] {
      const GilRelease released;  // the channel may be about to free a tensor
      return channel->stats();
    }();
    py::dict row;
    row["peer"] = channel->peer();
    row["bytes_sent"] = stats.bytes_sent;
    row["bytes_received"] = stats.bytes_received;
    row["payload_sent"] = stats.payload_sent;
    row["payload_received"] = stats.payload_received;
    row["retransmitted_segments"] = stats.tcp.retransmitted_segments;
    row["retransmitted_bytes"] = stats.tcp.retransmitted_bytes;
    row["tcp_bytes_sent"] = stats.tcp.data_bytes;
    row["busy_us"] = stats.tcp.busy_us;
    row["resumes"] = stats.resumes;
    row["outages"] = stats.outages;
    row["outage_us"] = stats.outage_us;
    row["resent_segments"] = stats.resent_segments;
    row["acks"] = stats.acks;
    row["early_bytes_held"] = stats.early_bytes_held;
    row["early_bytes_sent"] = stats.early_bytes_sent;
    row["rtt_us"] = stats.rtt_us;
    row["min_rtt_us"] = stats.least_rtt_us;
    row["delivery_rate"] = stats.tcp_now.delivered_bytes_per_s;
    row["pacing_rate"] = stats.tcp_now.pacing_bytes_per_s;
    row["window_bytes"] = stats.tcp_now.window_bytes;
    row["unsent_bytes"] = stats.tcp_now.unsent_bytes;
    row["clock_offset_us"] = py::none();
    row["clock_error_us"] = py::none();
    if (stats.clock) {
      row["clock_offset_us"] = stats.clock->offset_ns / 1000;
      row["clock_error_us"] = stats.clock->error_ns / 1000 + 1;
    }
    row["streams"] = stats.streams;
    row["congestion_control"] = stats.congestion_control;
    row["stalled_by_receiver_us"] = stats.tcp.stalled_by_receiver_us;
    row["stalled_by_send_buffer_us"] = stats.tcp.stalled_by_send_buffer_us;
    row["cipher"] = stats.cipher;
    row["transport"] = stats.transport;
    result.append(std::move(row));
  }
  return result;
}

// Of the messages of all groups.
py::dict buffer_usage(const PyEndpoint& self) {
  const core::PoolUsage usage = self.process->buffers.usage();
  py::dict row;
  row["asked_bytes"] = usage.asked_bytes;
  row["held_bytes"] = usage.held_bytes;
  row["most_asked_bytes"] = usage.most_asked_bytes;
  row["most_held_bytes"] = usage.most_held_bytes;
  return row;
}

void forget_others(const PyEndpoint& self, const std::vector<py::bytes>& kept) {
  std::set<transport::ProcessId> ids;
  for (const py::bytes& id : kept) ids.insert(fixed_bytes<16>(id, "a peer's id"));
  const GilRelease released;  // it waits for the IO thread, which may be about to free a tensor
  self.process->endpoint->forget_others(ids, {StatusCode::Aborted, "the process left the group"});
}

void expect_rates(const PyEndpoint& self, const std::map<std::string, double>& bytes_per_s) {
  if (self.process->is_inherited()) return;
  for (const auto& channel : self.process->endpoint->channels()) {
    const auto rate = bytes_per_s.find(channel->peer());
    if (rate != bytes_per_s.end()) channel->expect_rate(rate->second);
  }
}

}  // namespace

void bind_endpoint(py::module_& m) {
  py::class_<PyEndpoint>(m, "Endpoint")
      .def(py::init(&make_endpoint), py::kw_only(), py::arg("bind_address") = "", py::arg("port") = 0,
           py::arg("streams") = 0, py::arg("insecure") = false, py::arg("keys") = "", py::arg("site") = "",
           py::arg("link_deadline") = Milliseconds(60'000), py::arg("believed_refusal") = Milliseconds(5'000),
           py::arg("outbound_only") = false, py::arg("max_pacing_bps") = 0, py::arg("threads") = 1,
           py::arg("rdma_plugin") = "", py::arg("rdma_trusted") = false, py::arg("rdma_allow_tcp") = false)
      .def_property_readonly("id",
                             [](const PyEndpoint& self) { return bytes_of(self.process->endpoint->id()); })
      .def_property_readonly("port", [](const PyEndpoint& self) { return self.process->endpoint->port(); })
      .def("acquire", [](const PyEndpoint& self) { return self.process->acquire(); })
      .def(
          "release", [](const PyEndpoint& self) { return self.process->release(); },
          py::call_guard<py::gil_scoped_release>())
      .def("channel_stats", &channel_stats)
      .def("buffer_usage", &buffer_usage)
      .def("forget_others", &forget_others, py::arg("kept"))
      .def("expect_rates", &expect_rates, py::arg("bytes_per_s"));
}

}  // namespace geocomm::binding
