#include "codec/quantizers/lossless/lossless_kernels.h"

#if defined(__AVX512VBMI2__)

#include <immintrin.h>

#include <cstdint>

namespace geocomm::codec {
namespace {

// Orders for permutations of two registers: every second byte or word of them, and the bytes or words of one
// alternating with those of the other.
struct Orders {
  std::uint8_t even_bytes[64];
  std::uint8_t odd_bytes[64];
  std::uint8_t first_bytes[64];  // byte i of the first, byte i of the second, ...
  std::uint8_t last_bytes[64];   // from byte 32 on
  std::uint16_t even_words[32];
  std::uint16_t odd_words[32];
  std::uint16_t first_words[32];
  std::uint16_t last_words[32];
};
consteval Orders make_orders() {
  Orders orders{};
  for (unsigned i = 0; i < 64; ++i) {
    orders.even_bytes[i] = static_cast<std::uint8_t>(2 * i);
    orders.odd_bytes[i] = static_cast<std::uint8_t>(2 * i + 1);
    orders.first_bytes[i] = static_cast<std::uint8_t>(i / 2 + i % 2 * 64);
    orders.last_bytes[i] = static_cast<std::uint8_t>(32 + i / 2 + i % 2 * 64);
  }
  for (unsigned i = 0; i < 32; ++i) {
    orders.even_words[i] = static_cast<std::uint16_t>(2 * i);
    orders.odd_words[i] = static_cast<std::uint16_t>(2 * i + 1);
    orders.first_words[i] = static_cast<std::uint16_t>(i / 2 + i % 2 * 32);
    orders.last_words[i] = static_cast<std::uint16_t>(16 + i / 2 + i % 2 * 32);
  }
  return orders;
}
constexpr Orders kOrders = make_orders();

// 32 words of 16 bits, twice.
struct Words {
  __m512i first;
  __m512i last;
};

__m512i rotate_left(__m512i words) {
  return _mm512_or_si512(_mm512_slli_epi16(words, 1), _mm512_srli_epi16(words, 15));
}
__m512i rotate_right(__m512i words) {
  return _mm512_or_si512(_mm512_srli_epi16(words, 1), _mm512_slli_epi16(words, 15));
}

__m512i pick_bytes(const Words& words, const std::uint8_t (&order)[64]) {
  return _mm512_permutex2var_epi8(words.first, _mm512_loadu_si512(order), words.last);
}
// The halves of 64 words of 32 bits.
Words pick_halves(const std::byte* src, const std::uint16_t (&order)[32]) {
  const __m512i picked = _mm512_loadu_si512(order);
  return {_mm512_permutex2var_epi16(_mm512_loadu_si512(src), picked, _mm512_loadu_si512(src + 64)),
          _mm512_permutex2var_epi16(_mm512_loadu_si512(src + 128), picked, _mm512_loadu_si512(src + 192))};
}
// Words of 64 low and 64 high bytes.
Words words_of(__m512i high, __m512i low) {
  return {_mm512_permutex2var_epi8(low, _mm512_loadu_si512(kOrders.first_bytes), high),
          _mm512_permutex2var_epi8(low, _mm512_loadu_si512(kOrders.last_bytes), high)};
}

void split16(const std::byte* src, std::size_t count, std::byte* high, std::byte* low) {
  for (std::size_t i = 0; i < count; i += 64) {
    const Words words = {rotate_left(_mm512_loadu_si512(src + 2 * i)),
                         rotate_left(_mm512_loadu_si512(src + 2 * i + 64))};
    _mm512_storeu_si512(high + i, pick_bytes(words, kOrders.odd_bytes));
    _mm512_storeu_si512(low + i, pick_bytes(words, kOrders.even_bytes));
  }
}

void merge16(const std::byte* high, const std::byte* low, std::size_t count, std::byte* dst) {
  for (std::size_t i = 0; i < count; i += 64) {
    const Words words = words_of(_mm512_loadu_si512(high + i), _mm512_loadu_si512(low + i));
    _mm512_storeu_si512(dst + 2 * i, rotate_right(words.first));
    _mm512_storeu_si512(dst + 2 * i + 64, rotate_right(words.last));
  }
}

std::size_t split32(const std::byte* src, std::size_t count, std::byte* high, std::byte* low,
                    std::byte* bitmap) {
  std::size_t set = 0;
  for (std::size_t i = 0; i < count; i += 64) {
    const std::byte* from = src + 4 * i;
    const Words upper = pick_halves(from, kOrders.odd_words);
    const Words words = {rotate_left(upper.first), rotate_left(upper.last)};
    _mm512_storeu_si512(high + i, pick_bytes(words, kOrders.odd_bytes));
    _mm512_storeu_si512(low + i, pick_bytes(words, kOrders.even_bytes));
    const Words lower = pick_halves(from, kOrders.even_words);
    const std::uint64_t first = _cvtmask32_u32(_mm512_test_epi16_mask(lower.first, lower.first));
    const std::uint64_t last = _cvtmask32_u32(_mm512_test_epi16_mask(lower.last, lower.last));
    const std::uint64_t bits = first | last << 32;
    __builtin_memcpy(bitmap + i / 8, &bits, sizeof(bits));
    set += static_cast<std::size_t>(_mm_popcnt_u64(bits));
  }
  return set;
}

// The bytes whose bits are set, closed up; what follows them means nothing. The form that keeps bytes, not
// the one that zeroes them: Bochs, which the tests run on where there is no AVX-512, gets that wrong for 64
// bits.
__m512i compact(std::uint64_t bits, __m512i bytes) {
  return _mm512_mask_compress_epi8(bytes, _cvtu64_mask64(bits), bytes);
}

std::size_t split_lower(const std::byte* src, const std::byte* bitmap, std::size_t count, std::byte* high,
                        std::byte* low) {
  std::size_t taken = 0;
  for (std::size_t i = 0; i < count; i += 64) {
    std::uint64_t bits = ~std::uint64_t{0};
    if (bitmap != nullptr) __builtin_memcpy(&bits, bitmap + i / 8, sizeof(bits));
    if (bits == 0) continue;
    const Words lower = pick_halves(src + 4 * i, kOrders.even_words);
    _mm512_storeu_si512(high + taken, compact(bits, pick_bytes(lower, kOrders.odd_bytes)));
    _mm512_storeu_si512(low + taken, compact(bits, pick_bytes(lower, kOrders.even_bytes)));
    taken += static_cast<std::size_t>(_mm_popcnt_u64(bits));
  }
  return taken;
}

// 32 words: `upper` rotated back, above `lower`.
void store32(std::byte* dst, __m512i upper, __m512i lower) {
  const __m512i words = rotate_right(upper);
  _mm512_storeu_si512(dst, _mm512_permutex2var_epi16(lower, _mm512_loadu_si512(kOrders.first_words), words));
  _mm512_storeu_si512(dst + 64,
                      _mm512_permutex2var_epi16(lower, _mm512_loadu_si512(kOrders.last_words), words));
}

// The next bytes, spread out to where bits are set. The load stays an instruction of its own: Bochs, which
// the tests run on where there is no AVX-512, gets an expansion from memory wrong.
__m512i expand(std::uint64_t bits, const std::byte* from) {
  __m512i bytes = _mm512_loadu_si512(from);
  asm("" : "+v"(bytes));
  return _mm512_maskz_expand_epi8(_cvtu64_mask64(bits), bytes);
}

std::size_t merge32(const std::byte* high, const std::byte* low, const LowerHalves& lower, std::size_t count,
                    std::byte* dst) {
  std::size_t taken = 0;
  for (std::size_t i = 0; i < count; i += 64) {
    std::uint64_t bits = lower.high == nullptr ? 0 : ~std::uint64_t{0};
    if (lower.bitmap != nullptr) __builtin_memcpy(&bits, lower.bitmap + i / 8, sizeof(bits));
    Words halves = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    if (bits != 0) {
      halves = words_of(expand(bits, lower.high + taken), expand(bits, lower.low + taken));
      taken += static_cast<std::size_t>(_mm_popcnt_u64(bits));
    }
    const Words upper = words_of(_mm512_loadu_si512(high + i), _mm512_loadu_si512(low + i));
    store32(dst + 4 * i, upper.first, halves.first);
    store32(dst + 4 * i + 128, upper.last, halves.last);
  }
  return taken;
}

constexpr LosslessKernels kAvx512{split16, merge16, split32, split_lower, merge32};

}  // namespace

const LosslessKernels* lossless_kernels_avx512() {
  return &kAvx512;
}

}  // namespace geocomm::codec

#else

namespace geocomm::codec {
const LosslessKernels* lossless_kernels_avx512() {
  return nullptr;
}
}  // namespace geocomm::codec

#endif
