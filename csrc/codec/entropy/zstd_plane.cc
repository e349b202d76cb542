#include "codec/entropy/zstd_plane.h"

#include <cstdint>
#include <cstring>

#ifdef GEOCOMM_ZSTD
#include <zstd.h>

#include <memory>
#endif

namespace geocomm::codec {
namespace {

using core::Status;

// Before the zstd frame: its size, or that of the plane where its bytes follow as they are.
using SizeField = std::uint32_t;

#ifdef GEOCOMM_ZSTD

constexpr int kLevel = 1;

// One context per thread, kept: zstd allocates when it is made and little or nothing after that.
template <typename Context, Context* (*kMake)(), std::size_t (*kFree)(Context*)>
Context* thread_context() {
  struct Free {
    void operator()(Context* context) const { kFree(context); }
  };
  thread_local std::unique_ptr<Context, Free> context(kMake());
  return context.get();
}

// 0: no shorter than src, or out of memory.
std::size_t zstd_compress(std::span<const std::byte> src, std::byte* dst) {
  ZSTD_CCtx* context = thread_context<ZSTD_CCtx, ZSTD_createCCtx, ZSTD_freeCCtx>();
  if (context == nullptr) return 0;
  const std::size_t size = ZSTD_compressCCtx(context, dst, src.size() - 1, src.data(), src.size(), kLevel);
  return ZSTD_isError(size) ? 0 : size;
}

bool zstd_decompress(std::span<const std::byte> coded, std::span<std::byte> dst) {
  if (ZSTD_findFrameCompressedSize(coded.data(), coded.size()) != coded.size()) return false;
  ZSTD_DCtx* context = thread_context<ZSTD_DCtx, ZSTD_createDCtx, ZSTD_freeDCtx>();
  return context != nullptr &&
         ZSTD_decompressDCtx(context, dst.data(), dst.size(), coded.data(), coded.size()) == dst.size();
}

#else

std::size_t zstd_compress(std::span<const std::byte>, std::byte*) {
  return 0;
}
bool zstd_decompress(std::span<const std::byte>, std::span<std::byte>) {
  return false;
}

#endif

}  // namespace

bool has_zstd() {
#ifdef GEOCOMM_ZSTD
  return true;
#else
  return false;
#endif
}

std::size_t zstd_plane_bound(std::size_t bytes) {
  return bytes == 0 ? 0 : bytes + sizeof(SizeField);
}

std::size_t encode_zstd_plane(std::span<const std::byte> src, std::byte* dst) {
  if (src.empty()) return 0;
  std::size_t size = zstd_compress(src, dst + sizeof(SizeField));
  if (size == 0) {
    size = src.size();
    std::memcpy(dst + sizeof(SizeField), src.data(), size);
  }
  const auto field = static_cast<SizeField>(size);
  std::memcpy(dst, &field, sizeof(field));
  return sizeof(field) + size;
}

core::Result<std::size_t> zstd_plane_bytes(std::span<const std::byte> coded, std::size_t bytes) {
  if (bytes == 0) return std::size_t{0};
  SizeField size;
  if (coded.size() < sizeof(size))
    return core::corrupt("codec frame: a zstd plane of ", bytes, " bytes has no size");
  std::memcpy(&size, coded.data(), sizeof(size));
  if (size > bytes || size > coded.size() - sizeof(size))
    return core::corrupt("codec frame: a zstd plane of ", bytes, " bytes is not all there");
  return sizeof(size) + size;
}

Status decode_zstd_plane(std::span<const std::byte> coded, std::span<std::byte> dst) {
  GEOCOMM_ASSIGN_OR_RETURN(const std::size_t size, zstd_plane_bytes(coded, dst.size()));
  if (size != coded.size())
    return core::corrupt("codec frame: a zstd plane of ", dst.size(),
                         " bytes is not of the size that it was said to have");
  if (dst.empty()) return Status::ok();
  const auto packed = coded.subspan(sizeof(SizeField));
  if (packed.size() == dst.size()) {
    std::memcpy(dst.data(), packed.data(), dst.size());
  } else if (!zstd_decompress(packed, dst)) {
    return core::corrupt("codec frame: a zstd plane of ", dst.size(), " bytes does not decode");
  }
  return Status::ok();
}

}  // namespace geocomm::codec
