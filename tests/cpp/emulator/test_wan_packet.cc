#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "emulator/wan_packet.h"

namespace geocomm::emulator {
namespace {

using core::StatusCode;

constexpr std::size_t kIpBytes = 20, kTcpBytes = 32;
constexpr std::size_t kTcp = kVnetHeaderBytes + kIpBytes;
constexpr std::size_t kBody = kTcp + kTcpBytes;
constexpr std::uint8_t kFin = 0x01, kSyn = 0x02, kRst = 0x04, kPsh = 0x08, kAck = 0x10, kCwr = 0x80;

struct Bytes : std::vector<std::byte> {
  using std::vector<std::byte>::vector;
  std::uint8_t u8(std::size_t at) const { return std::to_integer<std::uint8_t>((*this)[at]); }
  std::uint16_t u16(std::size_t at) const { return static_cast<std::uint16_t>(u8(at) << 8 | u8(at + 1)); }
  std::uint32_t u32(std::size_t at) const { return std::uint32_t{u16(at)} << 16 | u16(at + 2); }
  void put8(std::size_t at, unsigned value) { (*this)[at] = static_cast<std::byte>(value & 0xff); }
  void put16(std::size_t at, unsigned value) {
    put8(at, value >> 8);
    put8(at + 1, value);
  }
  void put32(std::size_t at, std::uint32_t value) {
    put16(at, value >> 16);
    put16(at + 2, value & 0xffff);
  }
  // A field of the virtio_net_hdr, which has host byte order.
  std::uint16_t host16(std::size_t at) const {
    std::uint16_t value;
    std::memcpy(&value, data() + at, 2);
    return value;
  }
  void put_host16(std::size_t at, std::uint16_t value) { std::memcpy(data() + at, &value, 2); }
};

// A TCP super-packet as the kernel hands it to a TUN reader: `payload` bytes 0, 1, 2, … in segments of `mss`.
Bytes super_packet(std::size_t payload, std::uint16_t mss, std::uint8_t flags = kAck) {
  Bytes bytes(kBody + payload);
  bytes.put8(0, 1);                 // NEEDS_CSUM
  bytes.put8(1, mss != 0 ? 1 : 0);  // GSO_TCPV4 or none
  bytes.put_host16(2, kIpBytes + kTcpBytes);
  bytes.put_host16(4, mss);
  bytes.put_host16(6, kIpBytes);
  bytes.put_host16(8, 16);
  const std::size_t ip = kVnetHeaderBytes;
  bytes.put8(ip, 0x45);
  bytes.put16(ip + 2, static_cast<unsigned>(kIpBytes + kTcpBytes + payload));
  bytes.put16(ip + 4, 0xfffe);  // the id, which wraps while segments are counted
  bytes.put8(ip + 8, 64);
  bytes.put8(ip + 9, 6);
  bytes.put32(ip + 12, 0x0a5b0001);
  bytes.put32(ip + 16, 0x0a5b0101);
  bytes.put32(kTcp + 4, 0xffffff00);  // the sequence number, which wraps too
  bytes.put8(kTcp + 12, kTcpBytes / 4 << 4);
  bytes.put8(kTcp + 13, flags);
  for (std::size_t i = 0; i < payload; ++i) bytes.put8(kBody + i, static_cast<unsigned>(i));
  return bytes;
}

Bytes extract(const Bytes& packet, std::size_t first, std::size_t count) {
  const auto frame = parse_frame(packet);
  EXPECT_TRUE(frame.is_ok()) << frame.status().message();
  const auto run = extract_run(*frame, first, count);
  return Bytes(run.begin(), run.end());
}

// A receiver's check: the one's complement sum over the header, checksum included.
std::uint16_t ones_sum(const Bytes& bytes, std::size_t begin, std::size_t end, std::uint32_t sum = 0) {
  for (std::size_t i = begin; i < end; i += 2) sum += bytes.u16(i);
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(sum);
}

TEST(WanPacket, ParseSuperPacketCountsSegmentsAndWireBytes) {
  const Bytes packet = super_packet(3500, 1000);
  const auto frame = parse_frame(packet);
  ASSERT_TRUE(frame.is_ok());
  EXPECT_EQ(frame->dst_address, 0x0a5b0101U);
  EXPECT_EQ(frame->segments, 4U);
  EXPECT_EQ(frame->run_payload_bytes(3, 1), 500U);
  EXPECT_EQ(frame->run_wire_bytes(0, 4), 3500 + 4 * (kIpBytes + kTcpBytes));
}

TEST(WanPacket, ParsePlainPacketIsOneSegment) {
  const Bytes packet = super_packet(700, 0);
  const auto frame = parse_frame(packet);
  ASSERT_TRUE(frame.is_ok());
  EXPECT_EQ(frame->segments, 1U);
  EXPECT_EQ(frame->run_wire_bytes(0, 1), packet.size() - kVnetHeaderBytes);
}

TEST(WanPacket, ExtractAllReturnsTheBytesUntouched) {
  const Bytes packet = super_packet(3500, 1000, kAck | kPsh | kCwr);
  EXPECT_EQ(extract(packet, 0, 4), packet);
  const Bytes plain = super_packet(700, 0);
  EXPECT_EQ(extract(plain, 0, 1), plain);
}

TEST(WanPacket, ExtractEveryRunCarriesItsPayloadAndHeaders) {
  const Bytes packet = super_packet(3500, 1000, kAck | kPsh | kFin | kCwr);
  for (std::size_t first = 0; first < 4; ++first) {
    for (std::size_t count = 1; first + count <= 4; ++count) {
      SCOPED_TRACE(testing::Message() << "first " << first << " count " << count);
      if (count == 4) continue;
      const Bytes run = extract(packet, first, count);
      const std::size_t payload = std::min<std::size_t>(3500, (first + count) * 1000) - first * 1000;
      ASSERT_EQ(run.size(), kBody + payload);
      EXPECT_TRUE(std::equal(run.begin() + kBody, run.end(),
                             packet.begin() + kBody + static_cast<long>(first) * 1000));
      const std::size_t ip = kVnetHeaderBytes;
      EXPECT_EQ(run.u16(ip + 2), kIpBytes + kTcpBytes + payload);
      EXPECT_EQ(run.u16(ip + 4), static_cast<std::uint16_t>(0xfffe + first));
      EXPECT_EQ(ones_sum(run, ip, kTcp), 0xffff);
      EXPECT_EQ(run.u32(kTcp + 4), static_cast<std::uint32_t>(0xffffff00 + first * 1000));
      // NEEDS_CSUM: the TCP checksum field holds the sum of the pseudo header.
      EXPECT_EQ(run.u16(kTcp + 16),
                ones_sum(run, ip + 12, ip + 20, static_cast<std::uint32_t>(6 + kTcpBytes + payload)));
      EXPECT_EQ(run.u8(0), 1);
      EXPECT_EQ(run.host16(6), kIpBytes);
      EXPECT_EQ(run.host16(8), 16);
      const std::uint8_t flags = run.u8(kTcp + 13);
      EXPECT_EQ((flags & kCwr) != 0, first == 0);
      EXPECT_EQ((flags & kPsh) != 0, first + count == 4);
      EXPECT_EQ((flags & kFin) != 0, first + count == 4);
      EXPECT_NE(flags & kAck, 0);
      EXPECT_EQ(run.host16(4), count == 1 ? 0 : 1000);
      EXPECT_EQ(run.u8(1), count == 1 ? 0 : (first == 0 ? 0x81 : 0x01));
    }
  }
}

TEST(WanPacket, ExtractedRunParsesAgain) {
  const Bytes run = extract(super_packet(3500, 1000), 1, 2);
  const auto frame = parse_frame(run);
  ASSERT_TRUE(frame.is_ok());
  EXPECT_EQ(frame->segments, 2U);
  EXPECT_EQ(frame->payload_bytes, 2000U);
}

TEST(WanPacket, ParseTruncatedAtEveryByteIsRefused) {
  const Bytes packet = super_packet(40, 20);
  for (std::size_t size = 0; size < packet.size(); ++size) {
    const auto frame = parse_frame(std::span(packet).first(size));
    ASSERT_FALSE(frame.is_ok()) << size;
    EXPECT_EQ(frame.status().code(), StatusCode::CorruptData) << size;
  }
}

TEST(WanPacket, ParseLengthsThatContradictAreRefused) {
  Bytes short_ip_header = super_packet(40, 20);
  short_ip_header.put8(kVnetHeaderBytes, 0x44);
  Bytes long_ip_header = super_packet(0, 0);
  long_ip_header.put8(kVnetHeaderBytes, 0x4f);
  Bytes short_tcp_header = super_packet(40, 20);
  short_tcp_header.put8(kTcp + 12, 4 << 4);
  Bytes long_tcp_header = super_packet(4, 2);
  long_tcp_header.put8(kTcp + 12, 15 << 4);
  Bytes no_payload = super_packet(0, 20);
  Bytes no_segment_size = super_packet(40, 20);
  no_segment_size.put_host16(4, 0);
  for (const Bytes& bytes :
       {short_ip_header, long_tcp_header, short_tcp_header, no_payload, no_segment_size}) {
    EXPECT_EQ(parse_frame(bytes).status().code(), StatusCode::CorruptData);
  }
  long_ip_header.resize(kVnetHeaderBytes + 40);
  long_ip_header.put16(kVnetHeaderBytes + 2, 40);
  EXPECT_EQ(parse_frame(long_ip_header).status().code(), StatusCode::CorruptData);
}

TEST(WanPacket, ParseOtherProtocolsAreUnsupported) {
  Bytes ipv6 = super_packet(40, 0);
  ipv6.put8(kVnetHeaderBytes, 0x60);
  Bytes udp_gso = super_packet(40, 20);
  udp_gso.put8(1, 5);
  Bytes not_tcp = super_packet(40, 20);
  not_tcp.put8(kVnetHeaderBytes + 9, 17);
  for (const Bytes& bytes : {ipv6, udp_gso, not_tcp}) {
    EXPECT_EQ(parse_frame(bytes).status().code(), StatusCode::Unsupported);
  }
}

TEST(WanPacket, MakeResetTakesTheSegmentsPlaceInTheStream) {
  const Bytes packet = super_packet(3500, 1000, kAck | kPsh);
  const auto frame = parse_frame(packet);
  ASSERT_TRUE(frame.is_ok());
  ASSERT_TRUE(frame->resettable);
  const auto made = make_reset(*frame, 2);
  const Bytes reset(made.begin(), made.end());
  ASSERT_EQ(reset.size(), kTcp + 20);
  EXPECT_EQ(reset.u8(1), 0);  // no GSO
  EXPECT_EQ(reset.u16(kVnetHeaderBytes + 2), 40);
  EXPECT_EQ(ones_sum(reset, kVnetHeaderBytes, kTcp), 0xffff);
  EXPECT_EQ(reset.u32(kTcp + 4), packet.u32(kTcp + 4) + 2000);
  EXPECT_EQ(reset.u32(kTcp + 8), packet.u32(kTcp + 8));
  EXPECT_EQ(reset.u8(kTcp + 12), 5 << 4);
  EXPECT_EQ(reset.u8(kTcp + 13), kRst | kAck);
  EXPECT_EQ(reset.u16(kTcp + 14), 0);
  // What the receiving kernel completes: the pseudo header's sum.
  EXPECT_EQ(reset.u16(kTcp + 16), ones_sum(reset, kVnetHeaderBytes + 12, kTcp, 6 + 20));
}

TEST(WanPacket, ParseOnlyEstablishedTcpCanBeReset) {
  for (const std::uint8_t flags : {kSyn, static_cast<std::uint8_t>(kSyn | kAck), kRst}) {
    const Bytes packet = super_packet(0, 0, flags);
    const auto frame = parse_frame(packet);
    ASSERT_TRUE(frame.is_ok());
    EXPECT_FALSE(frame->resettable) << int{flags};
  }
  Bytes packet = super_packet(100, 0, kAck);
  EXPECT_TRUE(parse_frame(packet)->resettable);
  packet.put8(kVnetHeaderBytes + 9, 17);  // UDP
  EXPECT_FALSE(parse_frame(packet)->resettable);
}

}  // namespace
}  // namespace geocomm::emulator
