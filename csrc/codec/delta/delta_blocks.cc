#include "codec/delta/delta_blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "codec/delta/delta_kernels.h"
#include "codec/delta/delta_words.h"
#include "codec/entropy/huffman/huffman_plane.h"
#include "codec/entropy/plane.h"
#include "codec/frames/bitmap.h"
#include "codec/frames/elements.h"
#include "codec/frames/thread_scratch.h"
#include "codec/quantizers/select/select_kernels.h"
#include "core/cpu.h"

namespace geocomm::codec {
namespace {

using core::DType;
using core::Status;

constexpr std::size_t kBlockWords = 65536;
constexpr std::size_t kEscape = 255;

// Steps of changes lie four to a byte, 2 bits each: nearly all are 1 or 2, and a Huffman code of single ones
// would spend half a bit on each as soon as there is a third. From kLarger on they stand in a plane of their
// own.
constexpr std::size_t kStepsInByte = 4;
constexpr std::size_t kLarger = 4;
constexpr std::size_t kWide = kLarger + kEscape;
constexpr std::size_t bytes_of_steps(std::size_t changes) {
  return (changes + kStepsInByte - 1) / kStepsInByte;
}

// How a block is carried.
enum class Form : std::uint8_t {
  Equal = 0,    // it is that of the base
  Changes = 1,  // places and steps of the words that changed
  Steps = 2,    // steps of all words
  Words = 3,    // the words
};
constexpr std::uint8_t kForms = 4;

std::size_t block_count(std::size_t words) {
  return (words + kBlockWords - 1) / kBlockWords;
}
std::size_t block_words(std::size_t words, std::size_t block) {
  return std::min(kBlockWords, words - block * kBlockWords);
}

template <typename Word>
Word load_word(const std::byte* words, std::size_t index) {
  return load_unaligned<Word>(words + index * sizeof(Word));
}
template <typename Word>
void store_word(std::byte* words, std::size_t index, Word word) {
  std::memcpy(words + index * sizeof(Word), &word, sizeof(Word));
}

std::size_t encode_smallest(std::span<const std::byte> plane, std::byte* dst) {
  return huffman::encode_huffman_plane(plane, dst, 0);
}

// 256 log2(value), from whole numbers alone, so that every machine chooses the same forms. Wrong by less than
// 1 % of a bit.
std::uint64_t log2_256(std::uint64_t value) {
  const auto whole = static_cast<unsigned>(std::bit_width(value)) - 1;
  const std::uint64_t mantissa = (whole <= 8 ? value << (8 - whole) : value >> (whole - 8)) - 256;
  return whole * 256 + mantissa + (mantissa * (256 - mantissa) * 88 >> 16);
}

using Histogram = std::array<std::uint32_t, 256>;

// About what Huffman codes take, in 1/256 of a bit; without symbols below `first`. A symbol that is more
// frequent than all others together takes one bit where less would do, and costs these one bit more.
std::uint64_t coded_cost(Histogram counts, std::size_t first = 0) {
  std::uint64_t cost = 0;
  std::uint64_t total = 0;
  for (std::size_t i = first; i < counts.size(); ++i) total += counts[i];
  for (;;) {
    const auto most = std::max_element(counts.begin() + static_cast<std::ptrdiff_t>(first), counts.end());
    if (*most == total) return cost;
    if (std::uint64_t{*most} * 2 < total) break;
    cost += total * 256;
    total -= *most;
    *most = 0;
  }
  for (std::size_t i = first; i < counts.size(); ++i) {
    if (counts[i] > 0) cost += counts[i] * (log2_256(total) - log2_256(counts[i]));
  }
  return cost;
}

// Of a choice between `few` and all the others of `all`: the entropy, which gaps come close to.
std::uint64_t places_cost(std::uint64_t few, std::uint64_t all) {
  const auto cost_of = [all](std::uint64_t some) {
    return some == 0 ? 0 : some * (log2_256(all) - log2_256(some));
  };
  return cost_of(few) + cost_of(all - few);
}

template <typename Word, bool kIsFloat>
class Encoder {
 public:
  Encoder(const std::byte* base, const std::byte* values, std::size_t words)
      : base_(base),
        values_(values),
        words_(words),
        forms_(thread_scratch(ScratchUse::Bitmap, block_count(words))),
        gaps_(thread_scratch(ScratchUse::Places, most_gap_bytes(words)).data()),
        small_(thread_scratch(ScratchUse::Codes, kStepsInByte * bytes_of_steps(words) + words).data()),
        larger_(small_ + kStepsInByte * bytes_of_steps(words)),
        all_steps_(thread_scratch(ScratchUse::Values, words).data()),
        wide_(thread_scratch(ScratchUse::Indices, words * sizeof(Word)).data()) {}

