// What random schedules of two Muxes are made of: operations and their chunks, sinks that check what arrives,
// connections that can be cut, and the two ends.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/mux/mux.h"
#include "transport_fixture.h"

namespace geocomm::transport::testing::schedules {

inline constexpr std::uint32_t kStreams = 4;              // the first one is the control stream
inline constexpr std::uint64_t kCreditBytes = 24 * 4096;  // two dozen small chunks
inline constexpr std::uint32_t kMostBytes = 2 * kMaxSegmentBytes + 100'000;

inline const std::vector<std::byte>& noise() {
  static const std::vector<std::byte> bytes = pattern(kMostBytes + 100'003, 1);
  return bytes;
}

// A chunk as it is sent and must arrive.
struct Piece {
  std::uint32_t bytes = 0;
  std::uint32_t offset = 0;  // in noise()
  bool sent = false;
  int callbacks = 0;
  const std::byte* data() const { return noise().data() + offset; }
};

// An operation in one direction.
struct Operation {
  std::vector<Piece> pieces;
  bool posted = false;
  bool cancelled_there = false;  // by the receiver
  bool cancelled_here = false;   // by the sender
};

class PieceSink final : public ReceiveSink {
 public:
  PieceSink(std::vector<Piece> pieces, std::string& trouble)
      : pieces_(std::move(pieces)), memory_(pieces_.size()), arrived_(pieces_.size()), trouble_(trouble) {}

  core::Result<std::span<std::byte>> place(std::uint32_t chunk, std::size_t bytes) override {
    memory_[chunk].resize(bytes);
    return std::span(memory_[chunk]);
  }
  void on_chunk(std::uint32_t chunk) override {
    std::vector<std::byte>& memory = memory_[chunk];
    const bool right = memory.size() == pieces_[chunk].bytes &&
                       std::equal(memory.begin(), memory.end(), pieces_[chunk].data());
    if (!right) trouble_ = "a chunk arrived with other bytes than it was sent with";
    if (arrived_[chunk]) trouble_ = "a chunk arrived twice";
    arrived_[chunk] = true;
    std::fill(memory.begin(), memory.end(), kTaken);  // the user's from now on
  }
  Status on_mismatch(std::uint64_t, std::uint32_t) override {
    trouble_ = "mismatch";
    return {StatusCode::Internal, "mismatch"};
  }
  void on_error(const Status&) override { failed_ = true; }

  bool complete() const {
    return std::all_of(arrived_.begin(), arrived_.end(), [](bool one) { return one; });
  }
  bool failed() const { return failed_; }
  // Nothing was written to a chunk after it was complete.
  bool untouched() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const auto& memory = memory_[i];
      if (arrived_[i] && std::any_of(memory.begin(), memory.end(), [](std::byte b) { return b != kTaken; }))
        return false;
    }
    return true;
  }

 private:
  static constexpr std::byte kTaken{0xEE};

  const std::vector<Piece> pieces_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<bool> arrived_;
  std::string& trouble_;
  bool failed_ = false;
};

struct Packet {
  WireHeader header{};
  OutSegment segment{};
  bool written = false;
};

// What travels to one end over one connection.
struct Pipe {
  std::deque<Packet> packets;
  std::optional<SegmentCopy> copy;  // of the first one, half of which is there
};

struct Connection {
  std::uint32_t generation = 1;
  bool cut = false;                      // what is sent over it is lost
  std::array<bool, 2> open{true, true};  // an end that has noticed has it no more
  std::array<Pipe, 2> to;
};

struct End {
  core::BufferPool sent;
  core::BufferPool received;
  ClosedGroups closed;
  bool woken = false;
  std::map<OpKey, Operation> operations;              // that it sends
  std::map<OpKey, std::shared_ptr<PieceSink>> sinks;  // of what it receives
  Mux mux{kCreditBytes, received, closed, [this] { woken = true; }};
};

}  // namespace geocomm::transport::testing::schedules
