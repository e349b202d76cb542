// The lanes' steps on vectors V: those of codec/simd, and what else a level has its own form of
// (lane_avx2.cc, lane_avx512.cc). All is local to the file that includes it.
//
// All loops over groups are unrolled: the compiler then keeps them in registers only.
#pragma once

#include <algorithm>
#include <cstddef>

#include "codec/entropy/huffman/lane_kernels.h"

namespace geocomm::codec::huffman {
namespace {

// A row is so many groups of V::kLanes lanes, 32 bits each.
template <typename V>
inline constexpr std::size_t kGroups = kLanes / V::kLanes;

template <typename V>
typename V::Ints load_group(const LaneWords& lanes, std::size_t group) {
  return V::load_ints(reinterpret_cast<const std::byte*>(lanes.data() + group * V::kLanes));
}
template <typename V>
void store_group(LaneWords& lanes, std::size_t group, typename V::Ints value) {
  V::store_ints(reinterpret_cast<std::byte*>(lanes.data() + group * V::kLanes), value);
}

template <typename V>
struct ReaderGroup {
  typename V::Ints bits;
  typename V::Ints lack;  // 16 - count: the lanes where it is above 0 take a word, and shift it by as much
};

// Takes words, then a code of each lane. Returns the table's entries. Reads 2 * V::kLanes bytes of words.
template <typename V>
typename V::Ints decode_step(const DecodeTable& table, ReaderGroup<V>& group, const std::byte*& words) {
  const auto takes = V::greater(group.lack, V::set_int(0));
  const auto dealt = V::deal_words(V::bits_of(takes), words);
  const auto bits = group.bits | V::shift_left_by(dealt, group.lack);
  const auto entries = V::look_up(table.entries.data(), V::template shift_right<32 - kMaxCodeBits>(bits));
  const auto lengths = entries & V::set_int((1 << kDecodeSymbolShift) - 1);
  const auto lack = V::subtract_where(takes, group.lack, V::set_int(kWordBits));
  group.bits = V::shift_left_by(bits, lengths);
  group.lack = V::add(lack, lengths);
  return entries;
}

// Whole rows of kStreams substreams side by side, as long as each has words for all lanes of a row.
template <typename V, std::size_t kStreams>
void decode_rows(const DecodeTable& table, LaneReader* readers) {
  ReaderGroup<V> groups[kStreams][kGroups<V>];
  const std::byte* words[kStreams];
  std::byte* dst[kStreams];
  const auto sixteen = V::set_int(kWordBits);
  std::size_t left = readers[0].symbols / kLanes;
#pragma GCC unroll 4
  for (std::size_t s = 0; s < kStreams; ++s) {
#pragma GCC unroll 4
    for (std::size_t g = 0; g < kGroups<V>; ++g) {
      groups[s][g] = {load_group<V>(readers[s].bits, g),
                      V::subtract(sixteen, load_group<V>(readers[s].counts, g))};
    }
    words[s] = readers[s].words;
    dst[s] = readers[s].dst;
    left = std::min(left, readers[s].symbols / kLanes);
  }
  const std::size_t all = left;
  for (;;) {
    std::size_t rows = left;
    for (std::size_t s = 0; s < kStreams; ++s) {
      rows = std::min(rows, static_cast<std::size_t>(readers[s].end - words[s]) / (2 * kLanes));
    }
    if (rows == 0) break;
    left -= rows;
    for (; rows != 0; --rows) {
      typename V::Ints entries[kStreams][kGroups<V>];
#pragma GCC unroll 4
      for (std::size_t g = 0; g < kGroups<V>; ++g) {
#pragma GCC unroll 4
        for (std::size_t s = 0; s < kStreams; ++s) {
          entries[s][g] = decode_step<V>(table, groups[s][g], words[s]);
        }
      }
#pragma GCC unroll 4
      for (std::size_t s = 0; s < kStreams; ++s) {
        V::store_symbols(dst[s], entries[s]);
        dst[s] += kLanes;
      }
    }
  }
#pragma GCC unroll 4
  for (std::size_t s = 0; s < kStreams; ++s) {
#pragma GCC unroll 4
    for (std::size_t g = 0; g < kGroups<V>; ++g) {
      store_group<V>(readers[s].bits, g, groups[s][g].bits);
      store_group<V>(readers[s].counts, g, V::subtract(sixteen, groups[s][g].lack));
    }
    readers[s].words = words[s];
    readers[s].dst = dst[s];
    readers[s].symbols -= (all - left) * kLanes;
  }
}

template <typename V>
bool decode(const DecodeTable& table, LaneReader* readers, std::size_t count) {
  if constexpr (V::kStreams > 1) {
    if (count == V::kStreams) decode_rows<V, V::kStreams>(table, readers);
  }
  for (std::size_t s = 0; s < count; ++s) {
    decode_rows<V, 1>(table, readers + s);
    if (!decode_rest_scalar(table, readers[s])) return false;
  }
  return true;
}

template <typename V>
struct WriterGroup {
  typename V::Ints bits;
  typename V::Ints counts;
};

// Takes on a code of each lane and writes words before `front`, which it returns moved.
template <typename V>
std::byte* encode_step(typename V::Ints entries, WriterGroup<V>& group, std::byte* front) {
  const auto lengths = V::template shift_right<kMaxCodeBits>(entries);
  const auto codes = entries & V::set_int((1 << kMaxCodeBits) - 1);
  const auto takes = V::greater(V::add(group.counts, lengths), V::set_int(31));
  front = V::put_words(V::bits_of(takes), group.bits, front);
  const auto taken = V::where(takes, V::set_int(kWordBits));
  const auto kept = V::subtract(group.counts, taken);
  group.bits = V::shift_right_by(group.bits, taken) | V::shift_left_by(codes, kept);
  group.counts = V::add(kept, lengths);
  return front;
}

// V::Codes looks up so many rows at once.
template <typename V>
void encode(const EncodeTable& table, LaneWriter& writer) {
  constexpr std::size_t kRows = V::Codes::kRows;
  constexpr std::size_t kSteps = kRows * kGroups<V>;
  if (const std::size_t rest = writer.symbols % kLanes; rest != 0) encode_row_scalar(table, writer, rest);
  while (writer.symbols % (kRows * kLanes) != 0) encode_row_scalar(table, writer, kLanes);
  const typename V::Codes codes(table);
  WriterGroup<V> groups[kGroups<V>];
#pragma GCC unroll 4
  for (std::size_t g = 0; g < kGroups<V>; ++g) {
    groups[g] = {load_group<V>(writer.bits, g), load_group<V>(writer.counts, g)};
  }
  std::byte* front = writer.front;
  for (std::size_t left = writer.symbols; left != 0; left -= kRows * kLanes) {
    const auto rows = codes.look_up(writer.src + left - kRows * kLanes);
#pragma GCC unroll 4
    for (std::size_t i = 1; i <= kSteps; ++i) {
      front = encode_step<V>(rows.entries(kSteps - i), groups[(kSteps - i) % kGroups<V>], front);
    }
  }
  writer.symbols = 0;
  writer.front = front;
#pragma GCC unroll 4
  for (std::size_t g = 0; g < kGroups<V>; ++g) {
    store_group<V>(writer.bits, g, groups[g].bits);
    store_group<V>(writer.counts, g, groups[g].counts);
  }
}

}  // namespace
}  // namespace geocomm::codec::huffman
