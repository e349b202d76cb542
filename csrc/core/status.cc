#include "core/status.h"

#include <array>
#include <system_error>

namespace geocomm::core {

namespace {

constexpr std::array<std::string_view, 13> kNames = {
    "Ok",          "InvalidArgument", "Unsupported", "VersionMismatch", "Authentication",
    "CorruptData", "OutputTooSmall",  "Timeout",     "PeerLost",        "Network",
    "Aborted",     "Driver",          "Internal"};

}  // namespace

std::string_view to_string(StatusCode code) {
  const auto index = static_cast<std::size_t>(code);
  return index < kNames.size() ? kNames[index] : "Unknown";
}

Status&& Status::with_peer(std::string peer) && {
  if (peer_.empty()) peer_ = std::move(peer);
  return std::move(*this);
}

Status&& Status::with_op(std::string op, std::int64_t seq) && {
  if (op_.empty()) {
    op_ = std::move(op);
    seq_ = seq;
  }
  return std::move(*this);
}

Status&& Status::with_errno(int sys_errno) && {
  if (sys_errno_ == 0) sys_errno_ = sys_errno;
  return std::move(*this);
}

std::string Status::to_string() const {
  std::string text{core::to_string(code_)};
  if (is_ok()) return text;
  text += ": " + message_;
  std::string where;
  if (!op_.empty()) where += " op=" + op_ + (seq_ >= 0 ? " seq=" + std::to_string(seq_) : "");
  if (!peer_.empty()) where += " peer=" + peer_;
  if (sys_errno_ != 0) {
    where +=
        " errno=" + std::to_string(sys_errno_) + " (" + std::generic_category().message(sys_errno_) + ")";
  }
  if (!where.empty()) text += " [" + where.substr(1) + "]";
  return text;
}

}  // namespace geocomm::core
