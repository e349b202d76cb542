// The WAN stage of every collective: ranks of different sites reduce stripes together, or move bytes.
//
// One Exchange per process group and rank. Calls block their thread until done, failed, or the deadline; many
// may run at once (each on its own thread) and may be issued in any order, since messages are tagged with the
// group and the operation's number. `seq` must be the same on all ranks for the same operation, and used
// once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "codec/frames/codec.h"
#include "codec/spec/codec_spec.h"
#include "collective/layout/layout.h"
#include "collective/layout/op_kind.h"
#include "collective/layout/topology.h"
#include "collective/policy/rate_meter.h"
#include "collective/policy/wan_policy.h"
#include "collective/run/frame_plan.h"
#include "collective/run/op_log.h"
#include "collective/sums/feedback.h"
#include "core/buffer.h"
#include "core/deadline.h"
#include "core/dtype.h"
#include "core/executor.h"
#include "core/status.h"
#include "transport/channel.h"

namespace geocomm::collective {

// Data of a reduction that is still on its way to the host, and that goes back as it becomes the result.
// Bytes are counted over the stripes, in their order.
class DataFlow {
 public:
  virtual ~DataFlow() = default;
  // Blocks until the first `bytes` are there; how many are by then. On the thread that called reduce().
  virtual core::Result<std::size_t> wait_for(std::size_t bytes, core::Deadline deadline) = 0;
  // Those from `begin` to `end` are the result. On any thread, in any order; must not block.
  virtual void done(std::size_t begin, std::size_t end) = 0;
};

// One operation, as all its ranks must agree on it. A peer whose operation of the same number differs in
// kind, dtype, reduction, codec or element count gets, and gives, InvalidArgument that names both.
struct OpContext {
  OpKind kind = OpKind::AllReduce;
  std::uint64_t seq = 0;  // number in the group; SendRecv has numbers of its own (p2p_seq())
  std::uint64_t elements =
      0;  // of the whole operation, as every rank knows it (0 where ranks may differ, as in all-to-all)
  core::DType dtype = core::DType::UInt8;
  core::Deadline deadline;
  std::shared_ptr<const WanPolicy> policy = nullptr;  // null: the one in force when the call begins
  std::optional<CallerCodec> caller = std::nullopt;   // of a Sum or Avg of Float32, Float16 or BFloat16
  std::shared_ptr<OpRecord> record = nullptr;         // of the call; null: nobody looks
  std::shared_ptr<void>
      keep_alive;  // owns the memory behind all spans; held until no IO can touch them any more: until the
                   // call returns or, after a failed move(), until the IO thread lets go of it
  DataFlow* flow = nullptr;  // of reduce(), which it outlives; null: all data is there
};

// Numbers for point-to-point messages: apart from collectives, per tag in order of issue. counter < 2^24.
std::uint64_t p2p_seq(std::int32_t tag, std::uint32_t counter);

// A stripe in which this rank takes part, with its data: on entry this site's partial result, on exit (for
// receivers) the result.
struct StripeData {
  Stripe stripe;
  std::vector<bool> receives;  // per site: whether its rank of the stripe wants the result
  std::span<std::byte> data;   // stripe.range.size() elements
  // What was lost before, and where what is lost now goes; only with OpContext::caller. The stripes of an
  // operation have scales or none has. On error `data` and the new residual are unspecified.
  FeedbackSpans feedback = {};
};

struct SendPiece {
  int rank = 0;
  std::span<const std::byte> data;
};
struct ReceivePiece {
  int rank = 0;
  std::span<std::byte> data;
  // Where the data goes on to as it comes: behind the SendPieces to those ranks, in the order of the
  // receives.
  std::vector<int> forward_to = {};
  bool relayed = false;  // `rank` itself waits for another
};

// Counters since the start of the process group. Bytes are payloads of WAN messages: raw = the elements they
// stand for.
struct ExchangeStats {
  std::uint64_t operations = 0;
  std::uint64_t raw_bytes_sent = 0;
  std::uint64_t wire_bytes_sent = 0;
  std::uint64_t raw_bytes_received = 0;
  std::uint64_t wire_bytes_received = 0;
  std::uint64_t relayed_bytes = 0;  // of the wire bytes sent: frames of one other site for another
  // Of reductions, in ns, all threads together: frames made and handed over; decoded and summed. Not what
  // kernels on a device take.
  std::uint64_t encode_time = 0;
  std::uint64_t decode_time = 0;
};

struct ExchangeConfig {
  std::uint64_t group = 0;  // random, shared by the ranks of the group
  Topology topology;
  // The channel to a group rank (never this one), connected on demand. Thread-safe.
  std::function<core::Result<std::shared_ptr<transport::Channel>>(int rank)> channel_to;
  // The first one; null: everything goes uncompressed, over LinkMatrix::assumed().
  std::shared_ptr<const WanPolicy> policy = nullptr;
  // Operations below it (raw, whole operation) go uncompressed, whatever codec their caller brings.
  std::size_t min_compress_bytes = 64 * 1024;
  std::size_t chunk_bytes = 1024 * 1024;  // raw bytes of a pipeline chunk
  core::ThreadPool* pool = nullptr;       // encode, decode, reduce; outlives the Exchange
  core::BufferPool* buffers = nullptr;    // outlives the Exchange
};

class Exchange {
 public:
  static core::Result<std::unique_ptr<Exchange>> create(ExchangeConfig config);
  virtual ~Exchange() = default;

