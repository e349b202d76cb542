#include <string>

#include "codec/spec/codec_spec.h"
#include "fuzz_target.h"

namespace geocomm::fuzz {

// What parses prints, and parses again to the same; what does not is refused in few words, however long.
void fuzz_codec_spec(Input input) {
  const std::string text(reinterpret_cast<const char*>(input.data()), input.size());
  const auto parsed = codec::CodecSpec::parse(text);
  if (!parsed.is_ok()) {
    require(parsed.status().code() == core::StatusCode::InvalidArgument, "not InvalidArgument");
    const std::size_t length = parsed.status().message().size();
    require(length > 0 && length < 1000, "no message, or a very long one");
    return;
  }
  const std::string canonical = parsed->to_string();
  const auto again = codec::CodecSpec::parse(canonical);
  require(again.is_ok(), "the canonical form does not parse");
  require(*again == *parsed, "the canonical form means something else");
  require(again->to_string() == canonical, "the canonical form is not canonical");
  require(!parsed->has_blocks() || codec::is_valid_block(parsed->block), "an invalid block");
}

}  // namespace geocomm::fuzz
