#include "codec/payload/payload.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "codec/frames/thread_scratch.h"
#include "core/float_rules.h"
#include "core/str.h"

namespace geocomm::codec {
namespace {

using core::DType;
using core::Status;
using core::StatusCode;

// Runs job(0 .. count - 1) on the pool's threads and on this one. Waits only for jobs that a thread has
// begun: a pool whose threads are all busy (this one may be among them) cannot hold it up.
class SharedJobs {
 public:
  using Job = std::function<Status(std::size_t)>;
  // Of the first job, by its index, that failed; what a job throws is its error.
  struct Outcome {
    Status status;
    std::size_t index = 0;
  };

  static Outcome run(core::ThreadPool* pool, std::size_t count, const Job& job) {
    const auto jobs = std::make_shared<SharedJobs>(count, job);
    const std::size_t helpers = pool == nullptr || count < 2 ? 0 : std::min(pool->thread_count(), count - 1);
    // From the first helper on nothing may leave this function before all jobs are done. With fewer helpers
    // these take longer.
    (void)core::without_throwing([&] {
      for (std::size_t i = 0; i < helpers; ++i) pool->submit([jobs] { jobs->work(); });
      return Status::ok();
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
      Status status = core::without_throwing([&] { return job_(index); });
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

std::size_t frame_elements(DType dtype) {
  return kPayloadFrameBytes / core::size_of(dtype);
}

struct PlacedFrame {
  std::span<const std::byte> bytes;
  std::uint64_t first_element = 0;
  std::uint64_t elements = 0;
};

// Walks the headers; `visit` gets each frame.
template <typename Visit>
core::Result<PayloadInfo> walk(std::span<const std::byte> payload, const Visit& visit) {
  PayloadInfo info;
  std::span<const std::byte> rest = payload;
  do {
    auto parsed = parse_frame(rest);
    if (!parsed.is_ok()) {
      return Status(parsed.status().code(),
                    core::str("payload: frame ", info.frames, " at byte ", payload.size() - rest.size(), ": ",
                              parsed.status().message()));
    }
    const FrameView& frame = *parsed;
    if (info.frames == 0) info.dtype = frame.dtype;
    if (frame.dtype != info.dtype) {
      return core::corrupt("payload: frame ", info.frames, " holds ", core::to_string(frame.dtype),
                           ", the first one ", core::to_string(info.dtype));
    }
    // A frame may claim far more elements than it has bytes; nobody makes room for more than a writer puts
    // there.
    if (frame.elements > frame_elements(frame.dtype)) {
      return core::corrupt("payload: frame ", info.frames, " holds ", frame.elements,
                           " elements, a frame of ", core::to_string(frame.dtype),
                           " in a payload has at most ", frame_elements(frame.dtype));
    }
    if (info.spec.id == CodecId::None) info.spec = frame.spec;
    visit(PlacedFrame{rest.first(frame_bytes(frame)), info.elements, frame.elements});
    info.elements += frame.elements;
    ++info.frames;
    rest = rest.subspan(frame_bytes(frame));
  } while (!rest.empty());
  info.raw_bytes = info.elements * core::size_of(info.dtype);
  return info;
}

// Runs decode(frame, element_bytes) on every frame. element_bytes: of an element in `dst`, 0: as in the
// payload.
template <typename Decode>
Status decode_frames(std::span<const std::byte> payload, std::size_t element_bytes, std::size_t dst_bytes,
                     core::ThreadPool* pool, const Decode& decode) {
  std::vector<PlacedFrame> frames;
  GEOCOMM_ASSIGN_OR_RETURN(const PayloadInfo info,
                           walk(payload, [&](const PlacedFrame& frame) { frames.push_back(frame); }));
  if (element_bytes == 0) element_bytes = core::size_of(info.dtype);
  if (const std::uint64_t expected = info.elements * element_bytes; dst_bytes != expected) {
    return {dst_bytes < expected ? StatusCode::OutputTooSmall : StatusCode::InvalidArgument,
            core::str("decompress: the payload holds ", info.elements, " elements of ",
                      core::to_string(info.dtype), " that take ", expected, " bytes, dst has ", dst_bytes)};
  }
  const auto [status, index] = SharedJobs::run(
      pool, frames.size(), [&](std::size_t frame) { return decode(frames[frame], element_bytes); });
  if (status.is_ok()) return status;
  return {status.code(), core::str("payload: frame ", index, ": ", status.message())};
}

core::Result<std::size_t> compress_frames(const CodecSpec& spec, DType dtype, std::span<const std::byte> src,
                                          std::span<std::byte> dst, const CompressOptions& options,
                                          core::ThreadPool* pool) {
  const core::FloatRules rules;
  const std::size_t elements = src.size() / core::size_of(dtype);
  if (src.size() % core::size_of(dtype) != 0) {
    return Status(StatusCode::InvalidArgument, core::str("compress: ", src.size(), " bytes are not whole ",
                                                         core::to_string(dtype), " elements"));
  }
  if (options.feedback.is_on() && options.feedback.elements != elements) {
    return Status(StatusCode::InvalidArgument,
                  core::str("compress: a residual of ", options.feedback.elements, " elements for ", elements,
                            " of input"));
  }
  if (const std::size_t bound = payload_bound(spec, dtype, elements); dst.size() < bound) {
    return Status(StatusCode::OutputTooSmall, core::str("compress: the payload may take ", bound,
                                                        " bytes, dst has room for ", dst.size()));
  }

  const std::size_t per_frame = frame_elements(dtype);
  const std::size_t frames = std::max<std::size_t>((elements + per_frame - 1) / per_frame, 1);
  const auto compress_frame = [&](std::size_t index, std::span<std::byte> room) {
    const std::size_t first = index * per_frame;
    const std::size_t count = std::min(per_frame, elements - first);
    CompressOptions part = options;
    part.first_element += first;
    part.feedback = options.feedback.part(first, count);
    return compress(spec, dtype, src.subspan(first * core::size_of(dtype), count * core::size_of(dtype)),
                    room, part);
  };
  // What can go wrong now (codec and dtype) goes wrong in every frame alike, before it wrote anything.
  if (pool == nullptr) {
    std::size_t end = 0;
    for (std::size_t index = 0; index < frames; ++index) {
      GEOCOMM_ASSIGN_OR_RETURN(const std::size_t size, compress_frame(index, dst.subspan(end)));
      end += size;
    }
    return end;
  }
  // What may be larger than its place is made in the caches, so that no page of `dst` is touched but those
  // that the payload takes.
  const std::size_t bound = compress_bound(spec, dtype, per_frame);
  const std::size_t place = usual_compress_bound(spec, dtype, per_frame);
  FramePacker packer(dst.data(), place, frames);
  auto outcome = SharedJobs::run(pool, frames, [&](std::size_t index) {
    const auto own = dst.subspan(packer.place_of(index));
    const auto frame =
        bound <= place ? own.first(std::min(place, own.size())) : thread_scratch(ScratchUse::Frame, bound);
    GEOCOMM_ASSIGN_OR_RETURN(const std::size_t size, compress_frame(index, frame));
    packer.add(index, frame.first(size));
    return Status::ok();
  });
  if (!outcome.status.is_ok()) return std::move(outcome.status);
  return packer.finish();
}

}  // namespace

std::size_t payload_bound(const CodecSpec& spec, DType dtype, std::uint64_t elements) {
  const std::size_t per_frame = frame_elements(dtype);
  const std::size_t whole = elements / per_frame;
  const std::size_t rest = elements % per_frame;
  const std::size_t last = rest > 0 || whole == 0 ? compress_bound(spec, dtype, rest) : 0;
  return whole * compress_bound(spec, dtype, per_frame) + last;
}

core::Result<std::size_t> compress_payload(const CodecSpec& spec, DType dtype, std::span<const std::byte> src,
                                           std::span<std::byte> dst, const CompressOptions& options,
                                           core::ThreadPool* pool) {
  return core::without_throwing([&] { return compress_frames(spec, dtype, src, dst, options, pool); });
}

core::Result<PayloadInfo> inspect_payload(std::span<const std::byte> payload) {
  return walk(payload, [](const PlacedFrame&) {});
}

core::Status decompress_payload(std::span<const std::byte> payload, std::span<std::byte> dst,
                                core::ThreadPool* pool) {
  const Stores stores = dst.size() >= kStreamingThreshold ? Stores::Streaming : Stores::Cached;
  return core::without_throwing([&] {
    return decode_frames(
        payload, 0, dst.size(), pool, [&](const PlacedFrame& frame, std::size_t element_bytes) {
          const auto part = dst.subspan(frame.first_element * element_bytes, frame.elements * element_bytes);
          return decompress(frame.bytes, part, stores);
        });
  });
}

core::Status accumulate_payload(std::span<const std::byte> payload, std::span<float> sum,
                                core::ThreadPool* pool) {
  return core::without_throwing([&] {
    return decode_frames(
        payload, sizeof(float), sum.size_bytes(), pool, [&](const PlacedFrame& frame, std::size_t) {
          return decompress_accumulate(frame.bytes, sum.subspan(frame.first_element, frame.elements),
                                       Accumulate::Add);
        });
  });
}

}  // namespace geocomm::codec
