// What operations and reductions are called.
#pragma once

#include <cstdint>
#include <string_view>

namespace geocomm::collective {

// The values stand on the wire (in the descriptor): never renumber.
enum class ReduceOp : std::uint8_t {
  Sum = 0,
  Avg = 1,
  Product = 2,
  Min = 3,
  Max = 4,
  BitAnd = 5,
  BitOr = 6,
  BitXor = 7
};

// What the user called. The values stand on the wire (in the descriptor): never renumber.
enum class OpKind : std::uint8_t {
  AllReduce = 1,
  ReduceScatter = 2,
  Reduce = 3,
  AllGather = 4,
  Broadcast = 5,
  Gather = 6,
  Scatter = 7,
  AllToAll = 8,
  Barrier = 9,
  SendRecv = 10,
  SparseAllReduce = 11,
};

std::string_view to_string(OpKind kind);
std::string_view to_string(ReduceOp op);

}  // namespace geocomm::collective
