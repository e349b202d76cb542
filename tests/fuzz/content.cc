#include "content.h"

#include <algorithm>
#include <cmath>

#include "codec/frames/elements.h"

namespace geocomm::fuzz {
namespace {

// xorshift64* (Vigna 2016): cheap, and the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed | 1u) {}
  std::uint32_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return static_cast<std::uint32_t>(state_ * 0x2545F4914F6CDD1Du >> 32);
  }

 private:
  std::uint64_t state_;
};

// Close to normal, deviation 1: the four bytes of one word and of another, summed.
float bell(Random& random) {
  std::int32_t sum = 0;
  for (int word = 0; word < 2; ++word) {
    for (std::uint32_t bits = random.next(), byte = 0; byte < 4; ++byte, bits >>= 8) sum += bits & 0xFF;
  }
  return static_cast<float>(sum - 1020) * (1.0f / 209.0f);
}

float noise(const Fill& fill, Random& random) {
  if (random.next() % 256 < fill.sparsity) return 0.0f;
  const int spread = fill.spread == 0 ? 0 : static_cast<int>(random.next() % fill.spread) / 2;
  return std::ldexp(bell(random), static_cast<int>(fill.exponent) - 128 - spread);
}

void fill_noise(const Fill& fill, core::DType dtype, std::size_t elements, Random random, std::byte* dst) {
  if (!core::is_compressible(dtype)) {
    for (std::size_t i = 0; i < elements * core::size_of(dtype); ++i) {
      dst[i] = static_cast<std::byte>(random.next() % 256 < fill.sparsity ? 0 : random.next() >> 24);
    }
    return;
  }
  const std::uint32_t mask = fill.kind % kFillKinds == static_cast<int>(FillKind::Coarse) ? 0xFFFF0000 : ~0u;
  codec::with_compressible(dtype, [&]<core::DType kType>() {
    for (std::size_t i = 0; i < elements; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(noise(fill, random)) & mask;
      codec::store_element<kType>(dst, i, std::bit_cast<float>(bits));
    }
  });
}

void patch(std::size_t element_bytes, std::size_t elements, InputReader reader, std::byte* dst) {
  while (!reader.rest().empty()) {
    const std::size_t place = reader.take<std::uint16_t>() * (elements / 65536 + 1);
    const Input bits = reader.take_bytes(element_bytes);
    if (!bits.empty()) std::memcpy(dst + place % elements * element_bytes, bits.data(), bits.size());
  }
}

void fill_from_palette(const Fill& fill, std::size_t element_bytes, std::size_t elements, Input palette,
                       Random random, std::byte* dst) {
  const std::uint32_t colours = std::max<std::uint32_t>(palette.size() / element_bytes, 1);
  for (std::size_t i = 0; i < elements; ++i) {
    std::uint32_t choice = random.next() % colours;
    for (std::uint32_t skew = fill.spread % 8; skew > 0; --skew) choice = random.next() % (choice + 1);
    const Input from = palette.subspan(std::min(choice * element_bytes, palette.size()));
    std::memcpy(dst + i * element_bytes, from.data(), std::min(from.size(), element_bytes));
  }
}

}  // namespace

std::vector<std::byte> make_content(const Fill& fill, core::DType dtype, std::size_t elements, Input input) {
  const std::size_t element_bytes = core::size_of(dtype);
  std::vector<std::byte> content(elements * element_bytes);
  if (content.empty() || input.empty()) return content;
  const Random random(0x9E3779B97F4A7C15u * (fill.sparsity + 1u));
  switch (static_cast<FillKind>(fill.kind % kFillKinds)) {
    case FillKind::Repeat:
      for (std::size_t at = 0; at < content.size(); at += input.size()) {
        std::memcpy(content.data() + at, input.data(), std::min(input.size(), content.size() - at));
      }
      break;
    case FillKind::Noise:
    case FillKind::Coarse:
      fill_noise(fill, dtype, elements, random, content.data());
      patch(element_bytes, elements, InputReader(input), content.data());
      break;
    case FillKind::Palette:
      fill_from_palette(fill, element_bytes, elements, input, random, content.data());
      break;
  }
  return content;
}

}  // namespace geocomm::fuzz
