// What a test needs of the machine or of the build.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

namespace geocomm {

// As tests/conftest.py has it for Python.
inline bool nothing_may_be_missing() {
  const char* const required = std::getenv("GEOCOMM_REQUIRE_ALL");
  return required != nullptr && std::string_view(required) == "1";
}

}  // namespace geocomm

// Skips the test where it is not there; with GEOCOMM_REQUIRE_ALL=1 fails it instead. What a test is not for,
// such as a sanitizer, is GTEST_SKIP()'s.
#define GEOCOMM_NEEDS(is_there, what)                                                               \
  do {                                                                                              \
    if (is_there) break;                                                                            \
    if (::geocomm::nothing_may_be_missing()) FAIL() << "GEOCOMM_REQUIRE_ALL=1, but needs " << what; \
    GTEST_SKIP() << "needs " << what;                                                               \
  } while (false)
