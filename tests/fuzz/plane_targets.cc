#include "codec/entropy/plane.h"
#include "content.h"
#include "fuzz_target.h"

namespace geocomm::fuzz {
namespace {

using codec::Entropy;
using core::StatusCode;

void decode_plane_everywhere(Entropy stage, Input coded, std::size_t bytes, Input expected) {
  StatusCode code = StatusCode::Ok;
  std::vector<std::byte> reference;
  at_every_cpu_level([&](core::CpuLevel level) {
    ExactBytes dst(bytes, 0);
    const auto status = codec::decode_plane(stage, coded, dst.span());
    require(status.is_ok() || status.code() == StatusCode::CorruptData, "not CorruptData");
    if (level == core::CpuLevel::Scalar) {
      code = status.code();
      reference.assign(dst.span().begin(), dst.span().end());
    }
    require(status.code() == code, "CPU levels disagree on the status");
    require(!status.is_ok() || same_bytes(dst.span(), reference), "CPU levels disagree on the bytes");
  });
  require(expected.empty() || (code == StatusCode::Ok && same_bytes(expected, reference)),
          "a plane does not decode to what was encoded");
}

// Three bytes of how many bytes the plane has (ElementCount), then what may be the coded plane.
void fuzz_plane(Entropy stage, Input input) {
  if (!codec::has_stage(stage)) return;
  InputReader reader(input);
  const auto low = reader.take<std::uint16_t>();
  const std::size_t bytes = ElementCount{low, reader.take<std::uint8_t>()}.value();
  const ExactBytes rest(reader.rest(), 0);
  const auto coded_bytes = codec::coded_plane_bytes(stage, rest.span(), bytes);
  if (!coded_bytes.is_ok()) {
    require(coded_bytes.status().code() == StatusCode::CorruptData, "not CorruptData");
    return;
  }
  require(*coded_bytes <= rest.span().size(), "a plane that is longer than what is there");
  const ExactBytes coded(rest.span().first(*coded_bytes), 1);
  const auto again = codec::coded_plane_bytes(stage, coded.span(), bytes);
  require(again.is_ok() && *again == *coded_bytes, "what follows a plane matters");
  if (*coded_bytes > 0) {
    const ExactBytes cut(coded.span().first(*coded_bytes - 1), 0);
    require(!codec::coded_plane_bytes(stage, cut.span(), bytes).is_ok(), "a truncated plane is not refused");
  }
  decode_plane_everywhere(stage, coded.span(), bytes, {});
}

}  // namespace

void fuzz_plane_huffman(Input input) {
  fuzz_plane(Entropy::Huffman, input);
}
void fuzz_plane_zstd(Input input) {
  fuzz_plane(Entropy::Zstd, input);
}

void fuzz_encode_plane(Input input) {
  InputReader reader(input);
  const auto stage = static_cast<Entropy>(reader.take<std::uint8_t>() % 3);
  if (!codec::has_stage(stage)) return;
  const auto fill = reader.take<Fill>();
  const auto low = reader.take<std::uint16_t>();
  const std::size_t bytes = ElementCount{low, reader.take<std::uint8_t>()}.value();
  const ExactBytes src(make_content(fill, core::DType::UInt8, bytes, reader.rest()), 1);
  const std::size_t bound = codec::plane_bound(stage, bytes);
  std::vector<std::byte> reference;
  at_every_cpu_level([&](core::CpuLevel level) {
    ExactBytes dst(bound, 0);
    const std::size_t size = codec::encode_plane(stage, src.span(), dst.data());
    require(size <= bound, "a coded plane is longer than its bound");
    const auto coded = dst.span().first(size);
    if (level == core::CpuLevel::Scalar) reference.assign(coded.begin(), coded.end());
    require(same_bytes(coded, reference), "CPU levels disagree on the coded plane");
  });
  const auto coded_bytes = codec::coded_plane_bytes(stage, reference, bytes);
  require(coded_bytes.is_ok() && *coded_bytes == reference.size(), "the head gives another size");
  decode_plane_everywhere(stage, reference, bytes, src.span());
}

}  // namespace geocomm::fuzz
