#include <algorithm>

#include "codec/payload/payload.h"
#include "core/crc32c.h"
#include "decode_case.h"
#include "decode_check.h"

namespace geocomm::fuzz {
namespace {

using codec::FrameHeader;
using core::StatusCode;

// What the fuzzer need not guess.
enum Repair : unsigned { kMagic = 1, kPayloadBytes = 2, kPayloadCrc = 4, kHeaderCrc = 8 };

void repair(unsigned what, std::span<std::byte> frame) {
  if (frame.size() < sizeof(FrameHeader)) return;
  FrameHeader header;
  std::memcpy(&header, frame.data(), sizeof(header));
  if (what & kMagic) {
    header.magic = codec::kFrameMagic;
    header.version = codec::kFrameVersion;
  }
  const Input rest = frame.subspan(sizeof(header));
  if (what & kPayloadBytes) header.payload_bytes = rest.size();
  if (what & kPayloadCrc) {
    header.payload_crc = core::crc32c(rest.first(std::min<std::size_t>(header.payload_bytes, rest.size())));
  }
  std::memcpy(frame.data(), &header, sizeof(header));
  if (what & kHeaderCrc) {
    header.header_crc = core::crc32c(frame.first(offsetof(FrameHeader, header_crc)));
    std::memcpy(frame.data(), &header, sizeof(header));
  }
}

void require_consistent(Input bytes, const codec::FrameView& frame) {
  require(frame.elements <= codec::kMaxFrameElements, "more elements than a frame may have");
  require(codec::frame_bytes(frame) <= bytes.size(), "a frame that is longer than what is there");
  require(frame.payload.empty() || frame.payload.data() == bytes.data() + sizeof(FrameHeader),
          "the payload lies elsewhere");
  FrameHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::byte written[sizeof(FrameHeader)];
  codec::write_frame_header(frame.spec, frame.dtype, frame.elements, frame.payload.size(), header.payload_crc,
                            written);
  require(same_bytes(written, bytes.first(sizeof(written))), "a header that is not canonical was accepted");
}

void require_malformed(const core::Status& status) {
  require(status.code() == StatusCode::CorruptData || status.code() == StatusCode::VersionMismatch,
          "neither CorruptData nor VersionMismatch");
  require(!status.message().empty(), "an error without a message");
}

// What an accelerator wrote may be no frame either.
void require_sealed_or_refused(Input bytes) {
  ExactBytes sealed(bytes, 0);
  const auto size = codec::seal_frame(sealed.span());
  if (!size.is_ok()) {
    require_malformed(size.status());
    return;
  }
  const auto frame = codec::parse_frame(sealed.span());
  require(frame.is_ok() && codec::frame_bytes(*frame) == *size, "a sealed frame does not parse");
  require(codec::verify_payload(sealed.span(), *frame).is_ok(), "a sealed frame has a wrong checksum");
}

}  // namespace

// One byte that says what to repair, one of places, then a frame, and what may follow it.
void fuzz_frame(Input input) {
  InputReader reader(input);
  const unsigned what = reader.take<std::uint8_t>();
  const auto places = Places::of(reader.take<std::uint8_t>());
  ExactBytes bytes(reader.rest(), places.frame);
  repair(what, bytes.span());
  require_sealed_or_refused(bytes.span());
  const auto frame = codec::parse_frame(bytes.span());
  if (!frame.is_ok()) {
    require_malformed(frame.status());
    require(!codec::inspect_payload(bytes.span()).is_ok(), "the payload of a bad frame was accepted");
    return;
  }
  require_consistent(bytes.span(), *frame);
  const ExactBytes cut(bytes.span().first(codec::frame_bytes(*frame) - 1), 0);
  require(!codec::parse_frame(cut.span()).is_ok(), "a truncated frame is not refused");
  const auto verified = codec::verify_payload(bytes.span(), *frame);
  if (!verified.is_ok()) require_malformed(verified);
  if (frame->elements > kMaxElements) return;
  const Decoded decoded = decode_everywhere(bytes.span(), frame->dtype, frame->elements, places);
  require(decoded.code != StatusCode::Ok || verified.is_ok(), "a frame with a wrong checksum was decoded");
}

// Frames, each as a DecodeHead, two bytes of length and its payload, end to end; what is too short for a head
// follows as it is.
void fuzz_payload(Input input) {
  constexpr std::size_t kMaxFrames = 16;
  constexpr std::size_t kMaxRawBytes = std::size_t{4} << 20;
  InputReader reader(input);
  std::vector<std::byte> payload;
  std::vector<ForgedFrame> frames;
  while (reader.rest().size() >= sizeof(DecodeHead) + 2 && frames.size() < kMaxFrames) {
    const auto head = reader.take<DecodeHead>();
    const auto length = reader.take<std::uint16_t>();
    frames.push_back(forge_frame(kAllCodecs, head, reader.take_bytes(length)));
    payload.insert(payload.end(), frames.back().bytes.begin(), frames.back().bytes.end());
  }
  payload.insert(payload.end(), reader.rest().begin(), reader.rest().end());

  const ExactBytes bytes(payload, 1);
  const auto info = codec::inspect_payload(bytes.span());
  if (!info.is_ok()) {
    require_malformed(info.status());
    require(!codec::decompress_payload(bytes.span(), {}).is_ok(), "a bad payload was decoded");
    return;
  }
  require(info->frames == frames.size() && reader.rest().empty(), "a frame more, or less");
  require(info->raw_bytes == info->elements * core::size_of(info->dtype), "raw_bytes does not fit elements");
  if (info->raw_bytes > kMaxRawBytes) return;

  std::vector<std::byte> expected;
  std::vector<float> expected_sum(core::is_compressible(info->dtype) ? info->elements : 0, 1.0f);
  std::size_t done = 0;
  bool all_good = true;
  for (const ForgedFrame& frame : frames) {
    require(frame.dtype == info->dtype, "a payload of two dtypes was accepted");
    ExactBytes dst(frame.elements * core::size_of(frame.dtype), 0);
    all_good = codec::decompress(frame.bytes, dst.span()).is_ok() && all_good;
    expected.insert(expected.end(), dst.span().begin(), dst.span().end());
    if (expected_sum.empty()) continue;
    const auto part = std::span(expected_sum).subspan(done, frame.elements);
    done += frame.elements;
    all_good = codec::decompress_accumulate(frame.bytes, part, codec::Accumulate::Add).is_ok() && all_good;
  }
  at_every_cpu_level([&](core::CpuLevel) {
    ExactBytes dst(info->raw_bytes, 1);
    const auto status = codec::decompress_payload(bytes.span(), dst.span());
    require(status.is_ok() == all_good, "a payload decodes otherwise than its frames");
    require(!all_good || same_bytes(dst.span(), expected),
            "a payload decodes to other bytes than its frames");
    if (expected_sum.empty()) return;
    std::vector<float> sum(expected_sum.size(), 1.0f);
    require(codec::accumulate_payload(bytes.span(), sum).is_ok() == all_good, "a payload adds otherwise");
    require(!all_good || same_bytes(std::as_bytes(std::span(sum)), std::as_bytes(std::span(expected_sum))),
            "a payload gives other sums than its frames");
  });
}

}  // namespace geocomm::fuzz
