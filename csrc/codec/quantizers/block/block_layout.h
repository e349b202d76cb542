// Where things lie in the payload of a block codec: the scales of all blocks, the plane of the codes of all
// blocks, then the elements of the raw blocks. docs/spec/codecs.md has the table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/spec/codec_spec.h"
#include "core/dtype.h"

namespace geocomm::codec {

// The bf16 pattern of +Inf in place of a scale: the block is raw, its codes are zero and mean nothing.
inline constexpr std::uint16_t kRawScale = 0x7F80;

constexpr std::size_t codes_per_byte(CodecId id) {
  switch (id) {
    case CodecId::Int4:
      return 2;
    case CodecId::Bit2:
      return 4;
    case CodecId::Bit1:
      return 8;
    default:
      return 1;
  }
}

class BlockLayout {
 public:
  // `id` is one that has blocks (DeadZone: a code takes a byte), `block` is valid (is_valid_block).
  BlockLayout(CodecId id, std::uint32_t block, core::DType dtype, std::size_t elements)
      : codes_per_byte_(codes_per_byte(id)),
        block_(block),
        element_bytes_(core::size_of(dtype)),
        elements_(elements) {}

  std::size_t blocks() const { return (elements_ + block_ - 1) / block_; }
  // Elements of block `index`: all have block() but the last, which may have fewer.
  std::size_t first_element(std::size_t index) const { return index * block_; }
  std::size_t length(std::size_t index) const {
    const std::size_t left = elements_ - first_element(index);
    return left < block_ ? left : block_;
  }
  std::size_t raw_bytes(std::size_t length) const { return length * element_bytes_; }

  // Bytes of codes: of a block of that length, of all before block `index`, of the whole plane.
  std::size_t code_bytes(std::size_t length) const {
    return (length + codes_per_byte_ - 1) / codes_per_byte_;
  }
  std::size_t code_offset(std::size_t index) const { return index * code_bytes(block_); }
  std::size_t plane_bytes() const {
    const std::size_t whole = elements_ / block_;
    return code_offset(whole) + code_bytes(elements_ - first_element(whole));
  }

  // The scales are the payload's beginning.
  std::size_t scale_offset(std::size_t index) const { return index * sizeof(std::uint16_t); }
  std::size_t scale_bytes() const { return scale_offset(blocks()); }

 private:
  std::size_t codes_per_byte_;
  std::size_t block_;
  std::size_t element_bytes_;
  std::size_t elements_;
};

}  // namespace geocomm::codec