  // Reduces `stripes` (in the order of the layout) over the sites. All receivers end with bit-identical
  // results: the sum, in site order, of the decoded bytes that everyone got. 16-bit floats accumulate in
  // float and round once; Float64 in double; Avg divides the sum once by topology.size(). Floats take Sum,
  // Avg, Product, Min, Max; integers all but Avg (and wrap around); Bool takes Sum and Max as or, Product and
  // Min as and, and the bitwise ones. Cost per rank, S = compressed bytes of its stripes, N sites:
  // broadcast-all (N-1)S bytes out, one latency; owner-reduces 2S(N-1)/N bytes out, two latencies, one
  // requantization; the policy's cost model chooses. Where it relays between two sites, the stripe's rank at
  // the site between them passes frames on unread, out of memory of its own: at most what the two send each
  // other in the operation.
  virtual core::Status reduce(const OpContext& context, ReduceOp op, std::span<StripeData> stripes) = 0;

  // The same for data on an accelerator: stripes whose data and residuals nobody looks at, and the memory of
  // all frames from `memory`, in one piece; Unsupported: the operation is exact, or `memory` has no more
  // (Exchange::reduce() on host memory carries it out). Residuals are the business of whoever makes the
  // frames; of the caller's report only `wire_bytes` is filled in. Ranks that call this and ranks that call
  // reduce() work together.
  virtual core::Result<FrameExchange> plan_frames(const OpContext& context, ReduceOp op,
                                                  std::span<const StripeData> stripes,
                                                  core::BufferPool& memory,
                                                  const FrameOptions& options = {}) = 0;

  // Sends and receives bytes, exactly, all at once. The pieces between two ranks are matched in order, and
  // the sizes must agree. Pieces of this rank itself are not allowed. What is forwarded is copied: at most as
  // much memory as it has bytes.
  virtual core::Status move(const OpContext& context, std::span<const SendPiece> sends,
                            std::span<const ReceivePiece> receives) = 0;
  // The same in two steps, for pieces that are not forwarded. Begins the move, and waits for no peer; returns
  // what ends it, which is to be called once, on any thread, and blocks until done, failed, or the deadline.
  // `when_over` runs once, when that would not have to wait for any peer: on any thread, also inside either
  // step; it neither blocks nor calls the Exchange.
  using MoveEnd = std::function<core::Status()>;
  virtual core::Result<MoveEnd> begin_move(const OpContext& context, std::span<const SendPiece> sends,
                                           std::span<const ReceivePiece> receives,
                                           std::function<void()> when_over) = 0;

  // What operations follow that bring no policy of their own: at first the config's. InvalidArgument: a
  // policy for another number of sites.
  virtual std::shared_ptr<const WanPolicy> policy() const = 0;
  virtual core::Status set_policy(std::shared_ptr<const WanPolicy> policy) = 0;

  // Fails everything in flight and to come with `why`. The peers learn it by their own deadline or by the
  // lost channel.
  virtual void abort(const core::Status& why) = 0;
  virtual ExchangeStats stats() const = 0;
  // Rates from the peers since the last call.
  virtual std::vector<PeerRate> take_rates() = 0;
  virtual const Topology& topology() const = 0;
  virtual std::uint64_t group() const = 0;
};

}  // namespace geocomm::collective
