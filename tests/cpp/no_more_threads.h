// A process that gets no further threads.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>
#include <string>

#include "core/log.h"

namespace geocomm::core {

// No thread can be made: each would get a stack that no memory holds. (A limit on threads does not bind
// root.) What is logged of it is not for stderr, which has a thread of its own.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    set_log_sink([](LogLevel, const std::string&) {});
    pthread_attr_t enormous;
    EXPECT_EQ(::pthread_getattr_default_np(&usual_), 0);
    EXPECT_EQ(::pthread_getattr_default_np(&enormous), 0);
    EXPECT_EQ(::pthread_attr_setstacksize(&enormous, std::size_t{1} << 47), 0);
    EXPECT_EQ(::pthread_setattr_default_np(&enormous), 0);
    ::pthread_attr_destroy(&enormous);
  }
  ~NoMoreThreads() {
    set_log_sink(nullptr);
    EXPECT_EQ(::pthread_setattr_default_np(&usual_), 0);
    ::pthread_attr_destroy(&usual_);
  }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;

 private:
  pthread_attr_t usual_;
};

}  // namespace geocomm::core
