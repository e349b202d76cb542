// The stand-in for a CUDA device does what a device does.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "simt.h"

namespace geocomm {
namespace {

class Simt : public testing::TestWithParam<simt::Order> {
 protected:
  void SetUp() override { simt::set_order(GetParam()); }
  void TearDown() override { simt::set_order(simt::Order::Forward); }
};

TEST_P(Simt, test_every_thread_of_every_block_runs_once) {
  std::vector<int> runs(3 * 2 * 96);
  simt::launch([&] { ++runs[(blockIdx.y * 3 + blockIdx.x) * 96 + threadIdx.y * 48 + threadIdx.x]; },
               {3, 2, 1}, {48, 2, 1}, 0);
  for (const int count : runs) EXPECT_EQ(count, 1);
}

TEST_P(Simt, test_a_barrier_orders_shared_memory) {
  std::array<unsigned, 100> seen{};
  simt::launch(
      [&] {
        auto* shared = static_cast<unsigned*>(simt::dynamic_shared());
        for (unsigned round = 0; round < 3; ++round) {
          shared[threadIdx.x] = threadIdx.x + round;
          __syncthreads();
          seen[threadIdx.x] = shared[99 - threadIdx.x];
          __syncthreads();
        }
      },
      {1}, {100}, 100 * sizeof(unsigned));
  for (unsigned i = 0; i < 100; ++i) EXPECT_EQ(seen[i], 99 - i + 2);
}

TEST_P(Simt, test_warp_operations_exchange_values) {
  std::array<unsigned, 64> sums{}, ups{}, ballots{};
  std::array<double, 64> shuffled{};
  simt::launch(
      [&] {
        const unsigned lane = threadIdx.x % 32;
        sums[threadIdx.x] = __reduce_add_sync(~0u, threadIdx.x);
        ups[threadIdx.x] = __shfl_up_sync(~0u, lane, 3);
        ballots[threadIdx.x] = __ballot_sync(~0u, lane % 3 == 0);
        shuffled[threadIdx.x] = __shfl_sync(~0u, lane + 0.5, 5, 16);
      },
      {1}, {64}, 0);
  for (unsigned i = 0; i < 64; ++i) {
    EXPECT_EQ(sums[i], 496 + i / 32 * 1024);
    EXPECT_EQ(ups[i], i % 32 < 3 ? i % 32 : i % 32 - 3);
    EXPECT_EQ(ballots[i], 0x49249249u);
    EXPECT_EQ(shuffled[i], i % 32 / 16 * 16 + 5.5);
  }
}

TEST_P(Simt, test_halves_of_a_warp_go_their_own_ways) {
  std::array<unsigned, 32> maxima{};
  simt::launch(
      [&] {
        const bool low = threadIdx.x < 16;
        for (unsigned round = 0; round < (low ? 1u : 3u); ++round) {
          maxima[threadIdx.x] = __reduce_max_sync(low ? 0xFFFFu : 0xFFFF0000u, threadIdx.x + round);
        }
        __syncwarp();
      },
      {1}, {32}, 0);
  EXPECT_EQ(maxima[0], 15u);
  EXPECT_EQ(maxima[31], 33u);
}

TEST_P(Simt, test_threads_that_have_ended_do_not_hold_up_a_barrier) {
  int reached = 0;
  simt::launch(
      [&] {
        if (threadIdx.x >= 40) return;
        __syncthreads();
        ++reached;
      },
      {1}, {64}, 0);
  EXPECT_EQ(reached, 40);
}

TEST_P(Simt, test_threads_that_wait_in_vain_are_named) {
  EXPECT_DEATH(simt::launch(
                   [] {
                     if (threadIdx.x != 7) __syncwarp();
                   },
                   {1}, {32}, 0),
               "thread 6 waits in warp operation");
  EXPECT_DEATH(simt::launch([] { __shfl_sync(0xFFu, 1, 9); }, {1}, {8}, 0), "not in the mask");
  EXPECT_DEATH(simt::launch([] { __ballot_sync(2u, 1); }, {1}, {1}, 0), "lacks the calling lane");
}

INSTANTIATE_TEST_SUITE_P(Orders, Simt, testing::Values(simt::Order::Forward, simt::Order::Backward),
                         [](const auto& info) {
                           return info.param == simt::Order::Forward ? "forward" : "backward";
                         });

}  // namespace
}  // namespace geocomm
