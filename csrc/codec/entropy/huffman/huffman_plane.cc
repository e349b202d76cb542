#include "codec/entropy/huffman/huffman_plane.h"

#include <cstring>
#include <optional>

#include "codec/entropy/huffman/code_table.h"
#include "codec/entropy/huffman/plane_format.h"
#include "codec/entropy/huffman/substream.h"
#include "codec/entropy/huffman/symbol_counts.h"

namespace geocomm::codec::huffman {
namespace {

using core::Status;

std::uint32_t load_head(const std::byte* coded, std::size_t index) {
  std::uint32_t head;
  std::memcpy(&head, coded + index * kHeadBytes, sizeof(head));
  return head;
}

std::size_t body_bytes(std::uint32_t head) {
  return head_mode(head) == BlockMode::Single ? 0 : head_rest(head);
}

bool is_possible_head(std::uint32_t head, std::size_t length, bool has_table) {
  switch (head_mode(head)) {
    case BlockMode::Raw:
      return head_rest(head) == length;
    case BlockMode::Single:
      return head_rest(head) < kSymbols;
    case BlockMode::OwnTable:
      return head_rest(head) < length;
    case BlockMode::LatestTable:
      return head_rest(head) < length && has_table;
  }
  return false;
}

// Whether no code can gain enough. Of p = counts / total the entropy is at least log2(1 / sum(p^2)), and
// 195 > 2^7.6 is 95 % of eight bits: this never differs from what the exact estimate would say.
bool is_hopeless(const Histogram& counts, std::size_t total) {
  std::uint64_t squares = 0;
  for (const std::uint64_t count : counts) squares += count * count;
  return 195 * squares <= std::uint64_t{total} * total;
}

class PlaneEncoder {
 public:
  explicit PlaneEncoder(unsigned least_gain_percent) : least_gain_percent_(least_gain_percent) {}

  // Writes the body of a block to `dst`, which has room for src.size(), and returns its head.
  std::uint32_t encode(std::span<const std::byte> src, std::byte* dst) {
    const Histogram counts = count_symbols(src);
    const auto first = std::to_integer<std::uint32_t>(src[0]);
    if (counts[first] == src.size()) return make_head(BlockMode::Single, first);
    if (least_gain_percent_ >= kLeastGainPercent && is_hopeless(counts, src.size())) {
      return encode_raw(src, dst);
    }

    const CodeLengths own = make_code_lengths(counts);
    const std::size_t own_table = table_bytes(own);
    const std::size_t own_bits = *coded_bits(counts, own);
    const auto latest_bits = has_table_ ? coded_bits(counts, latest_) : std::nullopt;
    const bool is_shared = latest_bits && *latest_bits <= own_bits + 8 * own_table;
    const std::size_t table = is_shared ? 0 : own_table;
    const std::size_t estimate = body_estimate(src.size(), table, is_shared ? *latest_bits : own_bits);
    if (!is_worth_coding(src.size(), estimate, least_gain_percent_)) return encode_raw(src, dst);
    if (!is_shared) {
      has_table_ = true;
      latest_ = own;
      make_encode_table(own, encode_table_);
    }
    // Substreams come out at the end of their room; the table's place is free until they are moved.
    const std::size_t bytes = encode_substreams(encode_table_, src, {dst + table, estimate - table});
    std::memmove(dst + table, dst + estimate - bytes, bytes);
    if (!is_shared) write_table(latest_, dst);
    return make_head(is_shared ? BlockMode::LatestTable : BlockMode::OwnTable,
                     static_cast<std::uint32_t>(table + bytes));
  }

 private:
  static std::uint32_t encode_raw(std::span<const std::byte> src, std::byte* dst) {
    std::memcpy(dst, src.data(), src.size());
    return make_head(BlockMode::Raw, static_cast<std::uint32_t>(src.size()));
  }

