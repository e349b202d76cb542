// What the tests of TopK share: the selection by sorting, and inputs that are hard on it.
#pragma once

#include <initializer_list>
#include <numeric>

#include "codec/entropy/plane.h"
#include "codec/quantizers/top_k/top_k_format.h"
#include "codec_cases.h"
#include "core/cpu.h"

namespace geocomm::codec {

inline std::int32_t magnitude_bits(float value) {
  const std::int32_t bits = std::bit_cast<std::int32_t>(value) & 0x7FFFFFFF;
  return bits > 0x7F800000 ? 0x7FC00000 : bits;
}

// Whether each element is one of the k largest of its chunk of 4096.
inline std::vector<bool> largest_of_chunks(std::span<const float> values, std::size_t k) {
  std::vector<bool> chosen(values.size());
  for (std::size_t first = 0; first < values.size(); first += kTopKChunk) {
    std::vector<std::size_t> order(std::min<std::size_t>(kTopKChunk, values.size() - first));
    std::iota(order.begin(), order.end(), first);
    std::ranges::stable_sort(order, std::ranges::greater{},
                             [&](std::size_t i) { return magnitude_bits(values[i]); });
    const std::size_t share = (k * order.size() + kTopKChunk - 1) / kTopKChunk;
    for (std::size_t i = 0; i < share; ++i) chosen[order[i]] = true;
  }
  return chosen;
}

enum class Data { Gaussian, Ties, Equal, Zeros, Special, Growing, Shrinking, Sparse };
inline constexpr Data kAllData[] = {Data::Gaussian, Data::Ties,    Data::Equal,     Data::Zeros,
                                    Data::Special,  Data::Growing, Data::Shrinking, Data::Sparse};

inline std::vector<float> make_data(Data data, std::size_t count, std::uint32_t seed = 1) {
  auto values = gaussian(count, 1.0f, seed);
  for (std::size_t i = 0; i < count; ++i) {
    const auto random = core::philox4x32({static_cast<std::uint32_t>(i), 9, 9, 9}, {seed, 3});
    switch (data) {
      case Data::Gaussian:
        break;
      case Data::Ties:
        values[i] = static_cast<float>(static_cast<int>(random[0] % 7) - 3);
        break;
      case Data::Equal:
        values[i] = random[0] % 2 == 0 ? 0.25f : -0.25f;
        break;
      case Data::Zeros:
        values[i] = random[0] % 2 == 0 ? 0.0f : -0.0f;
        break;
      case Data::Special: {
        const float special[] = {kInf,      -kInf,   kNan, -kNan,    1e-40f,
                                 -1.4e-45f, 3.4e38f, 0.0f, -3.4e38f, 1e-45f};
        if (random[0] % 8 == 0) values[i] = special[random[1] % 10];
        break;
      }
      case Data::Growing:  // from chunk to chunk, so that a guess made of the one before fails
        values[i] *= std::ldexp(1.0f, static_cast<int>(i / 1000));
        break;
      case Data::Shrinking:
        values[i] *= std::ldexp(1.0f, -static_cast<int>(i / 700));
        break;
      case Data::Sparse:
        if (random[0] % 300 != 0) values[i] = 0.0f;
        break;
    }
  }
  return values;
}

inline std::vector<core::CpuLevel> cpu_levels() {
  return {core::cpu_levels().begin(), core::cpu_levels().end()};
}

// Forces a level as long as it lives.
class AtLevel {
 public:
  explicit AtLevel(core::CpuLevel level) : before_(core::cpu_level()) {
    EXPECT_TRUE(core::force_cpu_level(level).is_ok());
  }
  ~AtLevel() { static_cast<void>(core::force_cpu_level(before_)); }
  AtLevel(const AtLevel&) = delete;
  AtLevel& operator=(const AtLevel&) = delete;

 private:
  core::CpuLevel before_;
};

inline TopKHead head_of(const Bytes& frame) {
  return read_top_k_head(frame.data() + sizeof(FrameHeader));
}

// A frame of `elements` floats with that payload and right checksums.
inline Bytes frame_of(const CodecSpec& spec, std::uint32_t elements, std::span<const std::byte> payload) {
  Bytes frame(sizeof(FrameHeader) + payload.size());
  std::ranges::copy(payload, frame.begin() + sizeof(FrameHeader));
  write_frame_header(spec, DType::Float32, elements, payload.size(), core::crc32c(payload), frame.data());
  return frame;
}

// Planes of so few bytes lie on the wire as they are behind a Huffman block's head of one word.
inline Bytes payload_of(const TopKHead& head, std::span<const std::byte> index,
                        std::span<const float> values) {
  Bytes payload(sizeof(head));
  std::memcpy(payload.data(), &head, sizeof(head));
  Bytes coded(plane_bound(Entropy::Huffman, index.size()));
  coded.resize(encode_plane(Entropy::Huffman, index, coded.data()));
  payload.insert(payload.end(), coded.begin(), coded.end());
  const auto bytes = std::as_bytes(values);
  payload.insert(payload.end(), bytes.begin(), bytes.end());
  return payload;
}
inline Bytes payload_of(const TopKHead& head, std::initializer_list<int> index,
                        std::span<const float> values) {
  Bytes plane(index.size());
  std::ranges::transform(index, plane.begin(), [](int byte) { return static_cast<std::byte>(byte); });
  return payload_of(head, plane, values);
}

}  // namespace geocomm::codec
