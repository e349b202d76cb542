// Status → exception, the only place where geocomm throws.
//
// Two C++ classes, because an exception that reaches Python through autograd's backward (DDP) keeps only the
// type that torch knows: DistNetworkError or DistBackendError. Elsewhere module.cc turns them into the
// classes of geocomm/core/errors.py.
#pragma once

#include <exception>
#include <string>

#include "binding/torch/torch_prelude.h"
#include "core/fork.h"
#include "core/status.h"

namespace geocomm::binding {

// What every geocomm exception carries.
struct StatusCarrier {
  core::Status status;
};

struct CommNetworkError : c10::DistNetworkError, StatusCarrier {
  explicit CommNetworkError(core::Status s)
      : c10::DistNetworkError({__func__, __FILE__, __LINE__}, "geocomm: " + s.to_string()),
        StatusCarrier{std::move(s)} {}
};

struct CommBackendError : c10::DistBackendError, StatusCarrier {
  explicit CommBackendError(core::Status s)
      : c10::DistBackendError({__func__, __FILE__, __LINE__}, "geocomm: " + s.to_string()),
        StatusCarrier{std::move(s)} {}
};

inline std::exception_ptr to_exception(const core::Status& status) {
  switch (status.code()) {
    case core::StatusCode::Timeout:
    case core::StatusCode::PeerLost:
    case core::StatusCode::Network:
      return std::make_exception_ptr(CommNetworkError(status));
    default:
      return std::make_exception_ptr(CommBackendError(status));
  }
}

inline void throw_if_error(const core::Status& status) {
  if (!status.is_ok()) std::rethrow_exception(to_exception(status));
}

[[noreturn]] inline void throw_status(core::StatusCode code, const std::string& message) {
  std::rethrow_exception(to_exception(core::Status(code, message)));
}

// Throws Aborted in a child that was forked from the process of `mark`.
inline void require_own_process(const core::ProcessMark& mark) {
  if (!mark.is_here()) throw_if_error(core::inherited_by_fork());
}

template <typename T>
T value_or_throw(core::Result<T> result) {
  throw_if_error(result.status());
  return std::move(result).value();
}

// The Status inside any exception; foreign ones (the inner backend's) become Network errors that say where
// they came from.
inline core::Status status_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const StatusCarrier& carrier) {
    return carrier.status;
  } catch (const c10::Error& e) {
    return {core::StatusCode::Network, std::string("inside the site: ") + e.what_without_backtrace()};
  } catch (const std::exception& e) {
    return {core::StatusCode::Network, std::string("inside the site: ") + e.what()};
  } catch (...) {
    return {core::StatusCode::Internal, "unknown exception"};
  }
}

}  // namespace geocomm::binding
