#include "binding/module/op_log_rows.h"

#include <string>
#include <utility>
#include <vector>

#include "collective/run/op_log.h"

namespace geocomm::binding {

namespace {

py::object time_or_none(std::uint64_t at) {
  return at == 0 ? py::object(py::none()) : py::object(py::int_(at));
}

}  // namespace

py::list op_log_rows(std::uint64_t after) {
  std::vector<collective::OpTimes> all;
  {
    const py::gil_scoped_release released;
    all = collective::process_op_log().read(after);
  }
  py::list rows;
  for (const collective::OpTimes& times : all) {
    py::dict row;
    row["number"] = times.number;
    row["group"] = times.group;
    row["sequence"] = times.seq;
    row["kind"] = std::string(collective::to_string(times.kind));
    row["dtype"] = std::string(core::to_string(times.dtype));
    row["elements"] = times.elements;
    row["codec"] = times.codec;
    row["raw_bytes_sent"] = times.raw_bytes_sent;
    row["wire_bytes_sent"] = times.wire_bytes_sent;
    row["raw_bytes_received"] = times.raw_bytes_received;
    row["wire_bytes_received"] = times.wire_bytes_received;
    row["issued_ns"] = times.issued;
    row["began_ns"] = time_or_none(times.began);
    row["encoded_ns"] = time_or_none(times.encoded);
    row["exchanged_ns"] = time_or_none(times.exchanged);
    row["ended_ns"] = time_or_none(times.ended);
    row["wait_began_ns"] = time_or_none(times.wait_began);
    row["wait_ended_ns"] = time_or_none(times.wait_ended);
    row["coding_ns"] = times.coding_time;
    row["failed"] = times.failed;
    py::list peers;
    for (const collective::OpTimes::Peer& peer : times.peers) {
      py::dict entry;
      entry["peer"] = peer.name;
      entry["first_in_ns"] = time_or_none(peer.first_in);
      entry["last_in_ns"] = time_or_none(peer.last_in);
      entry["sums"] = peer.sums;
      peers.append(std::move(entry));
    }
    row["peers"] = std::move(peers);
    rows.append(std::move(row));
  }
  return rows;
}

}  // namespace geocomm::binding
