#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "fuzz_target.h"

namespace geocomm::fuzz {

std::span<const Target> targets() {
  static constexpr Target kTargets[] = {
      {"codec_spec", fuzz_codec_spec},
      {"frame", fuzz_frame},
      {"payload", fuzz_payload},
      {"plane_huffman", fuzz_plane_huffman},
      {"plane_zstd", fuzz_plane_zstd},
      {"decode_cast", fuzz_decode_cast},
      {"decode_int", fuzz_decode_int},
      {"decode_bits", fuzz_decode_bits},
      {"decode_dead_zone", fuzz_decode_dead_zone},
      {"decode_top_k", fuzz_decode_top_k},
      {"decode_lossless", fuzz_decode_lossless},
      {"decode_loco", fuzz_decode_loco},
      {"encode_cast", fuzz_encode_cast},
      {"encode_int", fuzz_encode_int},
      {"encode_bits", fuzz_encode_bits},
      {"encode_dead_zone", fuzz_encode_dead_zone},
      {"encode_top_k", fuzz_encode_top_k},
      {"encode_lossless", fuzz_encode_lossless},
      {"encode_loco", fuzz_encode_loco},
      {"encode_plane", fuzz_encode_plane},
      {"decode_delta", fuzz_decode_delta},
      {"encode_delta", fuzz_encode_delta},
      {"wire_header", fuzz_wire_header},
      {"opening_packet", fuzz_opening_packet},
      {"link_mark", fuzz_link_mark},
  };
  return kTargets;
}

const Target* find_target(std::string_view name) {
  const auto found = std::ranges::find(targets(), name, &Target::name);
  return found == targets().end() ? nullptr : &*found;
}

void fail(std::string_view what) {
  std::fprintf(stderr, "fuzz: at CPU level %s: %.*s\n", core::to_string(core::cpu_level()).data(),
               static_cast<int>(what.size()), what.data());
  std::abort();
}

}  // namespace geocomm::fuzz
