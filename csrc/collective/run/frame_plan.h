// The frames of a reduction over the sites: what this rank does about each chunk, and the memory of what it
// sends and of what comes. Who makes frames and uses up those that come: the host, or an accelerator, on
// which the data is, and which reaches that memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "codec/frames/codec.h"
#include "codec/spec/codec_spec.h"
#include "collective/layout/reduce_plan.h"
#include "collective/run/arrival_room.h"
#include "core/buffer.h"
#include "core/deadline.h"
#include "core/dtype.h"
#include "core/status.h"

namespace geocomm::collective {

// The steps of one chunk, in this order:
//   1. `contributes`: its elements are encoded to `contribution` (options: contribution_options)
//   2. the exchange sends that, and fills `frames`
//   3. `reduces`: the sum in order of the sites of the decoded frames, of this rank's own elements as they
//      are where its own entry of `frames` is empty; divided by `divisor`
//   4. `owns`: that sum, Float32, is encoded to `result` (options: result_options); the exchange sends it
//   5. `receives`: the decoded `result` where there is one, else the sum of step 3, is the chunk's result,
//      rounded to the dtype
// `adds`, of the host alone: this rank makes the sum of its region as in step 3, undivided, from the `frames`
// of that region, and sends it to the chunk's owner, encoded as in step 4.
// A frame of codec None may come in place of any.
struct FrameChunk : PlannedChunk {
  std::uint32_t group = 0;
  bool contributes = false;
  bool reduces = false;
  bool adds = false;
  bool owns = false;
  bool receives = false;
  bool has_result = false;  // made by this rank, or coming
  codec::CompressOptions contribution_options;
  codec::CompressOptions result_options;
  // Of an accelerator: room for compress_bound(). Of frames that have their room on arrival: what they have,
  // once they are there.
  core::Buffer contribution;
  std::vector<core::Buffer> frames;  // by site, where `reduces` or `adds`; sizes are set when they come
  core::Buffer result;               // of Float32, where `has_result`
};
struct FramePlan {
  codec::CodecSpec codec;
  int divisor = 1;
  std::size_t own_site = 0;
  std::vector<FrameChunk> chunks;
  // Of an accelerator. Chunks are made, and wait for what comes, by groups, one after the other: one group's
  // frames are on their way while those of the next are made.
  std::uint32_t groups = 1;
  // Where frames that come are put, as they come; nullptr: they have their rooms in the chunks before.
  std::shared_ptr<ArrivalRoom> arrivals;
};

struct FrameOptions {
  // Of this rank's elements, a group; there are eight at most. nullptr: one.
  std::function<std::size_t(const codec::CodecSpec&)> group_bytes;
  // Frames that come take room of their own size, as they come, in place of the worst case from the
  // beginning.
  bool places_on_arrival = false;
};
void cut_groups(FramePlan& plan, core::DType dtype, const FrameOptions& options);
// The same, and takes the rooms of all frames in one piece of `memory`, which is whole as long as somebody
// holds one of them. Throws std::bad_alloc.
void cut_groups_and_rooms(FramePlan& plan, core::DType dtype, const FrameOptions& options,
                          core::BufferPool& memory);

// What the exchange tells an accelerator, which writes frames without crcs (codec::seal_frame()).
class FrameMaker {
 public:
  virtual ~FrameMaker() = default;
  // Blocks until step 1 of the first `groups` is done. On the thread that runs the exchange, for one group
  // more at a time; not at all where there is but one, whose step 1 is done before.
  virtual core::Status wait_for_contributions(std::uint32_t groups, core::Deadline deadline) = 0;
  // `frames` of all chunks of the first `groups` are there: step 3 may begin. On any thread, several at once
  // and in any order; must not block.
  virtual void contributions_arrived(std::uint32_t groups) = 0;
  // Blocks until the results that this rank owns in the first `groups` are made. On the thread that runs the
  // exchange, after contributions_arrived() of as many.
  virtual core::Status wait_for_results(std::uint32_t groups, core::Deadline deadline) = 0;
};

// The exchange of a reduction for an accelerator, which has not begun.
struct FrameExchange {
  std::shared_ptr<const FramePlan> plan;  // shared with channels as long as they can write to its frames
  // Once; the maker outlives it. Returns when `frames` and the results of others have come; they were checked
  // against crc and header, but may still not decode.
  std::function<core::Status(FrameMaker& maker)> run;
};

}  // namespace geocomm::collective
