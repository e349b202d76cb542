#include <gtest/gtest.h>

#include <random>
#include <set>

#include "collective/layout/descriptor.h"

namespace geocomm::collective {
namespace {

using core::DType;

Descriptor base() {
  return {OpKind::AllReduce, DType::Float32, ReduceOp::Sum, codec::CodecSpec{.id = codec::CodecId::Int8},
          1'048'576};
}

TEST(Descriptor, describe_names_what_the_user_called) {
  EXPECT_EQ(describe(pack_descriptor(base())), "all_reduce(sum, float32, 1048576 elements, int8)");
  EXPECT_EQ(describe(pack_descriptor({OpKind::Broadcast, DType::UInt8, std::nullopt, {}, 4096})),
            "broadcast(uint8, 4096 bytes to this peer)");
  EXPECT_EQ(describe(pack_descriptor({OpKind::SparseAllReduce, DType::Float32, std::nullopt, {}, 160})),
            "sparse_all_reduce(float32, 160 bytes to this peer)");
}

TEST(Descriptor, any_field_that_differs_changes_the_bits) {
  std::vector<Descriptor> all = {base()};
  const auto with = [&](auto change) {
    Descriptor d = base();
    change(d);
    all.push_back(d);
  };
  with([](Descriptor& d) { d.kind = OpKind::SendRecv; });
  with([](Descriptor& d) { d.kind = OpKind::SparseAllReduce; });
  with([](Descriptor& d) { d.dtype = DType::Bool; });
  with([](Descriptor& d) {
    d.op = ReduceOp::Sum;
    d.amount = 1;
  });
  with([](Descriptor& d) { d.op = ReduceOp::BitXor; });
  with([](Descriptor& d) { d.op = std::nullopt; });
  with([](Descriptor& d) { d.codec.id = codec::CodecId::Int4; });
  with([](Descriptor& d) { d.codec.block = 64; });
  with([](Descriptor& d) { d.codec.block = 4096; });
  with([](Descriptor& d) { d.codec.rounding = codec::Rounding::Stochastic; });
  with([](Descriptor& d) { d.codec.entropy = codec::Entropy::Huffman; });
  with([](Descriptor& d) { d.codec.entropy = codec::Entropy::Zstd; });
  with([](Descriptor& d) { d.amount += 1; });
  with([](Descriptor& d) { d.amount += std::uint64_t{1} << 40; });
  std::set<std::uint64_t> bits;
  for (const Descriptor& d : all) bits.insert(pack_descriptor(d));
  EXPECT_EQ(bits.size(), all.size());
}

TEST(Descriptor, describe_takes_any_bits) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 10'000; ++i) EXPECT_FALSE(describe(random()).empty());
  EXPECT_FALSE(describe(0).empty());
  EXPECT_FALSE(describe(~std::uint64_t{0}).empty());
}

}  // namespace
}  // namespace geocomm::collective
