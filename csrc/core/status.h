// Status and Result: how every layer below `binding` reports failure. Nothing below `binding` throws.
#pragma once

#include <cxxabi.h>

#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "core/str.h"

namespace geocomm::core {

// Stable integers: they cross into Python (geocomm.core.errors) and into logs. Never renumber.
enum class StatusCode : std::int32_t {
  Ok = 0,
  InvalidArgument = 1,
  Unsupported = 2,
  VersionMismatch = 3,
  Authentication = 4,
  CorruptData = 5,
  OutputTooSmall = 6,
  Timeout = 7,
  PeerLost = 8,
  Network = 9,
  Aborted = 10,
  Driver = 11,
  Internal = 12,
};

std::string_view to_string(StatusCode code);

// What failed, for whom. `message` stands alone: what failed, where, expected and got, what to do.
// `peer` is a description such as "rank 3 (site b, 10.0.0.2:4000)"; `op` a collective's name; `seq` its
// number in the group (-1: none); `sys_errno` the errno behind it (0: none).
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status ok() { return {}; }

  bool is_ok() const { return code_ == StatusCode::Ok; }
  explicit operator bool() const { return is_ok(); }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& peer() const { return peer_; }
  const std::string& op() const { return op_; }
  std::int64_t seq() const { return seq_; }
  int sys_errno() const { return sys_errno_; }

  // Builders: fill in what a lower layer could not know. They keep what is already set.
  Status&& with_peer(std::string peer) &&;
  Status&& with_op(std::string op, std::int64_t seq) &&;
  Status&& with_errno(int sys_errno) &&;

  // One line: "Timeout: <message> [op=all_reduce seq=7 peer=rank 3 (...) errno=110 (Connection timed out)]".
  std::string to_string() const;

 private:
  StatusCode code_ = StatusCode::Ok;
  std::string message_;
  std::string peer_;
  std::string op_;
  std::int64_t seq_ = -1;
  int sys_errno_ = 0;
};

// CorruptData: what a peer sent cannot be. `parts` make up the message, as in str().
template <typename... Parts>
Status corrupt(const Parts&... parts) {
  return {StatusCode::CorruptData, str(parts...)};
}

// A value or the Status that explains its absence.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}         // NOLINT: implicit by design
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {}  // NOLINT: implicit by design

  bool is_ok() const { return state_.index() == 0; }
  explicit operator bool() const { return is_ok(); }
  const Status& status() const { return is_ok() ? ok_status() : std::get<1>(state_); }
  // Precondition: is_ok().
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  static const Status& ok_status() {
    static const Status kOk;
    return kOk;
  }
  std::variant<T, Status> state_;
};

// What `call` comes to, a Status or a Result, for whom an exception must not pass: Internal, if it throws.
// Only torch does, and who runs out of memory; to tell of that takes none.
template <typename Call>
std::invoke_result_t<const Call&> without_throwing(const Call& call) {
  try {
    return call();
  } catch (const abi::__forced_unwind&) {
    throw;  // pthread_exit(), by which Python ends threads that outlive it
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::Internal, "out of memory");
  } catch (const std::exception& error) {
    return Status(StatusCode::Internal, error.what());
  } catch (...) {
    return Status(StatusCode::Internal, "unknown exception");
  }
}

}  // namespace geocomm::core

// Return early with the Status of a failed expression.
#define GEOCOMM_RETURN_IF_ERROR(expr)                                                                       \
  do {                                                                                                      \
    if (::geocomm::core::Status geocomm_status_ = (expr); !geocomm_status_.is_ok()) return geocomm_status_; \
  } while (false)

#define GEOCOMM_CONCAT_INNER(a, b) a##b
#define GEOCOMM_CONCAT(a, b) GEOCOMM_CONCAT_INNER(a, b)
// `GEOCOMM_ASSIGN_OR_RETURN(auto x, f())`: x becomes the value of the Result, or its Status is returned.
#define GEOCOMM_ASSIGN_OR_RETURN(lhs, expr)                    \
  auto GEOCOMM_CONCAT(geocomm_result_, __LINE__) = (expr);     \
  if (!GEOCOMM_CONCAT(geocomm_result_, __LINE__).is_ok())      \
    return GEOCOMM_CONCAT(geocomm_result_, __LINE__).status(); \
  lhs = std::move(GEOCOMM_CONCAT(geocomm_result_, __LINE__)).value()
