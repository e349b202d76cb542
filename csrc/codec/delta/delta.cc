#include "codec/delta/delta.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "codec/delta/delta_blocks.h"
#include "codec/delta/delta_words.h"
#include "codec/frames/thread_scratch.h"
#include "codec/payload/frame_jobs.h"
#include "core/crc32c.h"
#include "core/str.h"

namespace geocomm::codec {
namespace {

using core::DType;
using core::Status;
using core::StatusCode;

static_assert(offsetof(DeltaHeader, elements) == 8 && offsetof(DeltaHeader, header_crc) == 32);

std::size_t frame_elements(DType dtype) {
  return kDeltaFrameBytes / core::size_of(dtype);
}
std::size_t words_of(DType dtype, std::size_t elements) {
  return elements * core::size_of(dtype) / word_bytes(dtype);
}
std::size_t frame_bound(DType dtype, std::size_t elements) {
  return sizeof(DeltaHeader) + delta_payload_bound(dtype, words_of(dtype, elements));
}

std::uint32_t crc_of(const DeltaHeader& header) {
  return core::crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(DeltaHeader, header_crc)));
}

// A frame of a delta: its header is checked, its payload is there.
struct Frame {
  DeltaHeader header;
  std::span<const std::byte> payload;

  DType dtype() const { return static_cast<DType>(header.dtype); }
  std::size_t bytes() const { return sizeof(DeltaHeader) + payload.size(); }
};

core::Result<Frame> parse(std::span<const std::byte> bytes) {
  Frame frame;
  DeltaHeader& header = frame.header;
  if (bytes.size() < sizeof(header)) {
    return core::corrupt("delta: truncated: a header has ", sizeof(header), " bytes, got ", bytes.size());
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kDeltaMagic) {
    return core::corrupt("delta: wrong magic 0x", std::hex, header.magic, ", expected 0x", kDeltaMagic);
  }
  if (header.version != kDeltaVersion) {
    return Status(StatusCode::VersionMismatch,
                  core::str("delta: format version ", int{header.version}, ", this geocomm reads ",
                            int{kDeltaVersion}, "; run the same version at both ends"));
  }
  if (header.header_crc != crc_of(header)) return core::corrupt("delta: the header's checksum is wrong");
  if (!core::is_valid_dtype(header.dtype) || header.unused != 0) {
    return core::corrupt("delta: unknown dtype ", int{header.dtype}, " or flags ", header.unused);
  }
  if (header.elements > frame_elements(frame.dtype())) {
    return core::corrupt("delta: a frame of ", header.elements, " elements; one of ",
                         core::to_string(frame.dtype()), " has at most ", frame_elements(frame.dtype()));
  }
  if (header.payload_bytes > bytes.size() - sizeof(header)) {
    return core::corrupt("delta: truncated: payload of ", header.payload_bytes, " bytes, got ",
                         bytes.size() - sizeof(header));
  }
  frame.payload = bytes.subspan(sizeof(header), header.payload_bytes);
  return frame;
}

struct PlacedFrame {
  Frame frame;
  std::uint64_t first_element = 0;
};

// Walks the headers; `visit` gets each frame.
template <typename Visit>
core::Result<DeltaInfo> walk(std::span<const std::byte> delta, const Visit& visit) {
  DeltaInfo info;
  do {
    GEOCOMM_ASSIGN_OR_RETURN(const Frame frame, parse(delta));
    if (info.frames == 0) info.dtype = frame.dtype();
    if (frame.dtype() != info.dtype) {
      return core::corrupt("delta: frame ", info.frames, " holds ", core::to_string(frame.dtype()),
                           ", the first one ", core::to_string(info.dtype));
    }
    visit(PlacedFrame{frame, info.elements});
    info.elements += frame.header.elements;
    ++info.frames;
    delta = delta.subspan(frame.bytes());
  } while (!delta.empty());
  return info;
}

std::size_t make_frame(DType dtype, std::span<const std::byte> base, std::span<const std::byte> values,
                       std::byte* dst) {
  const ScratchOfFrame scratch;
  const DeltaPayload made = encode_delta(dtype, base.data(), values.data(), base.size() / word_bytes(dtype),
                                         dst + sizeof(DeltaHeader));
  DeltaHeader header{};
  header.magic = kDeltaMagic;
  header.version = kDeltaVersion;
  header.dtype = static_cast<std::uint8_t>(dtype);
  header.elements = static_cast<std::uint32_t>(base.size() / core::size_of(dtype));
  header.changes = made.counts.changes;
  header.gap_bytes = made.counts.gap_bytes;
  header.base_crc = core::crc32c(base);
  header.payload_bytes = static_cast<std::uint32_t>(made.bytes);
  header.payload_crc = core::crc32c({dst + sizeof(header), made.bytes});
  header.header_crc = crc_of(header);
  std::memcpy(dst, &header, sizeof(header));
  return sizeof(header) + made.bytes;
}

