#include "codec/entropy/huffman/symbol_counts.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>

#include "codec/entropy/huffman/lane_kernels.h"
#include "core/cpu.h"

namespace geocomm::codec::huffman {
namespace {

// Several tables, so that a run of one symbol does not wait for its own count to be stored.
class CountTables {
 public:
  void add(std::span<const std::byte> src) {
    std::size_t done = 0;
    for (; done + 8 <= src.size(); done += 8) {
      std::uint64_t eight;
      std::memcpy(&eight, src.data() + done, 8);
      for (unsigned k = 0; k < 8; ++k) ++tables_[k][eight >> (8 * k) & 0xFF];
    }
    for (; done < src.size(); ++done) ++tables_[0][std::to_integer<std::size_t>(src[done])];
  }
  Histogram sum() const {
    Histogram sum = tables_[0];
    for (std::size_t k = 1; k < tables_.size(); ++k) {
      for (std::size_t symbol = 0; symbol < kSymbols; ++symbol) sum[symbol] += tables_[k][symbol];
    }
    return sum;
  }

 private:
  std::array<Histogram, 8> tables_{};
};

// Whether symbols are so few of a part that it is faster to count the others apart.
bool is_few(std::size_t symbols, std::size_t part) {
  return 8 * symbols <= part;
}

// The symbols that have the largest counts, if all others are few.
std::optional<CommonSymbols> common_symbols(const Histogram& counts, std::uint32_t total) {
  std::uint32_t rare = 0;
  for (const std::uint32_t count : counts) rare += count < total / 64 ? count : 0;
  if (!is_few(rare, total)) return std::nullopt;
  std::array<std::uint32_t, kSymbols> keys;
  for (std::uint32_t symbol = 0; symbol < kSymbols; ++symbol) keys[symbol] = counts[symbol] << 8 | symbol;
  std::ranges::partial_sort(keys, keys.begin() + kCommonSymbols, std::greater{});
  CommonSymbols common;
  std::uint32_t others = total;
  for (std::size_t k = 0; k < kCommonSymbols; ++k) {
    common[k] = static_cast<std::uint8_t>(keys[k]);
    others -= keys[k] >> 8;
  }
  if (!is_few(others, total)) return std::nullopt;
  return common;
}

}  // namespace

// The first part is counted by tables, and tells which symbols are common. Where they are no longer most,
// tables take all that follows.
Histogram count_symbols(std::span<const std::byte> src) {
  constexpr std::size_t kSample = 1024;
  CountTables tables;
  CommonSymbols common{};
  CommonCounts counts{};
  const auto count_common = core::at_cpu_level<LaneKernels>().count_common;
  if (count_common != nullptr && src.size() >= 16 * kSample) {
    tables.add(src.first(kSample));
    src = src.subspan(kSample);
    const auto found = common_symbols(tables.sum(), kSample);
    bool goes_on = found.has_value();
    common = found.value_or(common);
    while (goes_on && !src.empty()) {
      std::array<std::byte, kCountedAtOnce + kCountSlack> others;
      const std::size_t part = std::min(kCountedAtOnce, src.size());
      const std::size_t size = count_common(src.first(part), common, counts, others.data());
      tables.add(std::span(others).first(size));
      src = src.subspan(part);
      goes_on = is_few(size, part);
    }
  }
  tables.add(src);
  Histogram sum = tables.sum();
  for (std::size_t k = 0; k < kCommonSymbols; ++k) sum[common[k]] += counts[k];
  return sum;
}

}  // namespace geocomm::codec::huffman
