// Data that flows between two honest peers all the time, while others do what they like.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "transport_fixture.h"

namespace geocomm::transport::testing {

// One transfer after the other, each verified, until it is destroyed. The channels must outlive it.
class SteadyTraffic {
 public:
  SteadyTraffic(Channel& from, Channel& to) : thread_([this, &from, &to] { run(from, to); }) {}
  ~SteadyTraffic() {
    stop_ = true;
    thread_.join();
  }
  // Transfers that have ended well.
  std::uint64_t rounds() const { return rounds_; }
  // Whether five more end (in 30 s).
  bool goes_on() const {
    const std::uint64_t now = rounds_;
    for (const Deadline end = Deadline::after(30s); rounds_ < now + 5 && !end.expired();) {
      std::this_thread::sleep_for(1ms);
    }
    return rounds_ >= now + 5;
  }

 private:
  void run(Channel& from, Channel& to) {
    for (std::uint64_t op = 1; !stop_; ++op) {
      auto sink = std::make_shared<CollectingSink>(1);
      EXPECT_TRUE(to.post_receive({50, op}, 7, 1, sink).is_ok());
      const auto data = pattern(200'000, op);
      EXPECT_TRUE(from.send(chunk_of({50, op}, data)).is_ok());
      const Status status = sink->wait();
      EXPECT_TRUE(status.is_ok()) << status.to_string();
      if (!status.is_ok()) return;
      EXPECT_EQ(sink->data(), data);
      rounds_ = op;
    }
  }

  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> rounds_{0};
  std::thread thread_;
};

}  // namespace geocomm::transport::testing
