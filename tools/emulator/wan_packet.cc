#include "emulator/wan_packet.h"

#include <algorithm>
#include <cstring>

#include "core/str.h"

namespace geocomm::emulator {
namespace {

using core::Result;
using core::Status;
using core::StatusCode;

constexpr std::size_t kMinIpHeaderBytes = 20;
constexpr std::size_t kMinTcpHeaderBytes = 20;
constexpr std::uint8_t kProtocolTcp = 6;

// Offsets in the IPv4 and in the TCP header.
constexpr std::size_t kIpTotalLength = 2, kIpId = 4, kIpProtocol = 9, kIpChecksum = 10, kIpSource = 12,
                      kIpDestination = 16;
constexpr std::size_t kTcpSequence = 4, kTcpDataOffset = 12, kTcpFlags = 13, kTcpWindow = 14,
                      kTcpChecksum = 16, kTcpUrgent = 18;
constexpr std::uint8_t kFin = 0x01, kSyn = 0x02, kRst = 0x04, kPsh = 0x08, kAck = 0x10, kCwr = 0x80;

// struct virtio_net_hdr of <linux/virtio_net.h>, which C++ cannot include: it names a member `class`. Host
// byte order.
struct VnetHeader {
  std::uint8_t flags;
  std::uint8_t gso_type;
  std::uint16_t header_bytes;
  std::uint16_t gso_size;
  std::uint16_t csum_start;
  std::uint16_t csum_offset;
};
static_assert(sizeof(VnetHeader) == kVnetHeaderBytes);
constexpr std::uint8_t kNeedsCsum = 1;
constexpr std::uint8_t kGsoNone = 0, kGsoTcp4 = 1, kGsoEcn = 0x80;

std::uint8_t load8(const std::byte* at) {
  return std::to_integer<std::uint8_t>(*at);
}
std::uint16_t load16(const std::byte* at) {
  return static_cast<std::uint16_t>(load8(at) << 8 | load8(at + 1));
}
std::uint32_t load32(const std::byte* at) {
  return std::uint32_t{load16(at)} << 16 | load16(at + 2);
}
void store16(std::byte* at, std::uint16_t value) {
  at[0] = static_cast<std::byte>(value >> 8);
  at[1] = static_cast<std::byte>(value & 0xff);
}
void store32(std::byte* at, std::uint32_t value) {
  store16(at, static_cast<std::uint16_t>(value >> 16));
  store16(at + 2, static_cast<std::uint16_t>(value & 0xffff));
}

// One's complement sum of `bytes` (an even count) as 16-bit big-endian words, folded, not complemented.
std::uint16_t folded_sum(std::span<const std::byte> bytes, std::uint32_t start = 0) {
  std::uint32_t sum = start;
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) sum += load16(bytes.data() + i);
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(sum);
}

VnetHeader load_vnet_header(std::span<const std::byte> bytes) {
  VnetHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return header;
}

}  // namespace

std::size_t Frame::run_payload_bytes(std::size_t first, std::size_t count) const {
  const std::size_t begin = first * segment_payload_bytes;
  return std::min(payload_bytes, begin + count * segment_payload_bytes) - begin;
}

std::size_t Frame::run_wire_bytes(std::size_t first, std::size_t count) const {
  return run_payload_bytes(first, count) + count * header_bytes;
}

Result<Frame> parse_frame(std::span<const std::byte> bytes) {
  if (bytes.size() < kVnetHeaderBytes + kMinIpHeaderBytes) {
    return core::corrupt("frame of ", bytes.size(), " bytes has no room for headers");
  }
  const VnetHeader vnet = load_vnet_header(bytes);
  const std::span<const std::byte> packet = bytes.subspan(kVnetHeaderBytes);
  const std::byte* ip = packet.data();
  if (load8(ip) >> 4 != 4) return Status(StatusCode::Unsupported, "packet is not IPv4");

  Frame frame;
  frame.bytes = bytes;
  frame.ip_header_bytes = std::size_t{load8(ip)} % 16 * 4;
  if (frame.ip_header_bytes < kMinIpHeaderBytes || frame.ip_header_bytes > packet.size()) {
    return core::corrupt("IPv4 header length ", frame.ip_header_bytes);
  }
  if (load16(ip + kIpTotalLength) != packet.size()) {
    return core::corrupt("IPv4 total length ", load16(ip + kIpTotalLength), ", read ", packet.size(),
                         " bytes");
  }
  frame.dst_address = load32(ip + kIpDestination);
  if (load8(ip + kIpProtocol) == kProtocolTcp &&
      packet.size() - frame.ip_header_bytes >= kMinTcpHeaderBytes) {
    frame.resettable = (load8(ip + frame.ip_header_bytes + kTcpFlags) & (kSyn | kRst)) == 0;
  }

  if (vnet.gso_type == kGsoNone) {
    frame.header_bytes = frame.ip_header_bytes;
    frame.payload_bytes = frame.segment_payload_bytes = packet.size() - frame.header_bytes;
    return frame;
  }
  if ((vnet.gso_type & ~kGsoEcn) != kGsoTcp4 || load8(ip + kIpProtocol) != kProtocolTcp) {
    return Status(StatusCode::Unsupported, core::str("GSO type ", int{vnet.gso_type}, " was not asked for"));
  }
  if (packet.size() - frame.ip_header_bytes < kMinTcpHeaderBytes) {
    return core::corrupt("no room for a TCP header");
  }
  const std::size_t tcp_header_bytes =
      std::size_t{load8(ip + frame.ip_header_bytes + kTcpDataOffset)} / 16 * 4;
  if (tcp_header_bytes < kMinTcpHeaderBytes || tcp_header_bytes > packet.size() - frame.ip_header_bytes) {
    return core::corrupt("TCP header length ", tcp_header_bytes);
  }
  frame.header_bytes = frame.ip_header_bytes + tcp_header_bytes;
  frame.payload_bytes = packet.size() - frame.header_bytes;
  frame.segment_payload_bytes = vnet.gso_size;
  if (frame.segment_payload_bytes == 0 || frame.payload_bytes == 0) {
    return core::corrupt("GSO packet without a segment size or without payload");
  }
  frame.segments = (frame.payload_bytes + frame.segment_payload_bytes - 1) / frame.segment_payload_bytes;
  return frame;
}

