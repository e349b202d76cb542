// What runs on the frames of a payload, several at once, and puts together those whose sizes are known only
// when they are there.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "core/executor.h"
#include "core/status.h"

namespace geocomm::codec {

// Runs job(0 .. count - 1) on the pool's threads and on this one. Waits only for jobs that a thread has
// begun: a pool whose threads are all busy (this one may be among them) cannot hold it up.
class SharedJobs {
 public:
  using Job = std::function<core::Status(std::size_t)>;
  // Of the first job, by its index, that failed; what a job throws is its error.
  struct Outcome {
    core::Status status;
    std::size_t index = 0;
  };

  static Outcome run(core::ThreadPool* pool, std::size_t count, const Job& job) {
    const auto jobs = std::make_shared<SharedJobs>(count, job);
    const std::size_t helpers = pool == nullptr || count < 2 ? 0 : std::min(pool->thread_count(), count - 1);
    // From the first helper on nothing may leave this function before all jobs are done. With fewer helpers
    // these take longer.
    (void)core::without_throwing([&] {
      for (std::size_t i = 0; i < helpers; ++i) pool->submit([jobs] { jobs->work(); });
      return core::Status::ok();
    });
    jobs->work();
    std::unique_lock lock(jobs->mutex_);
    jobs->all_done_.wait(lock, [&] { return jobs->done_ == jobs->count_; });
    return std::move(jobs->outcome_);
  }

  SharedJobs(std::size_t count, const Job& job) : count_(count), job_(job) {}

 private:
  void work() {
    for (std::size_t index; (index = next_.fetch_add(1)) < count_;) {
      core::Status status = core::without_throwing([&] { return job_(index); });
      std::lock_guard lock(mutex_);
      if (!status.is_ok() && (outcome_.status.is_ok() || index < outcome_.index)) {
        outcome_ = {std::move(status), index};
      }
      if (++done_ == count_) all_done_.notify_all();
    }
  }

  const std::size_t count_;
  const Job& job_;  // used only while run() waits
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;  // guards all below
  std::condition_variable all_done_;
  std::size_t done_ = 0;
  Outcome outcome_;
};

// Frames whose sizes are known only when they are there, made in any order. Each gets a place of the usual
// size in `dst`, where those of a fixed rate stay, and goes down as soon as all before it are there. One that
// is larger waits apart, and the rest with it.
class FramePacker {
 public:
  FramePacker(std::byte* dst, std::size_t usual_size, std::size_t frames)
      : dst_(dst), stride_(usual_size), frames_(frames) {}

  std::size_t place_of(std::size_t index) const { return index * stride_; }

  // A copy, unless it is at its place. From any thread; once for each frame.
  void add(std::size_t index, std::span<const std::byte> frame) {
    Frame added{frame.size(), {}};
    if (frame.size() > stride_) {
      added.apart.assign(frame.begin(), frame.end());
    } else if (std::byte* const place = dst_ + place_of(index); frame.data() != place) {
      std::memcpy(place, frame.data(), frame.size());
    }
    std::lock_guard lock(mutex_);
    frames_[index] = std::move(added);
    for (; next_ < frames_.size() && frames_[next_].size > 0 && frames_[next_].apart.empty(); ++next_) {
      move_to_end(place_of(next_), frames_[next_].size);
    }
  }

  // When all have been added: puts them in order, and returns their size. `dst` has room for them.
  std::size_t finish() {
    // Down, as far as those that wait apart let them; then up, from the last, to let these in.
    std::size_t apart_bytes = 0;
    const std::size_t first = next_;
    for (; next_ < frames_.size(); ++next_) {
      if (frames_[next_].apart.empty()) {
        move_to_end(place_of(next_), frames_[next_].size);
      } else {
        apart_bytes += frames_[next_].size;
      }
    }
    std::size_t from = end_;
    end_ += apart_bytes;
    std::size_t to = end_;
    for (std::size_t index = frames_.size(); index > first; --index) {
      const Frame& frame = frames_[index - 1];
      to -= frame.size;
      if (frame.apart.empty()) {
        from -= frame.size;
        if (from != to) std::memmove(dst_ + to, dst_ + from, frame.size);
      } else {
        std::memcpy(dst_ + to, frame.apart.data(), frame.size);
      }
    }
    return end_;
  }

 private:
  struct Frame {
    std::size_t size = 0;  // 0: not there yet
    std::vector<std::byte> apart;
  };

  void move_to_end(std::size_t from, std::size_t size) {
    if (end_ != from) std::memmove(dst_ + end_, dst_ + from, size);
    end_ += size;
  }

  std::byte* const dst_;
  const std::size_t stride_;
  std::mutex mutex_;  // guards all below
  std::vector<Frame> frames_;
  std::size_t next_ = 0;
  std::size_t end_ = 0;
};

}  // namespace geocomm::codec
