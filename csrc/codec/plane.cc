#include "codec/plane.h"

#include <cstring>

#include "core/str.h"

namespace geocomm::codec {

using core::Status;
using core::StatusCode;

bool has_stage(Entropy stage) {
  return stage == Entropy::None;
}

std::size_t plane_bound(Entropy, std::size_t bytes) {
  return bytes;
}

std::size_t encode_plane(Entropy, std::span<const std::byte> src, std::byte* dst) {
  if (!src.empty()) std::memcpy(dst, src.data(), src.size());
  return src.size();
}

core::Result<std::size_t> coded_plane_bytes(Entropy, std::span<const std::byte> coded, std::size_t bytes) {
  if (bytes <= coded.size()) return bytes;
  return Status(StatusCode::CorruptData,
                core::str("codec frame: a plane of ", bytes, " bytes, but ", coded.size(), " are there"));
}

Status decode_plane(Entropy, std::span<const std::byte> coded, std::span<std::byte> dst) {
  if (!dst.empty()) std::memcpy(dst.data(), coded.data(), dst.size());
  return Status::ok();
}

}  // namespace geocomm::codec
