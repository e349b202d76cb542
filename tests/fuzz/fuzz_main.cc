// libFuzzer's entry: geocomm_fuzz --target=NAME [libFuzzer's flags] [corpora or inputs]; --list prints the
// names.
#include <cstdio>
#include <cstdlib>

#include "fuzz_target.h"

namespace {

const geocomm::fuzz::Target* chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  constexpr std::string_view kTarget = "--target=";
  for (int i = 1; i < *argc; ++i) {
    const std::string_view argument = (*argv)[i];
    if (argument.starts_with(kTarget)) chosen = geocomm::fuzz::find_target(argument.substr(kTarget.size()));
    if (argument != "--list") continue;
    for (const auto& target : geocomm::fuzz::targets()) {
      std::printf("%.*s\n", static_cast<int>(target.name.size()), target.name.data());
    }
    std::exit(0);
  }
  if (chosen == nullptr) {
    std::fprintf(stderr, "geocomm_fuzz: name a target with --target=NAME; --list prints them\n");
    std::exit(2);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  chosen->run(std::as_bytes(std::span(data, size)));
  return 0;
}
