// Mail over an endpoint, as Python has it.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "binding/module/python_endpoint.h"
#include "binding/operation/executors.h"
#include "binding/torch/python_thread.h"
#include "transport/mail/mail.h"

namespace geocomm::binding {
namespace {

using core::StatusCode;

// What peers get to hear that a process has ended that did not close its mail.
constexpr std::chrono::seconds kMailPatienceAtExit{1};

// What Python calls Mail.
struct PyMail {
  const std::shared_ptr<CallGate> gate;  // of its calls into Python, which may outlive it
  transport::Mail mail;
};

std::shared_ptr<PyMail> make_mail(const PyEndpoint& endpoint, const py::bytes& token,
                                  std::uint64_t max_bytes) {
  const auto job = fixed_bytes<16>(token, "token");
  const auto process = endpoint.process;
  if (!process->acquire()) {
    throw_status(StatusCode::Aborted, "the endpoint is closed, or another process's: make a new one");
  }
  const auto release = [process](std::chrono::milliseconds patience) { return process->release(patience); };
  std::shared_ptr<PyMail> made(
      new PyMail{std::make_shared<CallGate>(),
                 {{process, process->endpoint.get()}, release, job, max_bytes, blocking_executor()}},
      [](PyMail* freed) {
        const GilRelease released;  // for whom it waits
        delete freed;
      });
  // Whoever ends without closing it: peers hear of it, and nobody waits for an interpreter that is gone.
  py::module_::import("atexit").attr("register")(
      py::cpp_function([gate = made->gate, weak = std::weak_ptr(made)] {
        const GilRelease released;
        // Of mail that is gone, calls may still be on their way.
        gate->close(core::Deadline::after(kMailPatienceAtExit));
        if (const auto left = weak.lock()) throw_if_error(left->mail.close(kMailPatienceAtExit));
      }));
  return made;
}

transport::ProcessId mail_peer(const py::bytes& id) {
  return fixed_bytes<16>(id, "a peer's id");
}

void add_mail_peer(PyMail& self, const py::bytes& id, const std::string& host, std::uint16_t port,
                   const std::string& site, const std::string& description) {
  transport::PeerAddress address{mail_peer(id), host, port, description, site};
  const GilRelease released;
  throw_if_error(self.mail.peer(std::move(address)));
}

// The memory of `content`, which is freed on a thread that may wait for Python's lock; if that has come to
// its end, never.
core::Buffer shared_memory(const at::Tensor& content, const std::shared_ptr<CallGate>& gate) {
  const auto free = [gate, tensor = content](std::byte*) mutable {
    blocking_executor().post([gate, tensor = std::move(tensor)]() mutable {
      if (!gate->enter()) return core::leak(std::move(tensor));
      tensor.reset();
      gate->leave();
    });
  };
  return core::Buffer::around({static_cast<std::byte*>(content.data_ptr()), free},
                              static_cast<std::size_t>(content.numel()));
}

at::Tensor tensor_around(const core::Buffer& content) {
  if (content.empty()) return at::empty({0}, at::kByte);
  return at::from_blob(
      content.data(), {static_cast<std::int64_t>(content.size())}, [content](void*) {}, at::kByte);
}

void send_mail(PyMail& self, const py::bytes& peer, std::uint64_t round, std::uint64_t part,
               const at::Tensor& content) {
  const auto id = mail_peer(peer);
  const GilRelease released;
  const bool fits = content.defined() && content.layout() == at::kStrided && content.device().is_cpu() &&
                    content.scalar_type() == at::kByte && content.is_contiguous();
  if (!fits) throw_status(StatusCode::InvalidArgument, "mail is a contiguous uint8 tensor on the CPU");
  throw_if_error(self.mail.send(id, round, part, shared_memory(content, self.gate)));
}

void receive_mail(PyMail& self, const py::bytes& peer, std::uint64_t round, std::uint64_t part,
                  const py::object& then) {
  const auto id = mail_peer(peer);
  const std::shared_ptr<py::object> held(new py::object(then), [gate = self.gate](py::object* callable) {
    if (!gate->enter()) return;  // and leaks it
    {
      const py::gil_scoped_acquire gil;
      delete callable;
    }
    gate->leave();
  });
  auto call = [held, gate = self.gate](const core::Result<core::Buffer>& content) {
    if (!gate->enter()) return;
    {
      const py::gil_scoped_acquire gil;
      try {
        if (content.is_ok()) {
          (*held)(tensor_around(*content), "");
        } else {
          (*held)(py::none(), content.status().message());
        }
      } catch (py::error_already_set& error) {
        error.discard_as_unraisable("a receive of mail");
      }
    }
    gate->leave();
  };
  const GilRelease released;
  throw_if_error(self.mail.receive(id, round, part, std::move(call)));
}

void end_mail_round(PyMail& self, std::uint64_t round) {
  const GilRelease released;
  throw_if_error(self.mail.end_round(round));
}

void forget_mail_peer(PyMail& self, const py::bytes& peer) {
  const auto id = mail_peer(peer);
  const GilRelease released;
  throw_if_error(self.mail.forget(id));
}

void close_mail(PyMail& self, double seconds) {
  const GilRelease released;
  const Milliseconds patience(static_cast<std::int64_t>(std::clamp(seconds, 0.0, 86'400.0) * 1000));
  throw_if_error(self.mail.close(patience));
}

py::list mail_stats(const PyMail& self) {
  const auto rows = [&] {
    const GilRelease released;
    return value_or_throw(self.mail.peers());
  }();
  py::list result;
  for (const transport::MailPeer& peer : rows) {
    py::dict row;
    row["id"] = bytes_of(peer.id);
    row["description"] = peer.description;
    row["site"] = peer.site;
    row["state"] = peer.state;
    row["bytes_sent"] = peer.stats.bytes_sent;
    row["bytes_received"] = peer.stats.bytes_received;
    row["resumes"] = peer.stats.resumes;
    row["silent_seconds"] = peer.stats.silent_us
                                ? py::object(py::float_(static_cast<double>(*peer.stats.silent_us) * 1e-6))
                                : py::object(py::none());
    result.append(std::move(row));
  }
  return result;
}

}  // namespace

void bind_mail(py::module_& m) {
  py::class_<PyMail, std::shared_ptr<PyMail>>(m, "Mail")
      .def(py::init(&make_mail), py::kw_only(), py::arg("endpoint"), py::arg("token"), py::arg("max_bytes"),
           py::keep_alive<1, 2>())  // so that later groups find the endpoint (group/backend/runtime.py)
      .def_property_readonly("id", [](const PyMail& self) { return bytes_of(self.mail.id()); })
      .def_property_readonly("port", [](const PyMail& self) { return self.mail.port(); })
      .def("peer", &add_mail_peer, py::arg("id"), py::arg("host"), py::arg("port"), py::arg("site"),
           py::arg("description"))
      .def("send", &send_mail, py::arg("peer"), py::arg("round"), py::arg("part"), py::arg("content"))
      .def("receive", &receive_mail, py::arg("peer"), py::arg("round"), py::arg("part"), py::arg("then"))
      .def("end_round", &end_mail_round, py::arg("round"))
      .def("forget", &forget_mail_peer, py::arg("peer"))
      .def("stats", &mail_stats)
      .def("close", &close_mail, py::arg("seconds"));
}

}  // namespace geocomm::binding
