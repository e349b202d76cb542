#include <algorithm>
#include <numeric>
#include <vector>

#include "codec/entropy/huffman/code_table.h"
#include "plane_cases.h"

namespace geocomm::codec::huffman {
namespace {

std::uint32_t kraft_sum(const CodeLengths& lengths) {
  std::uint32_t sum = 0;
  for (const auto length : lengths) sum += length == 0 ? 0 : (1U << kMaxCodeBits) >> length;
  return sum;
}

Histogram histogram_of(const std::vector<std::uint32_t>& counts) {
  Histogram histogram{};
  std::ranges::copy(counts, histogram.begin());
  return histogram;
}

// Complete, for exactly the symbols that occur, and the more frequent the shorter.
void expect_sound(const Histogram& counts, const CodeLengths& lengths) {
  ASSERT_EQ(kraft_sum(lengths), 1U << kMaxCodeBits);
  for (std::size_t a = 0; a < kSymbols; ++a) {
    ASSERT_EQ(lengths[a] != 0, counts[a] != 0);
    ASSERT_LE(lengths[a], kMaxCodeBits);
    for (std::size_t b = 0; b < kSymbols; ++b) {
      if (counts[a] > counts[b] && counts[b] != 0) {
        ASSERT_LE(lengths[a], lengths[b]);
      }
    }
  }
}

// Total bits of the best code with a limit (Larmore and Hirschberg: a fast algorithm for optimal
// length-limited Huffman codes; JACM 1990), by package-merge.
std::uint64_t best_bits(const Histogram& counts) {
  std::vector<std::uint64_t> leaves;
  for (const auto count : counts) {
    if (count != 0) leaves.push_back(count);
  }
  std::ranges::sort(leaves);
  std::vector<std::uint64_t> packages;
  std::uint64_t bits = 0;
  for (unsigned level = 0; level < kMaxCodeBits; ++level) {
    std::vector<std::uint64_t> merged(leaves);
    for (std::size_t i = 0; i + 1 < packages.size(); i += 2) merged.push_back(packages[i] + packages[i + 1]);
    std::ranges::sort(merged);
    packages = merged;
  }
  for (std::size_t i = 0; i < 2 * leaves.size() - 2; ++i) bits += packages[i];
  return bits;
}

TEST(HuffmanCode, test_code_of_any_counts_is_complete_and_close_to_the_best) {
  TestRandom random(11);
  for (int round = 0; round < 2000; ++round) {
    Histogram counts{};
    const unsigned symbols = 2 + random.next() % 255;
    const unsigned spread = random.next() % 17;
    std::uint32_t left = kBlockBytes - kSymbols;
    for (unsigned k = 0; k < symbols; ++k) {
      const std::uint32_t count = std::min(left, random.next() % (1U << (random.next() % (spread + 1))));
      counts[random.next() % kSymbols] += count + (k < 2 ? 1 : 0);
      left -= count;
    }
    counts[3] += 1;
    counts[200] += 1;
    const CodeLengths lengths = make_code_lengths(counts);
    ASSERT_NO_FATAL_FAILURE(expect_sound(counts, lengths));
    const std::uint64_t best = best_bits(counts);
    ASSERT_GE(*coded_bits(counts, lengths), best);
    ASSERT_LE(*coded_bits(counts, lengths), best + best / 100 + kSymbols) << round;
  }
}

TEST(HuffmanCode, test_code_within_the_limit_is_the_best) {
  TestRandom random(12);
  for (int round = 0; round < 500; ++round) {
    Histogram counts{};
    const unsigned symbols = 2 + random.next() % 255;
    for (unsigned symbol = 0; symbol < symbols; ++symbol) counts[symbol] = 64 + random.next() % 400;
    ASSERT_EQ(*coded_bits(counts, make_code_lengths(counts)), best_bits(counts));
  }
}

// Fibonacci counts make the deepest trees there are.
TEST(HuffmanCode, test_fibonacci_counts_are_cut_to_the_limit) {
  std::vector<std::uint32_t> counts = {1, 1};
  while (std::accumulate(counts.begin(), counts.end(), 0U) < kBlockBytes / 3) {
    counts.push_back(counts.back() + counts[counts.size() - 2]);
    const Histogram histogram = histogram_of(counts);
    const CodeLengths lengths = make_code_lengths(histogram);
    ASSERT_NO_FATAL_FAILURE(expect_sound(histogram, lengths));
    ASSERT_LE(*coded_bits(histogram, lengths), best_bits(histogram) * 101 / 100 + 1);
  }
  ASSERT_GT(counts.size(), 20U);
}

TEST(HuffmanCode, test_code_fits_any_shape_of_tree) {
  // A few heavy symbols over many light ones: gaps of every size are left when lengths are cut.
  for (unsigned heavy = 1; heavy < 14; ++heavy) {
    for (unsigned light = 1; light < 256 - heavy; ++light) {
      std::vector<std::uint32_t> counts(light, 1);
      for (unsigned k = 0; k < heavy; ++k) counts.push_back(200U << std::min(k, 8U));
      const Histogram histogram = histogram_of(counts);
      ASSERT_NO_FATAL_FAILURE(expect_sound(histogram, make_code_lengths(histogram)));
    }
  }
}

TEST(HuffmanCode, test_ties_are_broken_by_symbol) {
  const CodeLengths lengths = make_code_lengths(histogram_of({5, 5, 5, 5, 5}));
  EXPECT_TRUE(std::ranges::equal(std::span(lengths).first(5), std::vector<int>{3, 3, 2, 2, 2}));
}

TEST(HuffmanCode, test_table_round_trips) {
  TestRandom random(13);
  for (unsigned symbols = 2; symbols <= kSymbols; ++symbols) {
    Histogram counts{};
    for (unsigned k = 0; k < symbols; ++k) counts[(k * 37) % kSymbols] = 1 + random.next() % 400;
    const CodeLengths lengths = make_code_lengths(counts);
    std::vector<std::byte> coded(table_bytes(lengths));
    ASSERT_LE(coded.size(), kMaxTableBytes);
    ASSERT_EQ(coded.size() % 2, 0U);
    write_table(lengths, coded.data());
    const auto parsed = parse_table(coded);
    ASSERT_TRUE(parsed);
    ASSERT_EQ(parsed->bytes, coded.size());
    ASSERT_EQ(parsed->lengths, lengths);
    for (std::size_t size = 0; size < coded.size(); ++size)
      ASSERT_FALSE(parse_table(std::span(coded).first(size)));
  }
}

TEST(HuffmanCode, test_table_that_is_no_complete_code_is_refused) {
  CodeLengths lengths{};
  std::vector<std::byte> coded(kMaxTableBytes + 8);
  const auto is_accepted = [&] {
    std::ranges::fill(coded, std::byte{0});
    write_table(lengths, coded.data());
    return parse_table(coded).has_value();
  };
  EXPECT_FALSE(is_accepted());  // no symbol
  lengths[7] = 1;
  EXPECT_FALSE(is_accepted());  // half a code
  lengths[9] = 1;
  EXPECT_TRUE(is_accepted());
  lengths[10] = 12;
  EXPECT_FALSE(is_accepted());  // more than a code
  lengths[9] = 2;
  lengths[10] = 3;
  EXPECT_FALSE(is_accepted());
  lengths[11] = 3;
  EXPECT_TRUE(is_accepted());
  lengths[11] = 13;  // beyond the limit
  EXPECT_FALSE(is_accepted());
}

TEST(HuffmanCode, test_decode_table_inverts_encode_table) {
  Histogram counts{};
  for (unsigned symbol = 0; symbol < kSymbols; ++symbol) counts[symbol] = 1 + (symbol % 16) * (symbol % 16);
  const CodeLengths lengths = make_code_lengths(counts);
  EncodeTable encode;
  DecodeTable decode;
  make_encode_table(lengths, encode);
  make_decode_table(lengths, decode);
  for (std::uint32_t symbol = 0; symbol < kSymbols; ++symbol) {
    const std::uint32_t length = encode.entries[symbol] >> kMaxCodeBits;
    const std::uint32_t code = encode.entries[symbol] & ((1U << kMaxCodeBits) - 1);
    ASSERT_EQ(length, lengths[symbol]);
    ASSERT_LT(code, 1U << length);
    const std::uint32_t first = code << (kMaxCodeBits - length);
    for (const std::uint32_t at : {first, first + ((1U << (kMaxCodeBits - length)) - 1)}) {
      ASSERT_EQ(decode.entries[at], length | symbol << kDecodeSymbolShift);
    }
  }
}

}  // namespace
}  // namespace geocomm::codec::huffman
