#include "core/status.h"

#include <system_error>

namespace geocomm::core {

std::string_view to_string(StatusCode code) {
  switch (code) {
    case StatusCode::Ok:
      return "Ok";
    case StatusCode::InvalidArgument:
      return "InvalidArgument";
    case StatusCode::Unsupported:
      return "Unsupported";
    case StatusCode::VersionMismatch:
      return "VersionMismatch";
    case StatusCode::Authentication:
      return "Authentication";
    case StatusCode::CorruptData:
      return "CorruptData";
    case StatusCode::OutputTooSmall:
      return "OutputTooSmall";
    case StatusCode::Timeout:
      return "Timeout";
    case StatusCode::PeerLost:
      return "PeerLost";
    case StatusCode::Network:
      return "Network";
    case StatusCode::Aborted:
      return "Aborted";
    case StatusCode::Driver:
      return "Driver";
    case StatusCode::Internal:
      return "Internal";
  }
  return "Unknown";
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
