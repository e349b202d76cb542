// Where things lie in the payload of an Int8 or Int4 frame: the scales of all blocks, the codes of all
// blocks, then the elements of the raw blocks. docs/wire-format.md has the table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec_spec.h"
#include "core/dtype.h"

namespace geocomm::codec {

// The bf16 pattern of +Inf in place of a scale: the block is raw, its codes are zero and mean nothing.
inline constexpr std::uint16_t kRawScale = 0x7F80;

class BlockLayout {
 public:
  // `block` is valid (is_valid_block).
  BlockLayout(CodecId id, std::uint32_t block, core::DType dtype, std::size_t elements)
      : int4_(id == CodecId::Int4),
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
  std::size_t code_bytes(std::size_t length) const { return int4_ ? (length + 1) / 2 : length; }
  std::size_t raw_bytes(std::size_t length) const { return length * element_bytes_; }

  // Offsets in the payload.
  std::size_t scale_offset(std::size_t index) const { return index * sizeof(std::uint16_t); }
  std::size_t code_offset(std::size_t index) const {
    return scale_offset(blocks()) + code_bytes(first_element(index));  // block is even
  }
  std::size_t raw_offset() const { return scale_offset(blocks()) + code_bytes(elements_); }
  // Payload sizes with no raw block and with raw blocks only.
  std::size_t min_bytes() const { return raw_offset(); }
  std::size_t max_bytes() const { return raw_offset() + raw_bytes(elements_); }

 private:
  bool int4_;
  std::size_t block_;
  std::size_t element_bytes_;
  std::size_t elements_;
};

}  // namespace geocomm::codec