Status check_frame(const Frame& frame, std::span<const std::byte> base) {
  if (core::crc32c(frame.payload) != frame.header.payload_crc) {
    return core::corrupt("the payload's checksum is wrong");
  }
  if (core::crc32c(base) == frame.header.base_crc) return Status::ok();
  return {StatusCode::InvalidArgument,
          "these elements are not the base that the delta was made for; nothing was changed"};
}

Status of_frame(SharedJobs::Outcome outcome) {
  if (outcome.status.is_ok()) return Status::ok();
  return {outcome.status.code(), core::str("delta: frame ", outcome.index, ": ", outcome.status.message())};
}

Status apply(std::span<const std::byte> delta, std::span<std::byte> values, core::ThreadPool* pool) {
  std::vector<PlacedFrame> frames;
  GEOCOMM_ASSIGN_OR_RETURN(const DeltaInfo info,
                           walk(delta, [&](const PlacedFrame& frame) { frames.push_back(frame); }));
  const std::size_t size = core::size_of(info.dtype);
  if (info.elements * size != values.size()) {
    return {StatusCode::InvalidArgument,
            core::str("delta: it is of ", info.elements, " elements of ", core::to_string(info.dtype),
                      ", which take ", info.elements * size, " bytes; there are ", values.size())};
  }
  const auto part = [&](const PlacedFrame& placed) {
    return values.subspan(placed.first_element * size, placed.frame.header.elements * size);
  };
  // All are looked at before any is applied: a wrong base is left as it is.
  GEOCOMM_RETURN_IF_ERROR(of_frame(SharedJobs::run(pool, frames.size(), [&](std::size_t index) {
    return check_frame(frames[index].frame, part(frames[index]));
  })));
  return of_frame(SharedJobs::run(pool, frames.size(), [&](std::size_t index) {
    const ScratchOfFrame scratch;
    const Frame& frame = frames[index].frame;
    return decode_delta(info.dtype, frame.payload, {frame.header.changes, frame.header.gap_bytes},
                        words_of(info.dtype, frame.header.elements), part(frames[index]).data());
  }));
}

core::Result<std::size_t> make(DType dtype, std::span<const std::byte> base,
                               std::span<const std::byte> values, std::span<std::byte> dst,
                               core::ThreadPool* pool) {
  const std::size_t size = core::size_of(dtype);
  if (base.size() != values.size() || base.size() % size != 0) {
    return Status(StatusCode::InvalidArgument,
                  core::str("delta: ", values.size(), " bytes of ", core::to_string(dtype),
                            " elements, and a base of ", base.size(), "; both are as many whole elements"));
  }
  const std::size_t elements = base.size() / size;
  if (const std::size_t bound = delta_bound(dtype, elements); dst.size() < bound) {
    return Status(StatusCode::OutputTooSmall,
                  core::str("delta: it may take ", bound, " bytes, dst has room for ", dst.size()));
  }
  const std::size_t per_frame = frame_elements(dtype);
  const std::size_t frames = std::max<std::size_t>((elements + per_frame - 1) / per_frame, 1);
  FramePacker packer(dst.data(), frame_bound(dtype, std::min(per_frame, elements)), frames);
  auto outcome = SharedJobs::run(pool, frames, [&](std::size_t index) {
    const std::size_t first = index * per_frame * size;
    const std::size_t bytes = std::min(per_frame * size, base.size() - first);
    std::byte* const place = dst.data() + packer.place_of(index);
    packer.add(index,
               {place, make_frame(dtype, base.subspan(first, bytes), values.subspan(first, bytes), place)});
    return Status::ok();
  });
  GEOCOMM_RETURN_IF_ERROR(of_frame(std::move(outcome)));
  return packer.finish();
}

}  // namespace

std::size_t delta_bound(DType dtype, std::uint64_t elements) {
  const std::size_t per_frame = frame_elements(dtype);
  const std::size_t whole = elements / per_frame;
  const std::size_t rest = elements % per_frame;
  const std::size_t last = rest > 0 || whole == 0 ? frame_bound(dtype, rest) : 0;
  return whole * frame_bound(dtype, per_frame) + last;
}

core::Result<std::size_t> make_delta(DType dtype, std::span<const std::byte> base,
                                     std::span<const std::byte> values, std::span<std::byte> dst,
                                     core::ThreadPool* pool) {
  return core::without_throwing([&] { return make(dtype, base, values, dst, pool); });
}

core::Result<DeltaInfo> inspect_delta(std::span<const std::byte> delta) {
  return walk(delta, [](const PlacedFrame&) {});
}

core::Status apply_delta(std::span<const std::byte> delta, std::span<std::byte> values,
                         core::ThreadPool* pool) {
  return core::without_throwing([&] { return apply(delta, values, pool); });
}

}  // namespace geocomm::codec
