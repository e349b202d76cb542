#include "codec/entropy/huffman/substream.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "codec/entropy/huffman/lane_kernels.h"
#include "core/cpu.h"

namespace geocomm::codec::huffman {
namespace {

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <typename T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

void prepare(const EncodeTable& table, LaneWriter& writer) {
  writer.bits.fill(0);
  writer.counts.fill(0);
  const std::size_t lanes = std::min<std::size_t>(writer.symbols, kLanes);
  for (std::size_t i = writer.symbols - lanes; i < writer.symbols; ++i) {
    const std::uint32_t entry = table.entries[std::to_integer<std::size_t>(writer.src[i])];
    writer.counts[i % kLanes] = kWordBits - (entry >> kMaxCodeBits);
  }
}

// Writes what a substream begins with before its encoded words: of the bits that the first `lanes` lanes
// hold, the low 16 as the first row's words, the others as the carry.
void write_carry(LaneWriter& writer, std::size_t lanes) {
  std::array<std::byte, kCarryCountBytes> counts{};
  std::array<std::byte, kLanes * 2> carry{};
  std::size_t carry_size = 0;
  std::uint32_t packed = 0;
  unsigned filled = 0;
  writer.front -= lanes * sizeof(std::uint16_t);
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    const unsigned carried = writer.counts[lane] - kWordBits;
    store(writer.front + lane * sizeof(std::uint16_t), static_cast<std::uint16_t>(writer.bits[lane]));
    counts[lane / 2] |= std::byte(carried << (4 * (lane % 2)));
    packed |= writer.bits[lane] >> kWordBits << filled;
    filled += carried;
    if (filled >= kWordBits) {
      store(carry.data() + carry_size, static_cast<std::uint16_t>(packed));
      carry_size += sizeof(std::uint16_t);
      packed >>= kWordBits;
      filled -= kWordBits;
    }
  }
  if (filled != 0) {
    store(carry.data() + carry_size, static_cast<std::uint16_t>(packed));
    carry_size += sizeof(std::uint16_t);
  }
  writer.front -= carry_size;
  std::memcpy(writer.front, carry.data(), carry_size);
  writer.front -= counts.size();
  std::memcpy(writer.front, counts.data(), counts.size());
}

// Reads what write_carry() wrote, up to the words; false where it is not there.
bool read_carry(std::span<const std::byte> coded, LaneReader& reader) {
  if (coded.size() < kCarryCountBytes || coded.size() % sizeof(std::uint16_t) != 0) return false;
  unsigned total = 0;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    reader.counts[lane] = std::to_integer<std::uint32_t>(coded[lane / 2] >> (4 * (lane % 2))) & 15;
    total += reader.counts[lane];
  }
  if (coded.size() - kCarryCountBytes < carry_bytes(total)) return false;
  const std::byte* from = coded.data() + kCarryCountBytes;
  reader.words = from + carry_bytes(total);
  reader.end = coded.data() + coded.size();
  std::uint32_t packed = 0;
  unsigned filled = 0;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const unsigned carried = reader.counts[lane];
    if (filled < carried) {
      packed |= std::uint32_t{load<std::uint16_t>(from)} << filled;
      from += sizeof(std::uint16_t);
      filled += kWordBits;
    }
    const std::uint32_t bits = packed & ((1U << carried) - 1);
    reader.bits[lane] = carried == 0 ? 0 : bits << (32 - carried);
    packed >>= carried;
    filled -= carried;
  }
  return true;
}

}  // namespace

std::size_t encode_substreams(const EncodeTable& table, std::span<const std::byte> src,
                              std::span<std::byte> dst) {
  const std::size_t count = substream_count(src.size());
  const LaneKernels& kernels = core::at_cpu_level<LaneKernels>();
  std::array<std::uint32_t, kMaxSubstreams> sizes{};
  LaneWriter writer;
  writer.front = dst.data() + dst.size();
  for (std::size_t index = count; index-- > 0;) {
    const std::byte* end = writer.front;
    writer.src = src.data() + index * substream_step(src.size());
    writer.symbols = substream_length(src.size(), index);
    const std::size_t lanes = std::min<std::size_t>(writer.symbols, kLanes);
    prepare(table, writer);
    kernels.encode(table, writer);
    write_carry(writer, lanes);
    sizes[index] = static_cast<std::uint32_t>(end - writer.front);
  }
  if (count > 1) {
    writer.front -= split_bytes(src.size());
    std::memcpy(writer.front, sizes.data(), split_bytes(src.size()));
  }
  return static_cast<std::size_t>(dst.data() + dst.size() - writer.front);
}

bool decode_substreams(const DecodeTable& table, std::span<const std::byte> coded, std::span<std::byte> dst) {
  const std::size_t count = substream_count(dst.size());
  if (coded.size() < split_bytes(dst.size())) return false;
  std::span<const std::byte> left = coded.subspan(split_bytes(dst.size()));
  std::array<LaneReader, kMaxSubstreams> readers;
  for (std::size_t index = 0; index < count; ++index) {
    const std::size_t bytes =
        index + 1 < count ? load<std::uint32_t>(coded.data() + index * sizeof(std::uint32_t)) : left.size();
    if (bytes > left.size() || !read_carry(left.first(bytes), readers[index])) return false;
    readers[index].dst = dst.data() + index * substream_step(dst.size());
    readers[index].symbols = substream_length(dst.size(), index);
    left = left.subspan(bytes);
  }
  return core::at_cpu_level<LaneKernels>().decode(table, readers.data(), count);
}

}  // namespace geocomm::codec::huffman
