#include "codec/delta/delta_kernels.h"
#include "codec/frames/elements.h"

namespace geocomm::codec {
namespace {

template <typename Word>
void differing_words(const std::byte* base, const std::byte* values, std::size_t count,
                     std::uint64_t* differs) {
  for (std::size_t first = 0; first < count; first += kDeltaGroup) {
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < kDeltaGroup; ++i) {
      const std::size_t at = (first + i) * sizeof(Word);
      bits |= std::uint64_t{load_unaligned<Word>(base + at) != load_unaligned<Word>(values + at)} << i;
    }
    *differs++ = bits;
  }
}

}  // namespace

constinit const DeltaKernels DeltaKernels::kScalar = {
    {differing_words<std::uint8_t>, differing_words<std::uint16_t>, differing_words<std::uint32_t>}};

}  // namespace geocomm::codec
