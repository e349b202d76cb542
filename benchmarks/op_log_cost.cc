// What the operation log costs, in ns: `bench_evidence.py` builds and runs it.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "collective/run/op_log.h"

using geocomm::collective::OpLog;
using geocomm::collective::OpRecord;
using geocomm::collective::OpTimes;

namespace {

// Samples so short that few are interrupted.
constexpr int kSamples = 501;
constexpr int kCalls = 500;

// The median of the samples.
template <class Call>
double cost(Call call) {
  std::vector<double> samples;
  for (int sample = 0; sample < kSamples; ++sample) {
    const std::uint64_t began = OpRecord::now();
    for (int i = 0; i < kCalls; ++i) call();
    samples.push_back(static_cast<double>(OpRecord::now() - began) / kCalls);
  }
  std::sort(samples.begin(), samples.end());
  return samples[kSamples / 2];
}

}  // namespace

int main() {
  OpLog log;
  for (std::size_t i = 0; i < OpLog::kKept; ++i) log.issue(OpTimes());  // from here on the oldest is freed
  const double clock = cost([] {
    volatile std::uint64_t at = OpRecord::now();
    (void)at;
  });
  const auto record = log.issue(OpTimes());
  record->awaits(1, "rank 1 (site b) at 127.0.0.1:12345");
  const double event = cost([&] { record->arrived(1, 400, 100); });
  // An all-reduce of one chunk with one other site.
  const double operation = cost([&] {
    const auto one = log.issue(OpTimes());
    one->begins("int8");
    one->awaits(1, "rank 1 (site b) at 127.0.0.1:12345");
    one->made_frame(OpRecord::now());
    one->sent(400, 100);
    one->wait_begins();
    one->arrived(1, 400, 100);
    one->used_frame(OpRecord::now());
    one->exchanged();
    one->ended(false);
    one->wait_ends();
  });
  // Each further chunk of it.
  const double chunk = cost([&] {
    record->made_frame(OpRecord::now());
    record->sent(400, 100);
    record->arrived(1, 400, 100);
    record->used_frame(OpRecord::now());
  });
  std::printf("{\"clock\": %.1f, \"event\": %.1f, \"operation\": %.1f, \"chunk\": %.1f}\n", clock, event,
              operation, chunk);
}