  const unsigned least_gain_percent_;
  bool has_table_ = false;
  CodeLengths latest_;
  EncodeTable encode_table_;
};

class PlaneDecoder {
 public:
  // False: the body does not decode to all of `dst`.
  bool decode(std::uint32_t head, std::span<const std::byte> body, std::span<std::byte> dst) {
    if (!is_possible_head(head, dst.size(), has_table_)) return false;
    switch (head_mode(head)) {
      case BlockMode::Raw:
        std::memcpy(dst.data(), body.data(), dst.size());
        return true;
      case BlockMode::Single:
        std::memset(dst.data(), static_cast<int>(head_rest(head)), dst.size());
        return true;
      case BlockMode::OwnTable: {
        const auto parsed = parse_table(body);
        if (!parsed) return false;
        make_decode_table(parsed->lengths, table_);
        has_table_ = true;
        return decode_substreams(table_, body.subspan(parsed->bytes), dst);
      }
      case BlockMode::LatestTable:
        return decode_substreams(table_, body, dst);
    }
    return false;
  }

 private:
  bool has_table_ = false;
  DecodeTable table_;
};

}  // namespace

std::size_t huffman_plane_bound(std::size_t bytes) {
  return bytes + kHeadBytes * block_count(bytes);
}

std::size_t encode_huffman_plane(std::span<const std::byte> src, std::byte* dst,
                                 unsigned least_gain_percent) {
  PlaneEncoder encoder(least_gain_percent);
  const std::size_t blocks = block_count(src.size());
  std::size_t at = blocks * kHeadBytes;
  for (std::size_t index = 0; index < blocks; ++index) {
    const auto block = src.subspan(index * kBlockBytes, block_length(src.size(), index));
    const std::uint32_t head = encoder.encode(block, dst + at);
    std::memcpy(dst + index * kHeadBytes, &head, sizeof(head));
    at += body_bytes(head);
  }
  return at;
}

core::Result<std::size_t> huffman_plane_bytes(std::span<const std::byte> coded, std::size_t bytes) {
  const std::size_t blocks = block_count(bytes);
  if (blocks > coded.size() / kHeadBytes) {
    return core::corrupt("codec frame: a Huffman plane of ", blocks, " blocks, but ", coded.size(),
                         " bytes are there");
  }
  std::size_t at = blocks * kHeadBytes;
  bool has_table = false;
  for (std::size_t index = 0; index < blocks; ++index) {
    const std::uint32_t head = load_head(coded.data(), index);
    if (!is_possible_head(head, block_length(bytes, index), has_table) ||
        body_bytes(head) > coded.size() - at) {
      return core::corrupt("codec frame: block ", index, " of ", blocks, " of a Huffman plane has head ",
                           head, ", with ", coded.size() - at, " bytes left");
    }
    has_table |= head_mode(head) == BlockMode::OwnTable;
    at += body_bytes(head);
  }
  return at;
}

Status decode_huffman_plane(std::span<const std::byte> coded, std::span<std::byte> dst) {
  GEOCOMM_ASSIGN_OR_RETURN(const std::size_t size, huffman_plane_bytes(coded, dst.size()));
  if (size != coded.size()) {
    return core::corrupt("codec frame: a Huffman plane takes ", size, " bytes of ", coded.size(),
                         " that it was said to have");
  }
  PlaneDecoder decoder;
  const std::size_t blocks = block_count(dst.size());
  std::size_t at = blocks * kHeadBytes;
  for (std::size_t index = 0; index < blocks; ++index) {
    const std::uint32_t head = load_head(coded.data(), index);
    const auto block = dst.subspan(index * kBlockBytes, block_length(dst.size(), index));
    if (!decoder.decode(head, coded.subspan(at, body_bytes(head)), block)) {
      return core::corrupt("codec frame: block ", index, " of ", blocks,
                           " of a Huffman plane does not decode");
    }
    at += body_bytes(head);
  }
  return Status::ok();
}

}  // namespace geocomm::codec::huffman
