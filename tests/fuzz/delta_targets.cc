#include <algorithm>

#include "codec/delta/delta.h"
#include "content.h"
#include "core/crc32c.h"
#include "delta_case.h"
#include "fuzz_target.h"

namespace geocomm::fuzz {
namespace {

using codec::DeltaHeader;
using core::DType;
using core::StatusCode;

DType dtype_of(std::uint8_t byte) {
  return static_cast<DType>(byte % core::kDTypeCount);
}

}  // namespace

// A frame with right checksums, whose payload may be anything, over a base of zeros.
void fuzz_decode_delta(Input input) {
  InputReader reader(input);
  const auto head = reader.take<DeltaHead>();
  const Input payload = reader.rest();
  const DType dtype = dtype_of(head.dtype);
  const std::size_t elements = ElementCount{head.elements_low, head.elements_high}.value();
  const ExactBytes values(elements * core::size_of(dtype), 1);
  DeltaHeader header{};
  header.magic = codec::kDeltaMagic;
  header.version = codec::kDeltaVersion;
  header.dtype = static_cast<std::uint8_t>(dtype);
  header.elements = static_cast<std::uint32_t>(elements);
  header.changes = head.changes;
  header.gap_bytes = head.gap_bytes;
  header.base_crc = core::crc32c(values.span());
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  header.payload_crc = core::crc32c(payload);
  header.header_crc =
      core::crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(DeltaHeader, header_crc)));
  ExactBytes delta(sizeof(header) + payload.size(), 1);
  std::memcpy(delta.data(), &header, sizeof(header));
  if (!payload.empty()) std::memcpy(delta.data() + sizeof(header), payload.data(), payload.size());
  const auto info = codec::inspect_delta(delta.span());
  require(info.is_ok() && info->elements == elements, "a forged header is refused");
  StatusCode code = StatusCode::Ok;
  std::vector<std::byte> reference;
  at_every_cpu_level([&](core::CpuLevel level) {
    ExactBytes made(values.span(), 1);
    const auto status = codec::apply_delta(delta.span(), made.span());
    require(status.is_ok() || status.code() == StatusCode::CorruptData, "neither Ok nor CorruptData");
    require(status.is_ok() || !status.message().empty(), "an error without a message");
    if (level == core::CpuLevel::Scalar) {
      code = status.code();
      reference.assign(made.span().begin(), made.span().end());
    }
    require(status.code() == code, "CPU levels disagree on the status");
    require(!status.is_ok() || same_bytes(made.span(), reference), "CPU levels disagree on the elements");
  });
}

// Any two tensors: what one is made of the other comes out bit for bit.
void fuzz_encode_delta(Input input) {
  InputReader reader(input);
  const auto head = reader.take<DeltaHead>();
  const auto fill = reader.take<Fill>();
  const DType dtype = dtype_of(head.dtype);
  const std::size_t elements = ElementCount{head.elements_low, head.elements_high}.value();
  const auto content = make_content(fill, dtype, elements, reader.rest());
  ExactBytes values(content.size(), 1);
  std::ranges::copy(content, values.data());
  // Of the base one in so many elements differs; 0: all are zeros.
  ExactBytes base(content.size(), 0);
  std::ranges::copy(content, base.data());
  const std::size_t size = core::size_of(dtype);
  const std::size_t every = head.changes % 4096;
  for (std::size_t i = 0; i < elements; ++i) {
    if (every == 0) std::memset(base.data() + i * size, 0, size);
    if (every != 0 && i % every == 0) base.data()[i * size] ^= static_cast<std::byte>(head.gap_bytes & 0xFF);
  }
  std::vector<std::byte> reference;
  at_every_cpu_level([&](core::CpuLevel level) {
    std::vector<std::byte> delta(codec::delta_bound(dtype, elements));
    const auto size = codec::make_delta(dtype, base.span(), values.span(), delta);
    require(size.is_ok(), "a delta was not made");
    delta.resize(*size);
    const ExactBytes exact(delta, 0);
    if (level == core::CpuLevel::Scalar) reference.assign(exact.span().begin(), exact.span().end());
    require(same_bytes(exact.span(), reference), "CPU levels disagree on the delta");
    ExactBytes made(base.span(), 1);
    require(codec::apply_delta(exact.span(), made.span()).is_ok(), "a delta was refused");
    require(same_bytes(made.span(), values.span()), "other elements came out");
  });
}

}  // namespace geocomm::fuzz
