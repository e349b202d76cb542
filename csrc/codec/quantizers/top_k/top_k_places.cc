#include "codec/quantizers/top_k/top_k_places.h"

#include <bit>
#include <cstring>

#include "codec/frames/thread_scratch.h"
#include "codec/quantizers/select/select_kernels.h"
#include "core/cpu.h"

namespace geocomm::codec {
namespace {

constexpr std::byte kLongGapByte{kLongGap};

// A byte below 255 is a place: it is that many and one further on. Every 255 is 255 further on. So the last
// place is the sum of all bytes and of the places' number, less one.
bool are_valid_gaps(std::span<const std::byte> gaps, std::size_t count, std::size_t elements) {
  if (gaps.empty()) return true;
  std::uint64_t sum = 0;
  std::uint64_t long_ones = 0;
  for (const std::byte gap : gaps) {
    sum += static_cast<std::uint8_t>(gap);
    long_ones += static_cast<std::uint64_t>(gap == kLongGapByte);
  }
  return gaps.size() - long_ones == count && gaps.back() != kLongGapByte && sum + count <= elements;
}

template <Sink kSink>
void scatter_gaps(std::span<const std::byte> gaps, const float* values, std::byte* dst) {
  std::size_t place = 0;
  for (const std::byte gap : gaps) {
    place += static_cast<std::uint8_t>(gap);
    if (gap != kLongGapByte) put<kSink>(dst, place++, *values++);
  }
}

template <Sink kSink>
void scatter_bitmap(std::span<const std::byte> bitmap, const float* values, std::byte* dst) {
  for (std::size_t at = 0; at < bitmap.size(); at += 8) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, bitmap.data() + at, std::min<std::size_t>(8, bitmap.size() - at));
    for (; bits != 0; bits &= bits - 1) {
      put<kSink>(dst, 8 * at + static_cast<std::size_t>(std::countr_zero(bits)), *values++);
    }
  }
}

}  // namespace

std::span<const std::byte> write_places(IndexMode mode, const std::uint32_t* places, std::size_t count,
                                        std::size_t elements) {
  if (count == 0) return {};
  const auto index = thread_scratch(ScratchUse::Indices, max_index_bytes(count, elements));
  if (mode == IndexMode::Gaps) {
    return index.first(core::at_cpu_level<SelectKernels>().write_gaps(places, count, kNoPlace, index.data()));
  }
  const std::size_t bytes = bitmap_bytes(elements);
  std::memset(index.data(), 0, bytes);
  for (std::size_t i = 0; i < count; ++i) index[places[i] / 8] |= std::byte{1} << (places[i] % 8);
  return index.first(bytes);
}

bool is_possible_index(const TopKHead& head, std::size_t elements) {
  if (head.count > elements) return false;
  if (head.count == 0) return head.index_bytes == 0;
  if (static_cast<IndexMode>(head.index_mode) == IndexMode::Bitmap) {
    return head.index_bytes == bitmap_bytes(elements);
  }
  return head.index_bytes >= head.count && head.index_bytes - head.count <= elements / kLongGap;
}

bool is_valid_index(IndexMode mode, std::span<const std::byte> index, std::size_t count,
                    std::size_t elements) {
  if (mode == IndexMode::Gaps || count == 0) return are_valid_gaps(index, count, elements);
  return count_bits(index) == count && !has_bits_beyond(index, elements);
}

void scatter(IndexMode mode, std::span<const std::byte> index, const float* values, Sink sink,
             std::byte* dst) {
  with_sink(sink, [&]<Sink kSink>() {
    if (mode == IndexMode::Bitmap) {
      scatter_bitmap<kSink>(index, values, dst);
    } else {
      scatter_gaps<kSink>(index, values, dst);
    }
  });
}

}  // namespace geocomm::codec