  DeltaPayload run(std::byte* dst) {
    // Steps of words in blocks of the form Changes come first among the wide ones.
    for (std::size_t block = 0; block < forms_.size(); ++block) set_form(block, take(block));
    for (std::size_t block = 0; block < forms_.size(); ++block) {
      if (form(block) == Form::Steps) take_steps(block);
    }
    std::size_t end = encode_smallest(forms_, dst);
    end += encode_smallest({gaps_, gap_bytes_}, dst + end);
    end += encode_smallest(packed_small_steps(), dst + end);
    end += encode_smallest({larger_, larger_count_}, dst + end);
    end += encode_smallest({all_steps_, all_steps_taken_}, dst + end);
    for (unsigned byte = 0; byte < sizeof(Word); ++byte) {
      const auto plane = thread_scratch(ScratchUse::Plane, wide_count_);
      for (std::size_t i = 0; i < plane.size(); ++i) plane[i] = byte_of(load_word<Word>(wide_, i), byte);
      end += encode_smallest(plane, dst + end);
    }
    for (unsigned byte = 0; byte < sizeof(Word); ++byte) {
      end += encode_smallest(plane_of_words(byte), dst + end);
    }
    return {{static_cast<std::uint32_t>(changes_), static_cast<std::uint32_t>(gap_bytes_)}, end};
  }

 private:
  static std::byte byte_of(Word word, unsigned byte) {
    return static_cast<std::byte>(word >> (8 * byte) & 0xFF);
  }
  Form form(std::size_t block) const { return static_cast<Form>(forms_[block]); }
  void set_form(std::size_t block, Form form) { forms_[block] = static_cast<std::byte>(form); }
  Word step_at(std::size_t index) const {
    return step_between<Word, kIsFloat>(load_word<Word>(base_, index), load_word<Word>(values_, index));
  }

  using Differs = std::array<std::uint64_t, kBlockWords / kDeltaGroup>;

  // Takes the block's changes, unless another form would be smaller.
  Form take(std::size_t block) {
    const std::size_t count = block_words(words_, block);
    Differs differs;
    const std::size_t changes = compare(block, count, differs);
    if (changes == 0) return Form::Equal;
    const Form form = changes > count / 8 ? smallest(block, count) : Form::Changes;
    if (form == Form::Changes) take_changes(block, count, differs);
    return form;
  }

  // Returns how many of the block's words differ.
  std::size_t compare(std::size_t block, std::size_t count, Differs& differs) const {
    const std::size_t first = block * kBlockWords;
    const std::size_t whole = count - count % kDeltaGroup;
    core::at_cpu_level<DeltaKernels>().compare[std::countr_zero(sizeof(Word))](
        base_ + first * sizeof(Word), values_ + first * sizeof(Word), whole, differs.data());
    if (whole < count) differs[whole / kDeltaGroup] = 0;
    for (std::size_t i = whole; i < count; ++i) {
      differs[i / kDeltaGroup] |= std::uint64_t{step_at(first + i) != 0} << i % kDeltaGroup;
    }
    std::size_t changes = 0;
    for (std::size_t i = 0; i < count; i += kDeltaGroup) changes += count_bits(differs[i / kDeltaGroup]);
    return changes;
  }

  // Of a block in which many words changed.
  Form smallest(std::size_t block, std::size_t count) const {
    Histogram steps{};
    std::array<Histogram, sizeof(Word)> bytes{};
    for (std::size_t i = block * kBlockWords; i < block * kBlockWords + count; ++i) {
      ++steps[std::min<std::size_t>(step_at(i), kEscape)];
      const Word word = std::rotl(load_word<Word>(values_, i), 1);
      for (unsigned byte = 0; byte < sizeof(Word); ++byte) {
        ++bytes[byte][static_cast<std::size_t>(byte_of(word, byte))];
      }
    }
    const std::uint64_t wide = std::uint64_t{steps[kEscape]} * sizeof(Word) * 8 * 256;
    const std::uint64_t as_changes = places_cost(count - steps[0], count) + coded_cost(steps, 1) + wide;
    const std::uint64_t as_steps = coded_cost(steps) + wide;
    std::uint64_t as_words = 0;
    for (const Histogram& plane : bytes) as_words += std::min(coded_cost(plane), count * 8 * 256);
    if (as_words < std::min(as_changes, as_steps)) return Form::Words;
    return as_changes < as_steps ? Form::Changes : Form::Steps;
  }

