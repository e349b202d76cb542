// What the fuzz targets share: the table of targets, a reader of the fuzzer's bytes, exact memory, and a
// check that ends the process (which is how libFuzzer learns of a finding).
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "core/cpu.h"

namespace geocomm::fuzz {

using Input = std::span<const std::byte>;

// `run` takes any bytes, and ends the process where an invariant does not hold.
struct Target {
  std::string_view name;
  void (*run)(Input input);
};
std::span<const Target> targets();
// nullptr: there is no such target.
const Target* find_target(std::string_view name);

// Prints `what` and aborts.
[[noreturn]] void fail(std::string_view what);
inline void require(bool holds, std::string_view what) {
  if (!holds) fail(what);
}

// Most elements of a frame that a target decodes or makes: two blocks of a coded plane, and little memory.
inline constexpr std::size_t kMaxElements = std::size_t{1} << 18;

// Takes fixed-size fields from the front of the input; zeros where it has ended.
class InputReader {
 public:
  explicit InputReader(Input input) : rest_(input) {}

  template <typename T>
  T take() {
    T value{};
    const Input bytes = take_bytes(sizeof(T));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  // At most `count`.
  Input take_bytes(std::size_t count) {
    const Input bytes = rest_.first(count < rest_.size() ? count : rest_.size());
    rest_ = rest_.subspan(bytes.size());
    return bytes;
  }
  Input rest() const { return rest_; }

 private:
  Input rest_;
};

// A number of elements up to kMaxElements in three bytes, of which most values stand for few: large frames
// are slow.
struct ElementCount {
  std::uint16_t low;
  std::uint8_t high;

  static ElementCount of(std::size_t elements) {
    const auto low = static_cast<std::uint16_t>(elements);
    if (elements <= kFewMask) return {low, 0};
    if (elements <= 0xFFFF) return {low, kMedium};
    return {low, static_cast<std::uint8_t>(kLarge + (elements >> 16))};
  }
  std::size_t value() const {
    if (high < kMedium) return low & kFewMask;
    if (high <= kLarge) return low;
    const std::size_t value = low + (std::size_t{high - kLarge} << 16);
    return value < kMaxElements ? value : kMaxElements;
  }

 private:
  static constexpr std::uint16_t kFewMask = 0x1FFF;
  static constexpr unsigned kMedium = 240;
  static constexpr unsigned kLarge = 251;
};

// Memory of exactly `size` bytes, `misaligned` bytes past an aligned address, so that AddressSanitizer sees
// the first byte beyond its end.
class ExactBytes {
 public:
  ExactBytes(std::size_t size, std::size_t misaligned)
      : memory_(size + misaligned), misaligned_(misaligned) {}
  ExactBytes(Input content, std::size_t misaligned) : ExactBytes(content.size(), misaligned) {
    std::ranges::copy(content, data());
  }

  std::byte* data() { return memory_.data() + misaligned_; }
  std::span<std::byte> span() { return std::span(memory_).subspan(misaligned_); }
  Input span() const { return std::span(memory_).subspan(misaligned_); }

 private:
  std::vector<std::byte> memory_;
  std::size_t misaligned_;
};

// Calls run(level) with each CPU level that this machine has in force, the reference first.
template <typename Run>
void at_every_cpu_level(Run&& run) {
  for (const auto level : core::cpu_levels()) {
    require(core::force_cpu_level(level).is_ok(), "a level that was detected cannot be forced");
    run(level);
  }
}

inline bool same_bytes(Input a, Input b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

// The targets.
void fuzz_codec_spec(Input input);
void fuzz_frame(Input input);
void fuzz_payload(Input input);
void fuzz_plane_huffman(Input input);
void fuzz_plane_zstd(Input input);
void fuzz_decode_cast(Input input);
void fuzz_decode_int(Input input);
void fuzz_decode_bits(Input input);
void fuzz_decode_dead_zone(Input input);
void fuzz_decode_top_k(Input input);
void fuzz_decode_lossless(Input input);
void fuzz_decode_loco(Input input);
void fuzz_encode_cast(Input input);
void fuzz_encode_int(Input input);
void fuzz_encode_bits(Input input);
void fuzz_encode_dead_zone(Input input);
void fuzz_encode_top_k(Input input);
void fuzz_encode_lossless(Input input);
void fuzz_encode_loco(Input input);
void fuzz_encode_plane(Input input);
void fuzz_decode_delta(Input input);
void fuzz_encode_delta(Input input);
void fuzz_wire_header(Input input);
void fuzz_opening_packet(Input input);
void fuzz_link_mark(Input input);

}  // namespace geocomm::fuzz