namespace {

void store_ip_lengths(std::byte* ip, std::size_t ip_header_bytes, std::size_t total_bytes,
                      std::size_t id_step) {
  store16(ip + kIpTotalLength, static_cast<std::uint16_t>(total_bytes));
  store16(ip + kIpId, static_cast<std::uint16_t>(load16(ip + kIpId) + id_step));
  store16(ip + kIpChecksum, 0);
  store16(ip + kIpChecksum, static_cast<std::uint16_t>(~folded_sum({ip, ip_header_bytes})));
}

// With NEEDS_CSUM the field holds the sum of the pseudo header, which the receiving kernel trusts and
// completes.
void store_pseudo_sum(const std::byte* ip, std::byte* tcp, std::size_t tcp_bytes) {
  store16(tcp + kTcpChecksum,
          folded_sum({ip + kIpSource, 8}, kProtocolTcp + static_cast<std::uint32_t>(tcp_bytes)));
}

}  // namespace

std::vector<std::byte> extract_run(const Frame& frame, std::size_t first, std::size_t count) {
  if (first == 0 && count == frame.segments) return {frame.bytes.begin(), frame.bytes.end()};

  const std::size_t payload = frame.run_payload_bytes(first, count);
  const std::size_t payload_begin =
      kVnetHeaderBytes + frame.header_bytes + first * frame.segment_payload_bytes;
  const auto headers = frame.bytes.first(kVnetHeaderBytes + frame.header_bytes);
  const auto body = frame.bytes.subspan(payload_begin, payload);
  std::vector<std::byte> out;
  out.reserve(headers.size() + body.size());
  out.insert(out.end(), headers.begin(), headers.end());
  out.insert(out.end(), body.begin(), body.end());

  std::byte* ip = out.data() + kVnetHeaderBytes;
  store_ip_lengths(ip, frame.ip_header_bytes, frame.header_bytes + payload, first);

  std::byte* tcp = ip + frame.ip_header_bytes;
  const std::size_t tcp_bytes = frame.header_bytes - frame.ip_header_bytes + payload;
  store32(tcp + kTcpSequence,
          load32(tcp + kTcpSequence) + static_cast<std::uint32_t>(first * frame.segment_payload_bytes));
  std::uint8_t flags = load8(tcp + kTcpFlags);
  if (first > 0) flags &= static_cast<std::uint8_t>(~kCwr);
  if (first + count < frame.segments) flags &= static_cast<std::uint8_t>(~(kFin | kPsh));
  tcp[kTcpFlags] = static_cast<std::byte>(flags);
  store_pseudo_sum(ip, tcp, tcp_bytes);

  VnetHeader vnet = load_vnet_header(frame.bytes);
  vnet.flags = kNeedsCsum;
  vnet.csum_start = static_cast<std::uint16_t>(frame.ip_header_bytes);
  vnet.csum_offset = kTcpChecksum;
  vnet.header_bytes = static_cast<std::uint16_t>(frame.header_bytes);
  if (count == 1) {
    vnet.gso_type = kGsoNone;
    vnet.gso_size = 0;
  } else {
    // The ECN bit says "CWR goes with the first segment only"; it must agree with the flag that is left.
    vnet.gso_type = kGsoTcp4;
    if ((flags & kCwr) != 0) vnet.gso_type |= kGsoEcn;
  }
  std::memcpy(out.data(), &vnet, sizeof(vnet));
  return out;
}

std::vector<std::byte> make_reset(const Frame& frame, std::size_t segment) {
  const std::size_t headers = kVnetHeaderBytes + frame.ip_header_bytes + kMinTcpHeaderBytes;
  std::vector<std::byte> out(frame.bytes.begin(), frame.bytes.begin() + static_cast<std::ptrdiff_t>(headers));
  std::byte* ip = out.data() + kVnetHeaderBytes;
  store_ip_lengths(ip, frame.ip_header_bytes, frame.ip_header_bytes + kMinTcpHeaderBytes, segment);
  std::byte* tcp = ip + frame.ip_header_bytes;
  store32(tcp + kTcpSequence,
          load32(tcp + kTcpSequence) + static_cast<std::uint32_t>(segment * frame.segment_payload_bytes));
  store16(tcp + kTcpDataOffset, kMinTcpHeaderBytes / 4 << 12 | kRst | kAck);
  store16(tcp + kTcpWindow, 0);
  store16(tcp + kTcpUrgent, 0);
  store_pseudo_sum(ip, tcp, kMinTcpHeaderBytes);
  VnetHeader vnet{};
  vnet.flags = kNeedsCsum;
  vnet.csum_start = static_cast<std::uint16_t>(frame.ip_header_bytes);
  vnet.csum_offset = kTcpChecksum;
  std::memcpy(out.data(), &vnet, sizeof(vnet));
  return out;
}

}  // namespace geocomm::emulator
