// make_seeds FOLDER: first inputs for every target, in FOLDER/TARGET, made by the encoders themselves.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "codec/delta/delta.h"
#include "codec/entropy/plane.h"
#include "codec/frames/codec.h"
#include "decode_case.h"
#include "delta_case.h"
#include "encode_case.h"

namespace geocomm::fuzz {
namespace {

using codec::CodecSpec;
using codec::Entropy;
using core::DType;
using Bytes = std::vector<std::byte>;

constexpr std::string_view kSpecs[] = {"none",
                                       "fp16",
                                       "bf16",
                                       "fp16+huffman",
                                       "bf16+huffman",
                                       "bf16+zstd",
                                       "int8",
                                       "int8:block=64",
                                       "int8:round=stochastic",
                                       "int8+huffman",
                                       "int8+zstd",
                                       "int4",
                                       "int4:block=64,round=stochastic",
                                       "int4+huffman",
                                       "bit2",
                                       "bit2:block=64+huffman",
                                       "bit1",
                                       "bit1:block=64+zstd",
                                       "deadzone",
                                       "deadzone:block=256,step=1.4",
                                       "deadzone+none",
                                       "deadzone:step=4+zstd",
                                       "bitplanes",
                                       "bitplanes:block=256,step=0.3",
                                       "bitplanes:step=0.1+none",
                                       "bitplanes:step=4+zstd",
                                       "topk",
                                       "topk:k=8",
                                       "topk:k=500,values=fp32",
                                       "topk:values=bf16",
                                       "topk:values=bit2",
                                       "topk:k=2048,values=bit2+zstd",
                                       "topk+zstd",
                                       "lossless",
                                       "lossless+none",
                                       "lossless+zstd",
                                       "balanced",
                                       "small",
                                       "tiny",
                                       "loco",
                                       "loco:k=7",
                                       "loco:k=2048"};

constexpr std::size_t kMaxSeedBytes = 49152;
// Few seeds have more: they are slow.
constexpr std::size_t kMaxQuickElements = 10000;

struct Content {
  std::size_t elements;
  Fill fill;
  bool has_specials;
};

constexpr auto kNoise = static_cast<std::uint8_t>(FillKind::Noise);
constexpr auto kCoarse = static_cast<std::uint8_t>(FillKind::Coarse);
constexpr auto kPalette = static_cast<std::uint8_t>(FillKind::Palette);
constexpr Content kContents[] = {
    {0, {}, false},
    {1, {kNoise, 0, 128, 0}, false},
    {37, {kNoise, 4, 120, 0}, true},
    {700, {kNoise, 8, 110, 0}, false},
    {700, {kNoise, 0, 250, 200}, true},
    {700, {kNoise, 0, 0, 0}, false},
    {5000, {kCoarse, 20, 128, 20}, false},
    {9000, {kNoise, 40, 128, 250}, true},
    {140000, {kPalette, 7, 0, 0}, false},
};

template <typename T>
void append(Bytes& to, const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

class SeedFolder {
 public:
  explicit SeedFolder(std::filesystem::path path) : path_(std::move(path)) {}

  void add(const std::string& target, Input seed) {
    if (seed.size() > kMaxSeedBytes) return;
    const auto folder = path_ / target;
    std::filesystem::create_directories(folder);
    std::ofstream file(folder / ("seed_" + std::to_string(count_[target]++)), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()), static_cast<std::streamsize>(seed.size()));
    if (!file.good()) fail("a seed cannot be written");
  }

 private:
  std::filesystem::path path_;
  std::map<std::string, int> count_;
};

// What follows an EncodeHead: NaN, Inf, the largest and the least floats, and -0 as patches.
Bytes specials(DType dtype, const Content& content) {
  Bytes bytes;
  const std::uint32_t patterns[] = {0x7FC00001, 0xFF800000, 0x7F7FFFFF, 0x00000001, 0x80000000, 0x7F810000};
  if (content.fill.kind == kPalette || content.has_specials) {
    std::uint16_t place = 3;
    for (const std::uint32_t pattern : patterns) {
      if (content.fill.kind != kPalette) append(bytes, place);
      const std::uint32_t bits = core::size_of(dtype) == 2 ? pattern >> 16 : pattern;
      const auto all = std::as_bytes(std::span(&bits, 1));
      bytes.insert(bytes.end(), all.begin(), all.begin() + std::min<std::size_t>(4, core::size_of(dtype)));
      place += 5;
    }
  } else {
    append(bytes, std::uint16_t{0});
  }
  return bytes;
}

struct Family {
  std::string name;
  std::span<const codec::CodecId> codecs;
};

Family family_of(codec::CodecId id) {
  const Family families[] = {{"cast", kCastCodecs},  {"int", kIntCodecs},
                             {"bits", kBitsCodecs},  {"dead_zone", kDeadZoneCodecs},
                             {"top_k", kTopKCodecs}, {"lossless", kLosslessCodecs},
                             {"loco", kLocoCodecs}};
  for (const Family& family : families) {
    for (const auto member : family.codecs) {
      if (member == id) return family;
    }
  }
  fail("a codec without targets");
}

EncodeHead encode_head(const Family& family, const CodecSpec& spec, DType dtype, const Content& content) {
  EncodeHead head{};
  while (family.codecs[head.codec] != spec.id) ++head.codec;
  while (dtype_of(spec.id, head) != dtype) ++head.dtype;
  head.stage = static_cast<std::uint8_t>(spec.entropy);
  while (spec.has_blocks() && spec_of(family.codecs, head).block != spec.block) ++head.block;
  head.choices = static_cast<std::uint8_t>(static_cast<unsigned>(spec.rounding) |
                                           static_cast<unsigned>(spec.values) << 2);
  head.step = static_cast<std::uint8_t>(spec.step * 31);
  head.k = static_cast<std::uint16_t>(spec.k - 1);
  head.residual_scale = 0x3F00;
  head.decay = 0.75f;
  head.seed = 1;
  const auto count = ElementCount::of(content.elements);
  head.elements_low = count.low;
  head.elements_high = count.high;
  head.fill = content.fill;
  return head;
}

Bytes compressed(const CodecSpec& spec, DType dtype, Input src) {
  Bytes frame(codec::compress_bound(spec, dtype, src.size() / core::size_of(dtype)));
  const auto size = codec::compress(spec, dtype, src, frame);
  if (!size.is_ok()) return {};
  frame.resize(*size);
  return frame;
}

void add_decoder_seeds(SeedFolder& seeds, Input frame, Bytes& payload) {
  const auto view = codec::parse_frame(frame);
  require(view.is_ok(), "compress() gave a frame that parse_frame() refuses");
  const Family family = family_of(view->spec.id);
  Bytes seed;
  append(seed, head_of(family.codecs, *view));
  seed.insert(seed.end(), view->payload.begin(), view->payload.end());
  seeds.add("decode_" + family.name, seed);

  Bytes repaired = {std::byte{0xF}, std::byte{0}};
  repaired.insert(repaired.end(), frame.begin(), frame.end());
  if (repaired.size() < 1024) seeds.add("frame", repaired);

  if (view->payload.size() > 4096) return;
  append(payload, head_of(kAllCodecs, *view));
  append(payload, static_cast<std::uint16_t>(view->payload.size()));
  payload.insert(payload.end(), view->payload.begin(), view->payload.end());
}

void add_codec_seeds(SeedFolder& seeds) {
  for (const DType dtype : {DType::Float32, DType::Float16, DType::BFloat16}) {
    for (const Content& content : kContents) {
      const bool is_large = content.elements > kMaxQuickElements;
      if (is_large && dtype != DType::Float32) continue;
      Bytes payload;
      for (const std::string_view text : kSpecs) {
        const CodecSpec spec = *CodecSpec::parse(text);
        if (is_large && spec.entropy != Entropy::Huffman && spec.id != codec::CodecId::Loco) continue;
        const Family family = family_of(spec.id);
        EncodeHead head = encode_head(family, spec, dtype, content);
        const Bytes rest = specials(dtype, content);
        for (head.residual = 0; head.residual < (is_large ? 1 : 3); ++head.residual) {
          Bytes seed;
          append(seed, head);
          seed.insert(seed.end(), rest.begin(), rest.end());
          seeds.add("encode_" + family.name, seed);
        }
        const Bytes src = make_content(content.fill, dtype, content.elements, rest);
        if (const Bytes frame = compressed(spec, dtype, src); !frame.empty()) {
          add_decoder_seeds(seeds, frame, payload);
        }
        if (payload.size() > 2000) {
          seeds.add("payload", payload);
          payload.clear();
        }
      }
    }
  }
}

void add_plane_seeds(SeedFolder& seeds) {
  const Fill fills[] = {{kNoise, 0, 0, 0},   {kNoise, 0, 0, 255}, {kPalette, 0, 0, 0},
                        {kPalette, 1, 0, 0}, {kPalette, 4, 0, 0}, {kPalette, 7, 0, 0}};
  Bytes palette;
  for (int byte = 0; byte < 64; ++byte) palette.push_back(static_cast<std::byte>(byte * 7));
  for (const std::size_t elements : {0, 1, 2, 33, 100, 600, 8191, 9000, 131072, 131173, 262144}) {
    for (const Fill& fill : fills) {
      for (const std::size_t colours : {1, 2, 3, 64}) {
        if (elements > kMaxQuickElements && (colours != 2 || fill.spread != 7)) continue;
        const auto from = std::span(palette).first(colours);
        const auto count = ElementCount::of(elements);
        for (const Entropy stage : {Entropy::None, Entropy::Huffman, Entropy::Zstd}) {
          Bytes seed = {static_cast<std::byte>(stage)};
          append(seed, fill);
          append(seed, count.low);
          append(seed, count.high);
          seed.insert(seed.end(), from.begin(), from.end());
          seeds.add("encode_plane", seed);
          if (stage == Entropy::None || !codec::has_stage(stage)) continue;

          const Bytes src = make_content(fill, DType::UInt8, elements, from);
          Bytes coded(codec::plane_bound(stage, src.size()));
          coded.resize(codec::encode_plane(stage, src, coded.data()));
          seed.clear();
          append(seed, count.low);
          append(seed, count.high);
          seed.insert(seed.end(), coded.begin(), coded.end());
          seeds.add(stage == Entropy::Huffman ? "plane_huffman" : "plane_zstd", seed);
        }
      }
    }
  }
}

void add_delta_seeds(SeedFolder& seeds) {
  const Fill fills[] = {{kNoise, 0, 0, 0}, {kNoise, 0, 0, 255}, {kPalette, 7, 0, 0}};
  const Bytes from = {std::byte{1}, std::byte{0}, std::byte{0}, std::byte{0}};
  for (std::uint8_t dtype = 0; dtype < core::kDTypeCount; ++dtype) {
    for (const std::size_t elements : {0, 1, 33, 600, 9000, 66000}) {
      for (const Fill& fill : fills) {
        const auto count = ElementCount::of(elements);
        for (const std::uint32_t every : {0, 1, 40}) {
          Bytes seed;
          append(seed, DeltaHead{dtype, count.high, count.low, every, 1});
          append(seed, fill);
          seed.insert(seed.end(), from.begin(), from.end());
          seeds.add("encode_delta", seed);
        }
        const auto type = static_cast<DType>(dtype);
        const Bytes values = make_content(fill, type, elements, from);
        const Bytes base(values.size());
        Bytes delta(codec::delta_bound(type, elements));
        const auto size = codec::make_delta(type, base, values, delta);
        require(size.is_ok(), "a delta was not made");
        codec::DeltaHeader header;
        std::memcpy(&header, delta.data(), sizeof(header));
        Bytes seed;
        append(seed, DeltaHead{dtype, count.high, count.low, header.changes, header.gap_bytes});
        const auto payload = Input(delta).first(*size).subspan(sizeof(header));
        seed.insert(seed.end(), payload.begin(), payload.end());
        seeds.add("decode_delta", seed);
      }
    }
  }
}

}  // namespace
}  // namespace geocomm::fuzz

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "make_seeds FOLDER\n");
    return 2;
  }
  geocomm::fuzz::SeedFolder seeds(argv[1]);
  for (const std::string_view text : geocomm::fuzz::kSpecs) {
    seeds.add("codec_spec", std::as_bytes(std::span(text)));
  }
  geocomm::fuzz::add_codec_seeds(seeds);
  geocomm::fuzz::add_plane_seeds(seeds);
  geocomm::fuzz::add_delta_seeds(seeds);
  return 0;
}
