// Stores past the caches, for output so large that nobody finds it there: the processor need not read a line
// before it writes it, and what the caches hold stays.
#pragma once

#include <cstddef>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace geocomm::codec {

// Of memory that is written so.
inline constexpr std::size_t kStreamAlignment = 64;

// As memcpy; `dst` is aligned to 16 bytes.
inline void copy_streaming(std::byte* dst, const std::byte* src, std::size_t bytes) {
#if defined(__SSE2__)
  const std::size_t whole = bytes - bytes % sizeof(__m128i);
  for (std::size_t i = 0; i < whole; i += sizeof(__m128i)) {
    const __m128i word = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i));
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst + i), word);
  }
  dst += whole;
  src += whole;
  bytes -= whole;
#endif
  if (bytes > 0) std::memcpy(dst, src, bytes);
}

// Before another thread is told of what was written.
inline void end_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace geocomm::codec
