#include "codec/payload/payload.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "codec/frames/thread_scratch.h"
#include "codec/payload/frame_jobs.h"
#include "core/float_rules.h"
#include "core/str.h"

namespace geocomm::codec {
namespace {

using core::DType;
using core::Status;
using core::StatusCode;

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
