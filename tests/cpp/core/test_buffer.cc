#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "core/buffer.h"

namespace geocomm::core {
namespace {

TEST(BufferPool, test_acquire_any_size_gives_aligned_empty_room) {
  BufferPool pool;
  for (const std::size_t size : {0, 1, 4096, 4097, 1 << 20}) {
    Buffer buffer = pool.acquire(size);
    EXPECT_GE(buffer.capacity(), size);
    EXPECT_EQ(buffer.size(), 0u);
    EXPECT_TRUE(buffer.empty());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
    std::memset(buffer.data(), 0xAB, buffer.capacity());
    buffer.resize(size);
    EXPECT_EQ(buffer.span().size(), size);
    EXPECT_EQ(buffer.room().size(), buffer.capacity());
  }
}

TEST(BufferPool, test_acquire_after_release_recycles_the_block) {
  BufferPool pool;
  std::byte* first = nullptr;
  {
    const Buffer buffer = pool.acquire(10000);
    first = buffer.data();
    EXPECT_EQ(pool.outstanding_bytes(), 16384u);
  }
  EXPECT_EQ(pool.outstanding_bytes(), 0u);
  EXPECT_EQ(pool.acquire(9000).data(), first);
}

TEST(BufferPool, test_release_of_copies_waits_for_the_last) {
  BufferPool pool;
  std::optional<Buffer> first = pool.acquire(4096);
  std::optional<Buffer> second = first;
  EXPECT_EQ(first->data(), second->data());
  first.reset();
  EXPECT_EQ(pool.outstanding_bytes(), 4096u);
  second.reset();
  EXPECT_EQ(pool.outstanding_bytes(), 0u);
}

TEST(BufferPool, test_buffer_outlives_its_pool) {
  auto pool = std::make_unique<BufferPool>();
  Buffer buffer = pool->acquire(100);
  pool.reset();
  std::memset(buffer.data(), 1, buffer.capacity());
  EXPECT_EQ(buffer.data()[99], std::byte{1});
}

std::size_t g_allocated = 0;

TEST(BufferPool, test_memory_comes_from_the_source_and_goes_back_with_the_pool_or_the_last_buffer) {
  const MemorySource counting{[](std::size_t bytes) {
                                g_allocated += bytes;
                                return heap_memory().allocate(bytes);
                              },
                              [](std::byte* memory, std::size_t bytes) {
                                g_allocated -= bytes;
                                heap_memory().free(memory, bytes);
                              }};
  auto pool = std::make_unique<BufferPool>(std::size_t{8192}, counting);
  Buffer kept = pool->acquire(5000);
  pool->acquire(4096);
  EXPECT_EQ(g_allocated, 8192u + 4096u);  // the second one is cached
  pool.reset();
  EXPECT_EQ(g_allocated, 8192u + 4096u);  // a buffer is out
  kept = {};
  EXPECT_EQ(g_allocated, 0u);
}

TEST(BufferPool, test_acquire_from_many_threads_never_shares_a_block) {
  BufferPool pool(1 << 16);
  std::vector<std::thread> threads;
  std::vector<int> clean(4, 0);
  for (std::size_t t = 0; t < clean.size(); ++t) {
    threads.emplace_back([&pool, &clean, t] {
      const auto mark = static_cast<std::byte>(t + 1);
      bool all = true;
      for (int round = 0; round < 300; ++round) {
        const Buffer buffer = pool.acquire(4096u << (round % 4));
        std::memset(buffer.data(), static_cast<int>(mark), buffer.capacity());
        std::this_thread::yield();
        all = all && buffer.data()[0] == mark && buffer.data()[buffer.capacity() - 1] == mark;
      }
      clean[t] = all ? 1 : 0;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(clean, std::vector<int>(4, 1));
  EXPECT_EQ(pool.outstanding_bytes(), 0u);
}

}  // namespace
}  // namespace geocomm::core
