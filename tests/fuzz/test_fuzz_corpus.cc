// Every input that fuzzing has found worth keeping, at every CPU level, with any compiler. A target that
// finds something ends the process; its input is the one named last.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "fuzz_target.h"

namespace geocomm::fuzz {
namespace {

std::filesystem::path folder_of(std::string_view target) {
  return std::filesystem::path(__FILE__).parent_path() / "corpus" / target;
}

std::vector<std::filesystem::path> inputs_of(std::string_view target) {
  std::vector<std::filesystem::path> paths;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(folder_of(target), missing))
    paths.push_back(entry.path());
  std::ranges::sort(paths);
  return paths;
}

class FuzzCorpus : public testing::TestWithParam<Target> {};

TEST_P(FuzzCorpus, EveryInputKeepsTheInvariants) {
  const auto paths = inputs_of(GetParam().name);
  ASSERT_FALSE(paths.empty())
      << "no inputs in " << folder_of(GetParam().name)
      << ": run this test from its build folder, or make inputs by tests/fuzz/run.sh merge";
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    const std::string content{std::istreambuf_iterator<char>(file), {}};
    ASSERT_TRUE(file.good()) << path;
    std::cout << path.filename().string() << std::endl;
    GetParam().run(std::as_bytes(std::span(content)));
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzCorpus, testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace geocomm::fuzz
