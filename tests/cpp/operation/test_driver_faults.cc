// Every call of a device's driver is refused once in turn, over operations that share streams: each of these
// ends, with an error or without. Without one where what was refused is memory or a stream.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "binding/operation/stream_operation.h"
#include "core/executor.h"
#include "device_model.h"

namespace geocomm::binding {
namespace {

using core::Status;
using namespace std::chrono_literals;

struct RefusedGroup final : OperationGroup {
  Status failure() const override { return Status::ok(); }
  void failed(const std::exception_ptr&) override {}
  std::exception_ptr to_exception(Status status, const OperationId&) const override {
    return std::make_exception_ptr(std::runtime_error(status.to_string()));
  }
  std::exception_ptr named(const std::exception_ptr& error, const OperationId&) const override {
    return error;
  }
};

struct RefusedRun {
  int errors = 0;
  bool reached = false;  // so many calls
  bool was_memory = false;
};

RefusedRun run_with_refusal(int calls_before) {
  DeviceModel device(2);
  std::atomic<bool> stop{false};
  std::thread moves([&] {
    while (!stop) {
      if (!device.advance()) std::this_thread::sleep_for(50us);
    }
  });
  RefusedRun run;
  {
    DeviceStreams streams(device);
    // As when the device is first used (cuda_streams()).
    EXPECT_NE(StreamLease(streams, core::Deadline::after(20s)).stream(), nullptr);
    device.calls_until_refusal = calls_before;
    core::GrowingExecutor executor("refused");
    HostLane host(executor);
    StreamLane lane(host);
    const auto group = std::make_shared<RefusedGroup>();
    std::vector<std::future<bool>> ends;
    std::vector<std::future<void>> tells;
    for (const InnerUse inner :
         {InnerUse::First, InnerUse::Beside, InnerUse::FirstAndLast, InnerUse::First}) {
      const auto lease = std::make_shared<StreamLease>(streams, core::Deadline::after(20s));
      if (lease->stream() == nullptr) {  // there is nothing that could end
        ++run.errors;
        continue;
      }
      // As torch: it throws where the driver refuses.
      const auto called = [&device] {
        if (device.refuses()) throw std::runtime_error("refused");
      };
      const auto operation = StreamOperation::create({}, core::Deadline::after(20s), group, lease, inner,
                                                     [called](const std::function<void()>& run) {
                                                       called();
                                                       run();
                                                     });
      const auto* const stream = operation->stream();
      const auto told = std::make_shared<std::promise<void>>();
      tells.push_back(told->get_future());
      // As a Future, for which a stream is needed unless it gets an error.
      operation->when_over([called, told](const std::exception_ptr& error) {
        if (!error) called();
        told->set_value();
      });
      operation->when_enqueued([called](const std::exception_ptr& error) {
        if (!error) called();
      });
      operation->set_steps({[&device, stream, called, inner] {
                              called();
                              const auto copy = [&device, stream, called](std::uint32_t) {
                                called();
                                device.launch(const_cast<StreamDriver::Stream>(stream), [] {});
                              };
                              StreamOperation::current()->set_middle({3, copy});
                              // Where there are none, the host takes it.
                              try {
                                (void)StreamOperation::current()->pinned().acquire(5000);
                              } catch (const std::bad_alloc&) {
                              }
                              if (inner != InnerUse::Beside)
                                StreamOperation::current()->set_pieces({3, copy, copy});
                            },
                            [weak = std::weak_ptr(operation)] {
                              const auto own = weak.lock();
                              for (std::uint32_t part = 1; part <= 3; ++part) {
                                own->open_arrived(part);
                                const auto soon = core::Deadline::after(20s);
                                Status made = own->wait_until_made(part, soon);
                                if (!made.is_ok()) return made;
                              }
                              return Status::ok();
                            },
                            called});
      const auto end = std::make_shared<std::promise<bool>>();
      ends.push_back(end->get_future());
      operation->on_done([end](const std::exception_ptr& error) { end->set_value(error == nullptr); });
      lane.submit(operation, inner == InnerUse::Beside ? Runs::Beside : Runs::InOrder);
      if (inner == InnerUse::Beside) operation->use();
    }
    lane.use_all();
    for (auto& end : ends) {
      if (end.wait_for(60s) != std::future_status::ready) {
        std::fprintf(stderr, "an operation never ends where call %d of the driver is refused\n",
                     calls_before);
        std::abort();  // its thread cannot be stopped
      }
      if (!end.get()) ++run.errors;
    }
    for (auto& told : tells) {
      EXPECT_EQ(told.wait_for(0s), std::future_status::ready)
          << "nobody was told after call " << calls_before;
    }
    run.reached = device.calls_until_refusal < 0;
    run.was_memory = device.refused_memory;
  }
  stop = true;
  moves.join();
  return run;
}

TEST(DriverFaults, test_each_call_that_is_refused_ends_every_operation) {
  int calls = 0;
  int errors = 0;
  int of_memory = 0;
  for (;; ++calls) {
    const RefusedRun run = run_with_refusal(calls);
    errors += run.errors > 0 ? 1 : 0;
    if (run.was_memory) {
      ++of_memory;
      EXPECT_EQ(run.errors, 0) << "after call " << calls;
    }
    if (run.reached) continue;
    EXPECT_EQ(run.errors, 0);
    break;
  }
  EXPECT_GT(calls, 50);
  EXPECT_GT(of_memory, 3);
  EXPECT_GT(errors, calls / 2);
}

}  // namespace
}  // namespace geocomm::binding
