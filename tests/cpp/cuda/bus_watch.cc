#include "bus_watch.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "simt.h"

namespace geocomm::simt {
namespace {

constexpr std::size_t kSectorBytes = 32;

// Of the one watch: handlers of signals have no other way to it.
struct Watched {
  std::byte* begin = nullptr;
  std::size_t bytes = 0;
  std::size_t given = 0;
  std::size_t page_bytes = 4096;
  std::vector<bool> read, written;  // sectors, of the kernel that runs
  std::size_t sectors_read = 0;
  std::size_t sectors_written = 0;
  struct sigaction old_fault = {}, old_trap = {};
};
Watched watched;

void protect(std::byte* from, std::size_t bytes, int rights) {
  if (mprotect(from, bytes, rights) != 0) std::abort();
}

#ifdef __x86_64__
constexpr greg_t kSingleStep = 0x100;
constexpr greg_t kIsWrite = 2;

// The page is opened for one instruction.
void on_fault(int, siginfo_t* info, void* state) {
  auto& registers = static_cast<ucontext_t*>(state)->uc_mcontext.gregs;
  auto* const at = static_cast<std::byte*>(info->si_addr);
  if (at < watched.begin || at >= watched.begin + watched.bytes) {
    sigaction(SIGSEGV, &watched.old_fault, nullptr);  // somebody else's: comes again at once
    return;
  }
  const auto offset = static_cast<std::size_t>(at - watched.begin);
  ((registers[REG_ERR] & kIsWrite) != 0 ? watched.written : watched.read)[offset / kSectorBytes] = true;
  protect(watched.begin + offset / watched.page_bytes * watched.page_bytes, watched.page_bytes,
          PROT_READ | PROT_WRITE);
  registers[REG_EFL] |= kSingleStep;
}

void on_step(int, siginfo_t*, void* state) {
  protect(watched.begin, watched.bytes, PROT_NONE);
  static_cast<ucontext_t*>(state)->uc_mcontext.gregs[REG_EFL] &= ~kSingleStep;
}
#else
void on_fault(int, siginfo_t*, void*) {}
void on_step(int, siginfo_t*, void*) {}
#endif

struct sigaction handler_of(void (*handle)(int, siginfo_t*, void*)) {
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  return action;
}

void around_kernel(const std::function<void()>& kernel) {
  protect(watched.begin, watched.bytes, PROT_NONE);
  kernel();
  protect(watched.begin, watched.bytes, PROT_READ | PROT_WRITE);
  const auto take = [](std::vector<bool>& sectors, std::size_t& sum) {
    for (auto sector : sectors) {
      sum += sector ? 1 : 0;
      sector = false;
    }
  };
  take(watched.read, watched.sectors_read);
  take(watched.written, watched.sectors_written);
}

}  // namespace

bool BusWatch::is_possible() {
#ifdef __x86_64__
  return true;
#else
  return false;
#endif
}

BusWatch::BusWatch(std::size_t bytes) {
  watched = {};
  watched.page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  watched.bytes = (bytes + watched.page_bytes - 1) / watched.page_bytes * watched.page_bytes;
  void* const memory =
      mmap(nullptr, watched.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  watched.begin = static_cast<std::byte*>(memory);
  watched.read.resize(watched.bytes / kSectorBytes);
  watched.written.resize(watched.bytes / kSectorBytes);
}

BusWatch::~BusWatch() {
  munmap(watched.begin, watched.bytes);
  watched = {};
}

core::MemorySource BusWatch::source() {
  return {[](std::size_t bytes) {
            constexpr std::size_t kAlignment = 256;
            std::byte* const memory = watched.begin + watched.given;
            watched.given += (bytes + kAlignment - 1) / kAlignment * kAlignment;
            if (watched.given > watched.bytes) std::abort();
            return memory;
          },
          [](std::byte*, std::size_t) {}};
}

void BusWatch::watch(const std::function<void()>& run) {
  const struct sigaction fault = handler_of(on_fault);
  const struct sigaction step = handler_of(on_step);
  sigaction(SIGSEGV, &fault, &watched.old_fault);
  sigaction(SIGTRAP, &step, &watched.old_trap);
  set_around(around_kernel);
  run();
  set_around(nullptr);
  sigaction(SIGSEGV, &watched.old_fault, nullptr);
  sigaction(SIGTRAP, &watched.old_trap, nullptr);
}

std::size_t BusWatch::bytes_read() const {
  return watched.sectors_read * kSectorBytes;
}
std::size_t BusWatch::bytes_written() const {
  return watched.sectors_written * kSectorBytes;
}

}  // namespace geocomm::simt
