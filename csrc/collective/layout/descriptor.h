// The descriptor: 64 bits that travel with every chunk and say which operation the sender believes in, so
// that ranks that called different things get an error that names both instead of wrong data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "codec/spec/codec_spec.h"
#include "collective/layout/op_kind.h"
#include "core/dtype.h"

namespace geocomm::collective {

struct Descriptor {
  OpKind kind = OpKind::AllReduce;
  core::DType dtype = core::DType::UInt8;
  std::optional<ReduceOp> op;  // none: bytes are moved
  codec::CodecSpec codec;
  // Reductions: elements of the whole operation. Moves: bytes from the sender to the receiver.
  std::uint64_t amount = 0;
};

// Equal descriptors give equal bits; different ones differ but for amounts that agree in their low 40 bits
// and are both beyond 2^40, and for codec settings that frames do not hold. docs/spec/operations.md has the
// table.
std::uint64_t pack_descriptor(const Descriptor& descriptor);

// "all_reduce(sum, float32, 1048576 elements, int8)", "broadcast(float32, 4096 bytes to this peer)". Takes
// any bits (they may come from a peer).
std::string describe(std::uint64_t descriptor);

}  // namespace geocomm::collective