  void take_changes(std::size_t block, std::size_t count, const Differs& differs) {
    const auto places = reinterpret_cast<std::uint32_t*>(
        thread_scratch(ScratchUse::Plane, count * sizeof(std::uint32_t)).data());
    std::byte* const small = small_ + changes_;
    std::size_t taken = 0;
    for (std::size_t group = 0; group < count; group += kDeltaGroup) {
      for (std::uint64_t left = differs[group / kDeltaGroup]; left != 0; left &= left - 1) {
        const std::size_t i = group + static_cast<std::size_t>(std::countr_zero(left));
        const Word step = step_at(block * kBlockWords + i);
        places[taken] = first_place_ + static_cast<std::uint32_t>(i);
        small[taken++] = static_cast<std::byte>(std::min<std::size_t>(step, kLarger) - 1);
        if (step >= kLarger) put_larger(step);
      }
    }
    gap_bytes_ +=
        core::at_cpu_level<SelectKernels>().write_gaps(places, taken, latest_place_, gaps_ + gap_bytes_);
    latest_place_ = places[taken - 1];
    first_place_ += static_cast<std::uint32_t>(count);
    changes_ += taken;
  }
  void put_larger(Word step) {
    larger_[larger_count_++] = static_cast<std::byte>(std::min<std::size_t>(step - kLarger, kEscape));
    if (step >= kWide) put_wide(static_cast<Word>(step - kWide));
  }
  void put_wide(Word word) { store_word(wide_, wide_count_++, word); }

  std::span<const std::byte> packed_small_steps() {
    const std::size_t bytes = bytes_of_steps(changes_);
    std::fill(small_ + changes_, small_ + kStepsInByte * bytes, std::byte{0});
    for (std::size_t i = 0; i < bytes; ++i) {
      const auto four = load_unaligned<std::uint32_t>(small_ + kStepsInByte * i);
      small_[i] = static_cast<std::byte>((four | four >> 6 | four >> 12 | four >> 18) & 0xFF);
    }
    return {small_, bytes};
  }

  void take_steps(std::size_t block) {
    const std::size_t first = block * kBlockWords;
    for (std::size_t i = first; i < first + block_words(words_, block); ++i) {
      const Word step = step_at(i);
      const bool is_wide = step >= kEscape;
      all_steps_[all_steps_taken_++] = static_cast<std::byte>(is_wide ? kEscape : step);
      if (is_wide) put_wide(static_cast<Word>(step - kEscape));
    }
  }

  std::span<const std::byte> plane_of_words(unsigned byte) const {
    const auto plane = thread_scratch(ScratchUse::Plane, words_);
    std::size_t taken = 0;
    for (std::size_t block = 0; block < forms_.size(); ++block) {
      if (form(block) != Form::Words) continue;
      const std::size_t first = block * kBlockWords;
      for (std::size_t i = first; i < first + block_words(words_, block); ++i) {
        plane[taken++] = byte_of(std::rotl(load_word<Word>(values_, i), 1), byte);
      }
    }
    return plane.first(taken);
  }

  const std::byte* const base_;
  const std::byte* const values_;
  const std::size_t words_;
  const std::span<std::byte> forms_;
  std::byte* const gaps_;
  std::byte* const small_;  // a byte each, until all are there
  std::byte* const larger_;
  std::byte* const all_steps_;
  std::byte* const wide_;
  std::size_t changes_ = 0;
  std::size_t gap_bytes_ = 0;
  std::size_t larger_count_ = 0;
  std::size_t all_steps_taken_ = 0;
  std::size_t wide_count_ = 0;
  // Places are counted over the blocks of the form Changes as if these lay end to end.
  std::uint32_t first_place_ = 0;  // of the next such block
  std::uint32_t latest_place_ = kNoPlace;
};

std::size_t count_escapes(std::span<const std::byte> plane) {
  return static_cast<std::size_t>(std::ranges::count(plane, std::byte{kEscape}));
}

template <typename Word, bool kIsFloat>
class Decoder {
 public:
  Decoder(std::span<const std::byte> payload, const DeltaCounts& counts, std::size_t words, std::byte* values)
      : rest_(payload), counts_(counts), words_(words), values_(values) {}

