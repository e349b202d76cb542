#include "binding/tensors/payload_room.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>
#include <utility>

namespace geocomm::binding {
namespace {

// From here on glibc's malloc() maps, and faults every page in, at each call. What is smaller it keeps from
// call to call, so that a copy costs less than fresh pages.
constexpr std::size_t kMappedBytes = std::size_t{32} << 20;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

struct PayloadRoom::Mapping {
  explicit Mapping(std::size_t bytes) {
    const std::size_t mapped = round_up(bytes, kHugePage) + kHugePage;
    void* const memory =
        ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    auto* const begin = static_cast<std::byte*>(memory);
    const std::size_t skipped = round_up(reinterpret_cast<std::uintptr_t>(begin), kHugePage) -
                                reinterpret_cast<std::uintptr_t>(begin);
    if (skipped > 0) ::munmap(begin, skipped);
    data = begin + skipped;
    size = mapped - skipped;
    ::madvise(data, size, MADV_HUGEPAGE);  // a wish: not every kernel has them
  }
  ~Mapping() { ::munmap(data, size); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  void trim(std::size_t used) {
    const std::size_t kept = round_up(used, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
    if (kept < size && ::munmap(data + kept, size - kept) == 0) size = kept;
  }

  std::byte* data = nullptr;
  std::size_t size = 0;
};

PayloadRoom::PayloadRoom(std::size_t bound) {
  if (bound >= kMappedBytes) {
    mapping_ = std::make_unique<Mapping>(bound);
  } else {
    small_ = at::empty({static_cast<std::int64_t>(bound)}, at::kByte);
  }
}

PayloadRoom::~PayloadRoom() = default;

std::span<std::byte> PayloadRoom::bytes() const {
  if (mapping_) return {mapping_->data, mapping_->size};
  return {static_cast<std::byte*>(small_.data_ptr()), small_.nbytes()};
}

at::Tensor PayloadRoom::take(std::size_t size) {
  const auto elements = static_cast<std::int64_t>(size);
  if (!mapping_) return size == small_.nbytes() ? small_ : small_.narrow(0, 0, elements).clone();
  mapping_->trim(size);
  void* const data = mapping_->data;
  at::DataPtr owner(
      data, mapping_.release(), [](void* mapping) { delete static_cast<Mapping*>(mapping); },
      at::Device(at::kCPU));
  // Resizable as others are: to more it moves to memory of the allocator.
  const c10::Storage storage(c10::Storage::use_byte_size_t(), size, std::move(owner),
                             c10::GetAllocator(at::kCPU),
                             /*resizable=*/true);
  return at::empty({0}, at::kByte).set_(storage, 0, {elements}, {1});
}

}  // namespace geocomm::binding
