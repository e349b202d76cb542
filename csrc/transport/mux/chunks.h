// What a channel is given to send, and who takes what it receives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/buffer.h"
#include "core/status.h"
#include "transport/wire/ids.h"

namespace geocomm::transport {

struct OutgoingChunk {
  OpKey key;
  std::uint64_t descriptor = 0;   // compared by the receiver with its own (ReceiveSink::on_mismatch)
  std::uint32_t chunk = 0;        // < chunk_count
  std::uint32_t chunk_count = 1;  // chunks that this process sends to this peer in this operation
  core::Buffer payload;           // at most kMaxChunkBytes; may be empty; shared, must not change any more
  bool write_here = false;        // see Channel::send()
  bool outlives_group = false;    // goes out also if its group is closed meanwhile: it tells the peer why
};

// What becomes of a group's queued chunks when it ends.
enum class QueuedChunks : std::uint8_t {
  Send,  // they go out as ever: the peer may need them
  Drop   // but for those with OutgoingChunk::outlives_group
};

// Takes what a peer sends for one operation. Called from the IO thread (or the one that runs its loop: see
// send()), from inside post_receive() for what had come before, or from inside Endpoint::close_group() and
// abort(); never concurrently for one sink. Must
// not block, nor call the channel or the endpoint except Channel::send(). The channel shares ownership until
// the last chunk or an error, so a sink owns (keeps alive) the memory that place() returns. Several chunks
// are filled at the same time, by different threads: their memory must not overlap.
class ReceiveSink {
 public:
  virtual ~ReceiveSink() = default;
  // Where chunk `chunk` of `chunk_bytes` bytes goes: exactly that many bytes, valid until on_chunk() or as
  // long as the sink lives. An error (say, a size that cannot be) fails the operation with that status.
  virtual core::Result<std::span<std::byte>> place(std::uint32_t chunk, std::size_t chunk_bytes) = 0;
  // The chunk is complete in the memory that place() gave.
  virtual void on_chunk(std::uint32_t chunk) = 0;
  // The peer's operation of this key is another one. Makes the status that on_error() then gets.
  virtual core::Status on_mismatch(std::uint64_t descriptor, std::uint32_t chunk_count) = 0;
  // At most once, and nothing after it.
  virtual void on_error(const core::Status& status) = 0;
};

}  // namespace geocomm::transport
