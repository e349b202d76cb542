#include <gtest/gtest.h>

#include <bit>
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
    EXPECT_EQ(pool.usage().out_bytes, 10240u);
  }
  EXPECT_EQ(pool.usage().out_bytes, 0u);
  EXPECT_EQ(pool.acquire(9300).data(), first);
}

TEST(BufferPool, test_acquire_of_any_size_takes_an_eighth_more_at_most) {
  BufferPool pool(0);  // nothing lies idle
  std::size_t before = 0;
  for (std::size_t size = 4096; size < (std::size_t{1} << 24); size += 1 + size / 29) {
    for (const std::size_t asked : {size, std::bit_ceil(size), std::bit_ceil(size) + 1}) {
      const std::size_t capacity = pool.acquire(asked).capacity();
      EXPECT_GE(capacity, asked);
      EXPECT_LE(capacity, asked + asked / 8 + 1) << asked;
    }
    const std::size_t capacity = pool.acquire(size).capacity();
    EXPECT_GE(capacity, before) << size;
    before = capacity;
    EXPECT_EQ(pool.acquire(capacity).capacity(), capacity) << size;
  }
  constexpr std::size_t kFrameOfAChunk = (std::size_t{1} << 20) + 32;
  EXPECT_EQ(pool.acquire(kFrameOfAChunk).capacity(), std::size_t{9} << 17);
}

TEST(BufferPool, test_release_of_any_class_is_found_again) {
  BufferPool pool;
  std::vector<Buffer> buffers;
  const auto acquire_all = [&] {
    for (std::size_t size = 4096; size <= 65536; size += size / 16) buffers.push_back(pool.acquire(size));
  };
  acquire_all();
  const std::size_t held = pool.usage().held_bytes;
  EXPECT_EQ(held, pool.usage().out_bytes);
  buffers.clear();
  acquire_all();
  EXPECT_EQ(pool.usage().most_held_bytes, held);  // none came from the source
}

TEST(BufferPool, test_acquire_takes_an_idle_block_of_a_quarter_more_at_most) {
  BufferPool pool;
  const std::size_t capacity = pool.acquire(9 << 10).capacity();
  EXPECT_EQ(capacity, std::size_t{9} << 10);
  const Buffer none_fits = pool.acquire(6 << 10);
  EXPECT_EQ(none_fits.capacity(), std::size_t{6} << 10);
  const Buffer fits = pool.acquire((7 << 10) + 600);
  EXPECT_EQ(fits.capacity(), capacity);
  EXPECT_EQ(pool.usage().out_bytes, std::size_t{15} << 10);
  EXPECT_EQ(pool.usage().held_bytes, std::size_t{15} << 10);
}

TEST(BufferPool, test_usage_counts_what_was_asked_for_what_it_takes_and_what_lies_idle) {
  BufferPool pool(std::size_t{8192});
  std::optional<Buffer> large = pool.acquire(70000);
  std::optional<Buffer> small = pool.acquire(5000);
  EXPECT_EQ(pool.usage().asked_bytes, 75000u);
  EXPECT_EQ(pool.usage().out_bytes, 73728u + 5120u);
  EXPECT_EQ(pool.usage().held_bytes, pool.usage().out_bytes);
  small.reset();
  EXPECT_EQ(pool.usage().asked_bytes, 70000u);
  EXPECT_EQ(pool.usage().held_bytes, 73728u + 5120u);  // idle
  large.reset();
  EXPECT_EQ(pool.usage().held_bytes, 5120u);  // more than may lie idle
  EXPECT_EQ(pool.usage().most_asked_bytes, 75000u);
  EXPECT_EQ(pool.usage().most_held_bytes, 73728u + 5120u);
}

TEST(BufferPool, test_free_idle_frees_what_is_not_out_and_has_lain_for_so_long) {
  BufferPool pool;
  const Buffer out = pool.acquire(10000);
  pool.acquire(10000);
  pool.acquire(50000);
  const std::size_t idle = pool.usage().held_bytes - pool.usage().out_bytes;
  EXPECT_GE(idle, 60000u);
  pool.free_idle(std::chrono::hours(1));
  EXPECT_EQ(pool.usage().held_bytes - pool.usage().out_bytes, idle);
  pool.free_idle(std::chrono::milliseconds(0));
  EXPECT_EQ(pool.usage().held_bytes, pool.usage().out_bytes);
  EXPECT_EQ(pool.usage().out_bytes, out.capacity());
}

TEST(BufferPool, test_fitted_buffer_keeps_its_content_and_gives_its_room_back) {
  BufferPool pool;
  Buffer roomy = pool.acquire(1 << 20);
  roomy.resize(100000);
  for (std::size_t i = 0; i < roomy.size(); ++i) roomy.data()[i] = static_cast<std::byte>(i * 7);
  const std::vector<std::byte> content(roomy.span().begin(), roomy.span().end());
  const Buffer kept = pool.fitted(std::move(roomy));
  ASSERT_EQ(kept.size(), content.size());
  EXPECT_EQ(std::memcmp(kept.data(), content.data(), content.size()), 0);
  EXPECT_EQ(pool.usage().out_bytes, kept.capacity());
  EXPECT_LE(kept.capacity(), content.size() + content.size() / 8);

  Buffer full = pool.acquire(1 << 20);
  full.resize((1 << 19) + 1);  // not even half of it would be saved
  const std::byte* const data = full.data();
  EXPECT_EQ(pool.fitted(std::move(full)).data(), data);
  EXPECT_TRUE(pool.fitted(pool.acquire(1 << 20)).empty());
}

TEST(BufferPool, test_release_of_copies_waits_for_the_last) {
  BufferPool pool;
  std::optional<Buffer> first = pool.acquire(4096);
  std::optional<Buffer> second = first;
  EXPECT_EQ(first->data(), second->data());
  first.reset();
  EXPECT_EQ(pool.usage().out_bytes, 4096u);
  second.reset();
  EXPECT_EQ(pool.usage().out_bytes, 0u);
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
  EXPECT_EQ(g_allocated, 5120u + 4096u);  // the second one is cached
  pool.reset();
  EXPECT_EQ(g_allocated, 5120u + 4096u);  // a buffer is out
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
        const Buffer buffer = pool.acquire(4096u + 700u * (round % 16));
        std::memset(buffer.data(), static_cast<int>(mark), buffer.capacity());
        std::this_thread::yield();
        all = all && buffer.data()[0] == mark && buffer.data()[buffer.capacity() - 1] == mark;
      }
      clean[t] = all ? 1 : 0;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(clean, std::vector<int>(4, 1));
  EXPECT_EQ(pool.usage().out_bytes, 0u);
}

}  // namespace
}  // namespace geocomm::core
