// Memory for a payload whose size is known only when it is there: room for the worst case, of which the
// tensor keeps what the payload takes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "binding/torch/torch_prelude.h"

namespace geocomm::binding {

class PayloadRoom {
 public:
  // Throws std::bad_alloc. A large room is a mapping of its own: pages that nobody touches cost nothing, and
  // with huge pages those that are touched cost little.
  explicit PayloadRoom(std::size_t bound);
  ~PayloadRoom();
  PayloadRoom(const PayloadRoom&) = delete;
  PayloadRoom& operator=(const PayloadRoom&) = delete;

  std::span<std::byte> bytes() const;
  // Once: the first `size` bytes as a tensor of one dimension whose storage is just these. The rest goes
  // back; only what is small is copied.
  at::Tensor take(std::size_t size);

 private:
  struct Mapping;
  std::unique_ptr<Mapping> mapping_;
  at::Tensor small_;
};

}  // namespace geocomm::binding