  Status run() {
    GEOCOMM_RETURN_IF_ERROR(read_planes());
    GEOCOMM_RETURN_IF_ERROR(apply_changes());
    std::size_t taken = 0;
    for (std::size_t block = 0; block < forms_.size(); ++block) {
      if (form(block) == Form::Steps) apply_steps(block, taken);
    }
    GEOCOMM_RETURN_IF_ERROR(apply_words());
    if (!rest_.empty()) return core::corrupt("delta: ", rest_.size(), " bytes after the last plane");
    return Status::ok();
  }

 private:
  Form form(std::size_t block) const { return static_cast<Form>(forms_[block]); }
  // Words in blocks of that form.
  std::size_t words_of(Form which) const {
    std::size_t count = 0;
    for (std::size_t block = 0; block < forms_.size(); ++block) {
      if (form(block) == which) count += block_words(words_, block);
    }
    return count;
  }
  core::Result<std::span<const std::byte>> read(ScratchUse use, std::size_t bytes) {
    const auto plane = thread_scratch(use, bytes);
    GEOCOMM_RETURN_IF_ERROR(take_plane(Entropy::Huffman, rest_, plane));
    return std::span<const std::byte>(plane);
  }

  Status read_planes() {
    GEOCOMM_ASSIGN_OR_RETURN(forms_, read(ScratchUse::Bitmap, block_count(words_)));
    const auto is_unknown = [](std::byte form) { return static_cast<std::uint8_t>(form) >= kForms; };
    if (std::ranges::any_of(forms_, is_unknown)) return core::corrupt("delta: a block of unknown form");
    const std::size_t words = words_of(Form::Changes);
    if (counts_.changes > words || counts_.gap_bytes < counts_.changes ||
        counts_.gap_bytes > most_gap_bytes(words)) {
      return core::corrupt("delta: ", counts_.changes, " changes with gaps of ", counts_.gap_bytes,
                           " bytes, in ", words, " words");
    }
    GEOCOMM_ASSIGN_OR_RETURN(gaps_, read(ScratchUse::Places, counts_.gap_bytes));
    const std::size_t steps_bytes = bytes_of_steps(counts_.changes);
    const auto codes = thread_scratch(ScratchUse::Codes, steps_bytes + counts_.changes);
    GEOCOMM_RETURN_IF_ERROR(take_plane(Entropy::Huffman, rest_, codes.first(steps_bytes)));
    steps_ = codes.first(steps_bytes);
    std::size_t larger = 0;
    for (std::size_t change = 0; change < counts_.changes; ++change)
      larger += small_step(steps_.data(), change) == kLarger;
    const auto larger_steps = codes.subspan(steps_bytes, larger);
    GEOCOMM_RETURN_IF_ERROR(take_plane(Entropy::Huffman, rest_, larger_steps));
    larger_ = larger_steps;
    GEOCOMM_ASSIGN_OR_RETURN(all_steps_, read(ScratchUse::Values, words_of(Form::Steps)));
    const std::size_t wide = count_escapes(larger_) + count_escapes(all_steps_);
    const auto words_of_wide = thread_scratch(ScratchUse::Indices, wide * sizeof(Word));
    for (unsigned byte = 0; byte < sizeof(Word); ++byte) {
      GEOCOMM_ASSIGN_OR_RETURN(const auto plane, read(ScratchUse::Plane, wide));
      for (std::size_t i = 0; i < wide; ++i) words_of_wide[i * sizeof(Word) + byte] = plane[i];
    }
    wide_ = words_of_wide.data();
    return Status::ok();
  }

  // kLarger: it stands among the larger ones.
  static std::size_t small_step(const std::byte* steps, std::size_t change) {
    const auto shift = static_cast<unsigned>(2 * (change % kStepsInByte));
    return static_cast<std::size_t>(steps[change / kStepsInByte] >> shift & std::byte{3}) + 1;
  }
  Word next_larger() {
    const auto step = static_cast<std::size_t>(larger_[larger_taken_++]);
    return step == kEscape ? static_cast<Word>(next_wide() + kWide) : static_cast<Word>(step + kLarger);
  }
  Word next_wide() { return load_word<Word>(wide_, wide_taken_++); }
  void step_word(std::size_t index, Word step) {
    store_word(values_, index, stepped<Word, kIsFloat>(load_word<Word>(values_, index), step));
  }

