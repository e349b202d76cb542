// The Huffman stage on the device gives the bytes of codec/entropy/huffman, takes them back, and survives
// others.
#include <algorithm>
#include <random>

#include "codec/cuda/huffman.cuh"
#include "codec/cuda/huffman_planes.h"
#include "codec/cuda/verdict.h"
#include "codec/entropy/huffman/huffman_plane.h"
#include "cuda_cases.h"
#include "simt.h"

namespace geocomm::codec {
namespace {

using huffman::kBlockBytes;

std::uint8_t* raw(std::byte* bytes) {
  return reinterpret_cast<std::uint8_t*>(bytes);
}

std::size_t space_bytes(std::size_t planes, std::size_t plane_bytes) {
  cuda::SpaceCutter room;
  cuda::take_huffman_space(planes, plane_bytes, false, room);
  return room.bytes();
}

cuda::HuffmanSpace space_in(const DeviceBytes& memory, std::size_t planes, std::size_t plane_bytes) {
  cuda::SpaceCutter room(memory.data());
  return cuda::take_huffman_space(planes, plane_bytes, false, room);
}

std::vector<Bytes> encode_planes(const std::vector<Bytes>& planes, std::size_t shift = 0) {
  std::size_t most = 0;
  for (const Bytes& plane : planes) most = std::max(most, plane.size());
  const DeviceBytes room(space_bytes(planes.size(), most));
  const auto space = space_in(room, planes.size(), most);
  std::vector<DeviceBytes> from, to;
  for (std::size_t p = 0; p < planes.size(); ++p) {
    from.emplace_back(planes[p], shift);
    to.emplace_back(Bytes(huffman::huffman_plane_bound(planes[p].size())), 3 * shift);
    space.planes[p] = {raw(from[p].data()), raw(to[p].data()), 0,
                       static_cast<std::uint32_t>(planes[p].size()), static_cast<std::uint32_t>(p)};
  }
  EXPECT_TRUE(cuda::encode_huffman_blocks(space, nullptr).is_ok());
  EXPECT_TRUE(cuda::write_huffman_planes(space, nullptr).is_ok());
  std::vector<Bytes> coded;
  for (std::size_t p = 0; p < planes.size(); ++p) {
    Bytes all = to[p].bytes();
    EXPECT_LE(space.planes[p].coded_bytes, all.size());
    all.resize(std::min<std::size_t>(space.planes[p].coded_bytes, all.size()));
    coded.push_back(std::move(all));
  }
  return coded;
}

// Decodes as the frame's reader would: the plane may take fewer bytes than are there. False: refused.
bool decode_plane(const Bytes& coded, Bytes& plane, std::size_t& taken, std::size_t shift = 0) {
  const DeviceBytes room(space_bytes(1, plane.size()));
  const auto space = space_in(room, 1, plane.size());
  const DeviceBytes from(coded, shift);
  const DeviceBytes to(plane);
  space.planes[0] = {raw(from.data()), raw(to.data()), coded.size(), static_cast<std::uint32_t>(plane.size()),
                     0};
  std::uint64_t verdict = 0;
  simt::launch(
      [&] {
        std::uint32_t coded_bytes = 0;
        const bool sound = cuda::read_plane_heads(space.planes[0].from, coded.size(), space.planes[0].bytes,
                                                  space.blocks, coded_bytes);
        if (threadIdx.x != 0) return;
        space.planes[0].coded_bytes = coded_bytes;
        if (!sound) cuda::report(&verdict, cuda::Fault::Plane, 0);
      },
      {1}, {cuda::kWarp}, 0);
  EXPECT_TRUE(cuda::decode_huffman_planes(space, &verdict, nullptr).is_ok());
  taken = space.planes[0].coded_bytes;
  plane = to.bytes();
  EXPECT_TRUE(verdict == 0 || cuda::fault_of(verdict) == cuda::Fault::Plane);
  return verdict == 0;
}

Bytes encode_on_cpu(const Bytes& plane) {
  Bytes coded(huffman::huffman_plane_bound(plane.size()));
  coded.resize(huffman::encode_huffman_plane(plane, coded.data()));
  return coded;
}

void expect_same(const Bytes& plane, const std::string& what, std::size_t shift = 0) {
  const Bytes expected = encode_on_cpu(plane);
  const Bytes coded = encode_planes({plane}, shift)[0];
  ASSERT_EQ(coded.size(), expected.size()) << what;
  const auto differs = std::ranges::mismatch(coded, expected);
  ASSERT_TRUE(coded == expected) << what << ", byte " << differs.in1 - coded.begin();
  Bytes decoded(plane.size(), std::byte{0x33});
  std::size_t taken = 0;
  ASSERT_TRUE(decode_plane(coded, decoded, taken, shift)) << what;
  ASSERT_EQ(taken, coded.size()) << what;
  ASSERT_TRUE(decoded == plane) << what;
}

// Codes around 0, as quantized gradients are.
Bytes gaussian_codes(std::size_t size, float sigma, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, sigma);
  Bytes plane(size);
  for (auto& byte : plane) {
    byte = static_cast<std::byte>(
        static_cast<std::int8_t>(std::clamp(std::round(normal(random)), -127.f, 127.f)));
  }
  return plane;
}

// Counts like the Fibonacci numbers: codes that have to be cut to the limit.
Bytes skewed_codes(std::size_t size) {
  Bytes plane;
  std::size_t a = 1, b = 1;
  for (int symbol = 0; plane.size() < size; ++symbol) {
    plane.insert(plane.end(), std::min(a, size - plane.size()), static_cast<std::byte>(symbol));
    a = std::exchange(b, a + b);
  }
  std::ranges::shuffle(plane, std::mt19937(7));
  return plane;
}

TEST(CudaHuffman, test_every_length_gives_the_bytes_of_the_cpu) {
  for (const std::size_t size : {0u, 1u, 2u, 31u, 33u, 127u, 400u, 1000u, 8191u, 8192u, 8321u, 20001u}) {
    expect_same(gaussian_codes(size, 4.0f), "gaussian " + std::to_string(size));
    expect_same(gaussian_codes(size, 0.4f), "narrow " + std::to_string(size));
    expect_same(skewed_codes(size), "skewed " + std::to_string(size));
  }
}

TEST(CudaHuffman, test_wide_and_constant_planes) {
  expect_same(gaussian_codes(9000, 60.0f), "hardly worth coding");
  Bytes uniform(9001);
  std::mt19937 random(3);
  for (auto& byte : uniform) byte = static_cast<std::byte>(random());
  expect_same(uniform, "raw");
  expect_same(Bytes(9001, std::byte{0x80}), "single");
}

TEST(CudaHuffman, test_planes_at_any_address) {
  for (const std::size_t shift : {1u, 2u, 7u}) expect_same(gaussian_codes(9111, 8.0f), "shifted", shift);
}

// Blocks that share a table, that do not, raw and single ones between them.
TEST(CudaHuffman, test_planes_of_several_blocks) {
  Bytes plane = gaussian_codes(kBlockBytes, 6.0f);
  const auto add = [&](const Bytes& more) { plane.insert(plane.end(), more.begin(), more.end()); };
  add(gaussian_codes(kBlockBytes, 5.9f, 2));
  add(Bytes(kBlockBytes, std::byte{9}));
  add(skewed_codes(3000));
  expect_same(plane, "several blocks");
}

TEST(CudaHuffman, test_many_planes_and_orders_of_threads) {
  const std::vector<Bytes> planes = {
      gaussian_codes(9000, 3.0f), {}, gaussian_codes(50, 3.0f), skewed_codes(8200)};
  for (const auto order : {simt::Order::Backward, simt::Order::Forward}) {
    simt::set_order(order);
    const auto coded = encode_planes(planes);
    for (std::size_t p = 0; p < planes.size(); ++p) EXPECT_TRUE(coded[p] == encode_on_cpu(planes[p])) << p;
    Bytes decoded(planes[0].size());
    std::size_t taken = 0;
    EXPECT_TRUE(decode_plane(coded[0], decoded, taken));
    EXPECT_TRUE(decoded == planes[0]);
  }
}

// Whatever the bytes are, the device says what the CPU says.
void expect_same_plane_verdict(const Bytes& coded, std::size_t size, const std::string& what) {
  Bytes on_device(size), on_cpu(size);
  std::size_t taken = 0;
  const bool is_sound = decode_plane(coded, on_device, taken);
  const auto bytes = huffman::huffman_plane_bytes(coded, size);
  const bool expected =
      bytes.is_ok() && huffman::decode_huffman_plane(std::span(coded).first(*bytes), on_cpu).is_ok();
  ASSERT_EQ(is_sound, expected) << what;
  if (!is_sound) return;
  ASSERT_EQ(taken, *bytes) << what;
  ASSERT_TRUE(on_device == on_cpu) << what;
}

TEST(CudaHuffman, test_damaged_planes_do_no_harm) {
  std::mt19937 random(11);
  for (const std::size_t size : {600u, 8192u}) {
    const Bytes coded = encode_on_cpu(gaussian_codes(size, 2.0f));
    for (std::size_t at = 0; at < 120; ++at) {
      Bytes changed = coded;
      changed[at] ^= static_cast<std::byte>(1 + random() % 255);
      expect_same_plane_verdict(changed, size, "byte " + std::to_string(at));
    }
    for (std::size_t cut = 0; cut < coded.size(); cut += 1 + cut / 4) {
      expect_same_plane_verdict(Bytes(coded.begin(), coded.begin() + static_cast<std::ptrdiff_t>(cut)), size,
                                "cut to " + std::to_string(cut));
    }
    // A body one word shorter: its head agrees, the words lack.
    Bytes shorter = coded;
    std::uint32_t head;
    std::memcpy(&head, shorter.data(), 4);
    head -= 2;
    std::memcpy(shorter.data(), &head, 4);
    expect_same_plane_verdict(shorter, size, "shorter body");
    expect_same_plane_verdict(coded, size - 1, "another size");
  }
}

}  // namespace
}  // namespace geocomm::codec
