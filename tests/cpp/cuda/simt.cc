#include "simt.h"

#include <ucontext.h>

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "../sanitizers.h"

#ifdef GEOCOMM_UNDER_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace geocomm::simt {
namespace {

constexpr std::size_t kStackBytes = std::size_t{256} << 10;
constexpr int kWarp = 32;
constexpr unsigned kMostThreads = 1024;

enum class State : std::uint8_t { Ready, AtBarrier, InWarpOp, Done };

struct Fiber {
  ucontext_t context = {};
  std::unique_ptr<std::byte[]> stack;
#ifdef GEOCOMM_UNDER_ASAN
  void* fake_stack = nullptr;
#else
  jmp_buf jump = {};
  bool has_begun = false;
#endif
  State state = State::Done;
  unsigned thread = 0;  // in the block
  WarpOp op = WarpOp::Sync;
  std::uint32_t mask = 0;
  std::uint64_t value = 0;
  int source = 0;
  std::uint64_t result = 0;
};

struct Device {
  Order order = Order::Forward;
  std::vector<std::unique_ptr<Fiber>> fibers;
#ifdef GEOCOMM_UNDER_ASAN
  ucontext_t scheduler = {};
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  std::size_t scheduler_stack_bytes = 0;
#else
  jmp_buf scheduler_jump = {};
#endif
  Fiber* current = nullptr;
  const std::function<void()>* kernel = nullptr;
  Coordinates here;
  unsigned threads = 0;
  std::vector<uint4> shared;
  std::size_t launches = 0;
  bool only_counts = false;
  std::function<void(const std::function<void()>&)> around;
};
Device device;

#ifdef GEOCOMM_UNDER_ASAN
// AddressSanitizer keeps its own notes of each stack: it is told before and after every switch.
void switch_to(Fiber& fiber) {
  __sanitizer_start_switch_fiber(&device.scheduler_fake_stack, fiber.stack.get(), kStackBytes);
  swapcontext(&device.scheduler, &fiber.context);
  __sanitizer_finish_switch_fiber(device.scheduler_fake_stack, nullptr, nullptr);
}
void switch_back(Fiber& fiber) {
  __sanitizer_start_switch_fiber(&fiber.fake_stack, device.scheduler_stack, device.scheduler_stack_bytes);
  swapcontext(&fiber.context, &device.scheduler);
  __sanitizer_finish_switch_fiber(fiber.fake_stack, &device.scheduler_stack, &device.scheduler_stack_bytes);
}
void begin_fiber() {
  __sanitizer_finish_switch_fiber(nullptr, &device.scheduler_stack, &device.scheduler_stack_bytes);
}
#else
// Jumps, once a fiber has begun: swapcontext() asks the kernel for the signal mask every time.
void switch_to(Fiber& fiber) {
  if (_setjmp(device.scheduler_jump) != 0) return;
  if (fiber.has_begun) _longjmp(fiber.jump, 1);
  fiber.has_begun = true;
  setcontext(&fiber.context);
}
void switch_back(Fiber& fiber) {
  if (_setjmp(fiber.jump) == 0) _longjmp(device.scheduler_jump, 1);
}
void begin_fiber() {}
#endif

void give_turn(Fiber& fiber) {
  device.current = &fiber;
  const dim3 size = device.here.block_size;
  device.here.thread_index = {fiber.thread % size.x, fiber.thread / size.x % size.y,
                              fiber.thread / (size.x * size.y)};
  switch_to(fiber);
}

void end_turn() {
  switch_back(*device.current);
}

// A fiber runs one thread after another, for as long as the process lives.
void fiber_main() {
  begin_fiber();
  for (;;) {
    (*device.kernel)();
    device.current->state = State::Done;
    end_turn();
  }
}

void give_stack(Fiber& fiber) {
  fiber.stack = std::make_unique<std::byte[]>(kStackBytes);
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, fiber_main, 0);
}

void need_fibers(unsigned count) {
  while (device.fibers.size() < count) {
    device.fibers.push_back(std::make_unique<Fiber>());
    device.fibers.back()->thread = static_cast<unsigned>(device.fibers.size() - 1);
    give_stack(*device.fibers.back());
  }
}

[[noreturn]] void fail(const char* what) {
  const dim3 block = device.here.block_index;
  std::fprintf(stderr, "simt: %s in block (%u, %u, %u)\n", what, block.x, block.y, block.z);
  for (unsigned i = 0; i < device.threads; ++i) {
    const Fiber& fiber = *device.fibers[i];
    if (fiber.state == State::AtBarrier) std::fprintf(stderr, "  thread %u waits at __syncthreads\n", i);
    if (fiber.state == State::InWarpOp) {
      std::fprintf(stderr, "  thread %u waits in warp operation %d with mask 0x%08x\n", i,
                   static_cast<int>(fiber.op), fiber.mask);
    }
  }
  std::abort();
}

Fiber* lane_of(const Fiber& fiber, int lane) {
  const unsigned thread = fiber.thread / kWarp * kWarp + static_cast<unsigned>(lane);
  return thread < device.threads ? device.fibers[thread].get() : nullptr;
}