  Status apply_changes() {
    // Copies, which compilers keep in registers: words may be written to anything else.
    const std::byte* gap = gaps_.data();
    const std::byte* const gaps_end = gap + gaps_.size();
    const std::byte* const steps = steps_.data();
    std::size_t block = 0;
    std::byte* words = nullptr;  // those of the block where the next change is, `count` of them
    std::size_t count = 0;
    const auto go_to_changes = [&] {
      while (block < forms_.size() && form(block) != Form::Changes) ++block;
      if (block == forms_.size()) return false;
      words = values_ + block * kBlockWords * sizeof(Word);
      count = block_words(words_, block);
      ++block;
      return true;
    };
    std::size_t place = 0;  // in the block
    for (std::size_t change = 0; change < counts_.changes; ++change, ++place) {
      for (std::size_t part = kEscape; part == kEscape; place += part) {
        if (gap == gaps_end) return core::corrupt("delta: a change has no place");
        part = static_cast<std::size_t>(*gap++);
      }
      while (place >= count) {
        place -= count;
        if (!go_to_changes()) return core::corrupt("delta: a change lies beyond its blocks");
      }
      const std::size_t small = small_step(steps, change);
      const Word step = small == kLarger ? next_larger() : static_cast<Word>(small);
      store_word(words, place, stepped<Word, kIsFloat>(load_word<Word>(words, place), step));
    }
    if (gap != gaps_end) return core::corrupt("delta: places without changes");
    return Status::ok();
  }

  void apply_steps(std::size_t block, std::size_t& taken) {
    const std::size_t first = block * kBlockWords;
    for (std::size_t i = first; i < first + block_words(words_, block); ++i) {
      const auto step = static_cast<std::size_t>(all_steps_[taken++]);
      if (step == 0) continue;
      step_word(i, step == kEscape ? static_cast<Word>(next_wide() + kEscape) : static_cast<Word>(step));
    }
  }

  Status apply_words() {
    const std::size_t count = words_of(Form::Words);
    for (unsigned byte = 0; byte < sizeof(Word); ++byte) {
      GEOCOMM_ASSIGN_OR_RETURN(const auto plane, read(ScratchUse::Plane, count));
      const bool is_last = byte + 1 == sizeof(Word);
      std::size_t taken = 0;
      for (std::size_t block = 0; block < forms_.size(); ++block) {
        if (form(block) != Form::Words) continue;
        const std::size_t first = block * kBlockWords;
        for (std::size_t i = first; i < first + block_words(words_, block); ++i) {
          const Word before = byte == 0 ? Word{0} : load_word<Word>(values_, i);
          const auto word =
              static_cast<Word>(before | static_cast<Word>(static_cast<Word>(plane[taken++]) << (8 * byte)));
          store_word(values_, i, is_last ? std::rotr(word, 1) : word);
        }
      }
    }
    return Status::ok();
  }

  std::span<const std::byte> rest_;
  const DeltaCounts counts_;
  const std::size_t words_;
  std::byte* const values_;
  std::span<const std::byte> forms_;
  std::span<const std::byte> gaps_;
  std::span<const std::byte> steps_;
  std::span<const std::byte> larger_;
  std::span<const std::byte> all_steps_;
  const std::byte* wide_ = nullptr;
  std::size_t larger_taken_ = 0;
  std::size_t wide_taken_ = 0;
};

}  // namespace

std::size_t most_gap_bytes(std::size_t words) {
  return words + words / kEscape;
}

std::size_t delta_payload_bound(DType dtype, std::size_t words) {
  const auto plane = [](std::size_t bytes) { return plane_bound(Entropy::Huffman, bytes); };
  // A word has one larger step, of changes or of all, and its bytes once, as a wide step or as a word: two
  // planes that share `words` bytes, and so at most one part of a block more.
  const std::size_t shared = plane(words) + plane(1);
  return plane(block_count(words)) + plane(most_gap_bytes(words)) + plane(bytes_of_steps(words)) +
         (1 + word_bytes(dtype)) * shared;
}

DeltaPayload encode_delta(DType dtype, const std::byte* base, const std::byte* values, std::size_t words,
                          std::byte* dst) {
  return with_words(dtype, [&]<typename Word, bool kIsFloat>() {
    return Encoder<Word, kIsFloat>(base, values, words).run(dst);
  });
}

Status decode_delta(DType dtype, std::span<const std::byte> payload, const DeltaCounts& counts,
                    std::size_t words, std::byte* values) {
  return with_words(dtype, [&]<typename Word, bool kIsFloat>() {
    return Decoder<Word, kIsFloat>(payload, counts, words, values).run();
  });
}

}  // namespace geocomm::codec
