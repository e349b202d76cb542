#include "codec/entropy/plane.h"

#include <cstring>

#include "codec/entropy/huffman/huffman_plane.h"
#include "codec/entropy/zstd_plane.h"

namespace geocomm::codec {
namespace {

using core::Status;

std::size_t copy_plane(std::span<const std::byte> src, std::byte* dst) {
  if (!src.empty()) std::memcpy(dst, src.data(), src.size());
  return src.size();
}

}  // namespace

bool has_stage(Entropy stage) {
  return stage != Entropy::Zstd || has_zstd();
}

std::size_t plane_bound(Entropy stage, std::size_t bytes) {
  switch (stage) {
    case Entropy::None:
      break;
    case Entropy::Huffman:
      return huffman::huffman_plane_bound(bytes);
    case Entropy::Zstd:
      return zstd_plane_bound(bytes);
  }
  return bytes;
}

std::size_t encode_plane(Entropy stage, std::span<const std::byte> src, std::byte* dst) {
  switch (stage) {
    case Entropy::None:
      break;
    case Entropy::Huffman:
      return huffman::encode_huffman_plane(src, dst);
    case Entropy::Zstd:
      return encode_zstd_plane(src, dst);
  }
  return copy_plane(src, dst);
}

core::Result<std::size_t> coded_plane_bytes(Entropy stage, std::span<const std::byte> coded,
                                            std::size_t bytes) {
  switch (stage) {
    case Entropy::None:
      break;
    case Entropy::Huffman:
      return huffman::huffman_plane_bytes(coded, bytes);
    case Entropy::Zstd:
      return zstd_plane_bytes(coded, bytes);
  }
  if (bytes <= coded.size()) return bytes;
  return core::corrupt("codec frame: a plane of ", bytes, " bytes, but ", coded.size(), " are there");
}

Status decode_plane(Entropy stage, std::span<const std::byte> coded, std::span<std::byte> dst) {
  switch (stage) {
    case Entropy::None:
      break;
    case Entropy::Huffman:
      return huffman::decode_huffman_plane(coded, dst);
    case Entropy::Zstd:
      return decode_zstd_plane(coded, dst);
  }
  copy_plane(coded, dst.data());
  return Status::ok();
}

Status take_plane(Entropy stage, std::span<const std::byte>& coded, std::span<std::byte> dst) {
  GEOCOMM_ASSIGN_OR_RETURN(const std::size_t bytes, coded_plane_bytes(stage, coded, dst.size()));
  GEOCOMM_RETURN_IF_ERROR(decode_plane(stage, coded.first(bytes), dst));
  coded = coded.subspan(bytes);
  return Status::ok();
}

}  // namespace geocomm::codec
