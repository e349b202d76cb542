#include "transport/rdma/rdma_fabric.h"

#include <dlfcn.h>
#include <signal.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/str.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

namespace {

// UCX takes over the signals of crashes when it is loaded; whoever had them (Python's faulthandler) gets them
// back.
class CrashSignals {
 public:
  CrashSignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) (void)::sigaction(kSignals[i], nullptr, &actions_[i]);
  }
  ~CrashSignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) (void)::sigaction(kSignals[i], &actions_[i], nullptr);
  }
  CrashSignals(const CrashSignals&) = delete;
  CrashSignals& operator=(const CrashSignals&) = delete;

 private:
  static constexpr std::array kSignals = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};
  std::array<struct sigaction, kSignals.size()> actions_{};
};

}  // namespace

Result<std::unique_ptr<RdmaFabric>> load_rdma_fabric(const RdmaOptions& options) {
  std::error_code ignored;
  if (!std::filesystem::exists(options.library, ignored)) {
    return Status(
        StatusCode::Unsupported,
        core::str("transport=rdma needs ", options.library,
                  ", which this installation lacks: it was built without UCX. Install UCX's headers "
                  "(libucx-dev on Debian and Ubuntu, ucx-devel on Fedora) and build geocomm again"));
  }
  const CrashSignals kept;
  // Never closed: UCX leaves threads and hooks behind.
  void* const library = ::dlopen(options.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Status(StatusCode::Unsupported,
                  core::str("transport=rdma: ", ::dlerror(),
                            ". Install the UCX that geocomm was built with, or a newer one (libucx0 on "
                            "Debian and Ubuntu, ucx on Fedora)"));
  }
  const auto entry = reinterpret_cast<RdmaEntry>(::dlsym(library, kRdmaEntryName));
  if (entry == nullptr) {
    return Status(StatusCode::Unsupported, core::str(options.library, " is not geocomm's: ", ::dlerror()));
  }
  Result<std::unique_ptr<RdmaFabric>> fabric = Status(StatusCode::Internal, "no fabric");
  entry(kRdmaSeam, options, fabric);
  return fabric;
}

}  // namespace geocomm::transport