std::uint64_t reduced(WarpOp op, std::uint64_t a, std::uint64_t b) {
  switch (op) {
    case WarpOp::Max:
      return a < b ? b : a;
    case WarpOp::Min:
      return b < a ? b : a;
    case WarpOp::Add:
      return (a + b) & 0xFFFFFFFFu;
    default:
      return a | b;
  }
}

// All of its mask have arrived: results for each, from the values as they are now.
void complete(const Fiber& last) {
  std::uint64_t total = last.value;
  std::uint64_t ballot = 0;
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((last.mask >> lane & 1) == 0) continue;
    const Fiber& fiber = *lane_of(last, lane);
    if (&fiber != &last) total = reduced(last.op, total, fiber.value);
    if (fiber.value != 0) ballot |= std::uint64_t{1} << lane;
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((last.mask >> lane & 1) == 0) continue;
    Fiber& fiber = *lane_of(last, lane);
    if (last.op == WarpOp::Shuffle) {
      if ((last.mask >> fiber.source & 1) == 0) fail("a shuffle from a lane that is not in the mask");
      fiber.result = lane_of(last, fiber.source)->value;
    } else {
      fiber.result = last.op == WarpOp::Ballot ? ballot : total;
    }
    fiber.state = State::Ready;
  }
}

bool all_arrived(const Fiber& fiber) {
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((fiber.mask >> lane & 1) == 0) continue;
    const Fiber* other = lane_of(fiber, lane);
    if (other == nullptr) fail("a mask with lanes that the block does not have");
    if (other->state != State::InWarpOp || other->mask != fiber.mask || other->op != fiber.op) return false;
  }
  return true;
}

// The barrier opens once every thread that has not ended waits there.
bool open_barrier() {
  bool any = false;
  for (unsigned i = 0; i < device.threads; ++i) {
    const State state = device.fibers[i]->state;
    if (state == State::Ready || state == State::InWarpOp) return false;
    any |= state == State::AtBarrier;
  }
  for (unsigned i = 0; i < device.threads; ++i) {
    if (device.fibers[i]->state == State::AtBarrier) device.fibers[i]->state = State::Ready;
  }
  return any;
}

void run_block() {
  for (unsigned i = 0; i < device.threads; ++i) device.fibers[i]->state = State::Ready;
  if (!device.shared.empty()) {
    std::memset(device.shared.data(), 0xA5, device.shared.size() * sizeof(uint4));
  }
  for (;;) {
    bool any = false;
    for (unsigned i = 0; i < device.threads; ++i) {
      Fiber& fiber = *device.fibers[device.order == Order::Forward ? i : device.threads - 1 - i];
      if (fiber.state != State::Ready) continue;
      any = true;
      give_turn(fiber);
    }
    if (any || open_barrier()) continue;
    for (unsigned i = 0; i < device.threads; ++i) {
      if (device.fibers[i]->state != State::Done) fail("threads wait for others that never come");
    }
    return;
  }
}

void run_grid(const std::function<void()>& kernel, dim3 grid, dim3 block, std::size_t shared_bytes) {
  device.here.grid_size = grid;
  device.here.block_size = block;
  device.threads = block.x * block.y * block.z;
  if (device.threads == 0 || device.threads > kMostThreads) fail("a block of no or too many threads");
  need_fibers(device.threads);
  device.kernel = &kernel;
  device.shared.resize((shared_bytes + sizeof(uint4) - 1) / sizeof(uint4));
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        device.here.block_index = {x, y, z};
        run_block();
      }
    }
  }
}

}  // namespace

void set_order(Order order) {
  device.order = order;
}

void launch(const std::function<void()>& kernel, dim3 grid, dim3 block, std::size_t shared_bytes) {
  ++device.launches;
  if (device.only_counts) return;
  const auto runs = [&] { run_grid(kernel, grid, block, shared_bytes); };
  if (device.around) return device.around(runs);
  runs();
}

void set_around(std::function<void(const std::function<void()>&)> around) {
  device.around = std::move(around);
}

std::size_t launches() {
  return device.launches;
}

void only_count(bool counts) {
  device.only_counts = counts;
}

const Coordinates& here() {
  return device.here;
}

void* dynamic_shared() {
  return device.shared.data();
}

int lane() {
  return static_cast<int>(device.current->thread % kWarp);
}

void block_barrier() {
  device.current->state = State::AtBarrier;
  end_turn();
}

std::uint64_t warp(WarpOp op, std::uint32_t mask, std::uint64_t value, int source) {
  Fiber& fiber = *device.current;
  if ((mask >> lane() & 1) == 0) fail("a warp operation whose mask lacks the calling lane");
  fiber.op = op;
  fiber.mask = mask;
  fiber.value = value;
  fiber.source = source;
  fiber.state = State::InWarpOp;
  if (all_arrived(fiber)) {
    complete(fiber);
  } else {
    end_turn();
  }
  return fiber.result;
}

}  // namespace geocomm::simt
