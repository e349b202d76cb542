// Below `binding` nothing throws. What does all the same, mostly for want of memory, either becomes a Status
// where its caller waits for one (without_throwing() in status.h), or ends the process in words: a thread, or
// a task, that just stopped would leave others waiting for ever.
#pragma once

#include <cxxabi.h>

#include <exception>
#include <new>
#include <type_traits>

namespace geocomm::core {

// Writes one line to stderr, without taking memory, and aborts.
[[noreturn]] void end_process(const char* where, const char* what);

// What `call` comes to; what it throws ends the process. `where` completes "an exception ...".
template <typename Call>
std::invoke_result_t<const Call&> must_not_throw(const char* where, const Call& call) {
  try {
    return call();
  } catch (const abi::__forced_unwind&) {
    throw;  // pthread_exit(), by which Python ends threads that outlive it
  } catch (const std::bad_alloc&) {
    end_process(where, "out of memory (std::bad_alloc)");
  } catch (const std::exception& error) {
    end_process(where, error.what());
  } catch (...) {
    end_process(where, "of a type that is not the standard library's");
  }
}

}  // namespace geocomm::core
