#include "collective/layout/descriptor.h"

#include <algorithm>
#include <array>
#include <bit>

#include "core/str.h"

namespace geocomm::collective {

namespace {

constexpr std::array<std::string_view, 11> kKinds = {
    // from 1
    "all_reduce", "reduce_scatter", "reduce",  "all_gather", "broadcast",        "gather",
    "scatter",    "all_to_all",     "barrier", "send_recv",  "sparse_all_reduce"};
constexpr std::array<std::string_view, 8> kReductions = {"sum", "avg",     "product", "min",
                                                         "max", "bit_and", "bit_or",  "bit_xor"};

// From the low end: kind 5 bits, dtype 4, reduction 4, codec 4, rounding 1, entropy stage 2, log2(block / 64)
// 3, amount 40, and one bit that says that the amount has lost its high bits.
constexpr int kDTypeShift = 5;
constexpr int kOpShift = 9;
constexpr int kCodecShift = 13;
constexpr int kRoundingShift = 17;
constexpr int kEntropyShift = 18;
constexpr int kBlockShift = 20;
constexpr int kAmountShift = 23;
constexpr int kAmountBits = 40;
constexpr std::uint64_t kAmountMask = (std::uint64_t{1} << kAmountBits) - 1;
constexpr std::uint64_t kTruncated = std::uint64_t{1} << 63;
constexpr std::uint64_t kNoOp = 0xF;

std::uint64_t field(std::uint64_t bits, int shift, int width) {
  return bits >> shift & ((std::uint64_t{1} << width) - 1);
}

}  // namespace

std::string_view to_string(OpKind kind) {
  const std::size_t index = static_cast<std::size_t>(kind) - 1;
  return index < kKinds.size() ? kKinds[index] : "unknown operation";
}

std::string_view to_string(ReduceOp op) {
  const auto index = static_cast<std::size_t>(op);
  return index < kReductions.size() ? kReductions[index] : "unknown reduction";
}

std::uint64_t pack_descriptor(const Descriptor& d) {
  std::uint64_t bits = static_cast<std::uint64_t>(d.kind);
  bits |= static_cast<std::uint64_t>(d.dtype) << kDTypeShift;
  bits |= (d.op ? static_cast<std::uint64_t>(*d.op) : kNoOp) << kOpShift;
  bits |= static_cast<std::uint64_t>(d.codec.id) << kCodecShift;
  bits |= static_cast<std::uint64_t>(d.codec.entropy) << kEntropyShift;
  if (d.codec.has_rounding()) bits |= static_cast<std::uint64_t>(d.codec.rounding) << kRoundingShift;
  if (d.codec.has_blocks()) {
    bits |= static_cast<std::uint64_t>(std::bit_width(d.codec.block / codec::kMinBlock) - 1) << kBlockShift;
  }
  bits |= (d.amount & kAmountMask) << kAmountShift;
  if (d.amount > kAmountMask) bits |= kTruncated;
  return bits;
}

std::string describe(std::uint64_t bits) {
  const auto kind = static_cast<OpKind>(field(bits, 0, kDTypeShift));
  const auto dtype = static_cast<core::DType>(field(bits, kDTypeShift, 4));
  const std::uint64_t op = field(bits, kOpShift, 4);
  const std::uint64_t amount = field(bits, kAmountShift, kAmountBits);
  const std::string count =
      (bits & kTruncated) != 0 ? core::str("2^40 * n + ", amount) : std::to_string(amount);
  if (op == kNoOp) {
    return core::str(to_string(kind), "(", core::to_string(dtype), ", ", count, " bytes to this peer)");
  }
  codec::CodecSpec codec;
  codec.id = static_cast<codec::CodecId>(field(bits, kCodecShift, 4));
  const std::uint64_t entropy = field(bits, kEntropyShift, 2);
  const bool known = codec::is_codec(static_cast<std::uint8_t>(codec.id)) &&
                     entropy <= static_cast<std::uint64_t>(codec::Entropy::Zstd);
  codec.entropy = static_cast<codec::Entropy>(entropy);
  codec.rounding = static_cast<codec::Rounding>(field(bits, kRoundingShift, 1));
  codec.block = codec::kMinBlock << field(bits, kBlockShift, 3);
  return core::str(to_string(kind), "(", to_string(static_cast<ReduceOp>(op)), ", ", core::to_string(dtype),
                   ", ", count, " elements, ", known ? codec.to_string() : "unknown codec", ")");
}

}  // namespace geocomm::collective
