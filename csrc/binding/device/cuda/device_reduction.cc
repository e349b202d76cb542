#include "binding/device/device_reduction.h"

#include <new>
#include <set>
#include <string>
#include <utility>

#include "binding/device/cuda/kernel_images.h"
#include "codec/cuda/cuda_codec.h"
#include "collective/cuda/batched_reduction.h"
#include "collective/cuda/device_sums.h"
#include "core/str.h"

namespace geocomm::binding {

using codec::Accumulate;
using collective::FrameChunk;
using collective::cuda::SumPiece;
using core::DType;
using core::Status;
using core::StatusCode;

// The device's side, all chunks at once.
class DeviceReduction::Batched {
 public:
  Batched(const std::shared_ptr<const collective::FramePlan>& plan, DType dtype,
          std::vector<std::span<std::byte>> data, std::optional<collective::cuda::DeviceFeedback> feedback,
          const at::Device& device, StreamDriver::Stream stream, core::BufferPool& pinned)
      : stream_(static_cast<codec::cuda::Stream>(stream)),
        reduction_(plan, dtype, std::move(data), std::move(feedback)) {
    pinned_ = pinned.acquire(reduction_.pinned_bytes());
    workspace_ = at::empty({static_cast<std::int64_t>(reduction_.device_bytes())},
                           at::TensorOptions().dtype(at::kByte).device(device));
    throw_if_error(reduction_.take_memory(static_cast<std::byte*>(workspace_.data_ptr()), pinned_.data()));
  }

  void enqueue_contributions(std::uint32_t group) const {
    throw_if_error(reduction_.enqueue_contributions(group, stream_));
  }
  void enqueue_sums(std::uint32_t group) const { throw_if_error(reduction_.enqueue_sums(group, stream_)); }
  void enqueue_results() const { throw_if_error(reduction_.enqueue_results(stream_)); }
  void arrived(std::uint32_t groups) { reduction_.arrived(groups); }
  void exchanged() { reduction_.exchanged(); }
  const collective::cuda::BatchedReduction& reduction() const { return reduction_; }

 private:
  const codec::cuda::Stream stream_;
  collective::cuda::BatchedReduction reduction_;
  core::Buffer pinned_;
  at::Tensor workspace_;
};

// The same chunk by chunk: one workspace and one word each for sizes and verdicts, used in order of the
// stream.
class DeviceReduction::Kernels {
 public:
  Kernels(const collective::FramePlan& plan, DType dtype, const at::Device& device,
          StreamDriver::Stream stream, core::BufferPool& pinned)
      : spec_(plan.codec), stream_(static_cast<codec::cuda::Stream>(stream)), device_(device) {
    std::size_t workspace = 0;
    for (const FrameChunk& chunk : plan.chunks) {
      for (const DType type : {dtype, DType::Float32}) {
        workspace = std::max(workspace, codec::cuda::workspace_bytes(spec_, type, chunk.range.size(),
                                                                     codec::cuda::Framing::SingleFrame));
      }
      words_ += 1 + chunk.frames.size();
    }
    const auto bytes = at::TensorOptions().dtype(at::kByte).device(device);
    workspace_ = at::empty({static_cast<std::int64_t>(workspace)}, bytes);
    size_ = at::empty({8}, bytes);
    verdicts_ = pinned.acquire(words_ * sizeof(std::uint64_t));
    words_ = 0;
  }

  void encode(DType dtype, const std::byte* elements, const FrameChunk& chunk,
              const codec::CompressOptions& options, const core::Buffer& frame) {
    codec::cuda::EncodeOptions encoding;
    encoding.seed = options.seed;
    encoding.first_element = options.first_element;
    encoding.framing = codec::cuda::Framing::SingleFrame;
    encoding.checksums = codec::cuda::Checksums::Host;
    throw_if_error(codec::cuda::compress_payload(spec_, dtype, elements, chunk.range.size(), frame.room(),
                                                 encoding, workspace(), size_word(), stream_));
  }

  // Of the dtype's own kind if not to float.
  void decode(DType dtype, const core::Buffer& frame, const FrameChunk& chunk, codec::Sink sink,
              std::byte* dst) {
    codec::cuda::DecodeOptions decoding;
    decoding.framing = codec::cuda::Framing::SingleFrame;
    decoding.checksums = codec::cuda::Checksums::Host;
    decoding.may_be_longer = true;
    throw_if_error(codec::cuda::decompress_payload(spec_, dtype, frame.room(), dst, chunk.range.size(), sink,
                                                   decoding, workspace(), next_verdict(), stream_));
  }

  void start_over() { words_ = 0; }
  codec::cuda::Stream stream() const { return stream_; }
  at::Tensor floats(std::uint64_t count) const {
    return at::empty({static_cast<std::int64_t>(count)},
                     at::TensorOptions().dtype(at::kFloat).device(device_));
  }

  // Once the stream has passed: whether all that was received decoded.
  Status verdict() const {
    const auto* words = reinterpret_cast<const std::uint64_t*>(verdicts_.data());
    for (std::size_t i = 0; i < words_; ++i) {
      if (Status status = codec::cuda::to_status(words[i]); !status.is_ok()) return status;
    }
    return Status::ok();
  }

 private:
  std::span<std::byte> workspace() const {
    return {static_cast<std::byte*>(workspace_.data_ptr()), static_cast<std::size_t>(workspace_.numel())};
  }
  std::uint64_t* size_word() const { return static_cast<std::uint64_t*>(size_.data_ptr()); }
  std::uint64_t* next_verdict() { return reinterpret_cast<std::uint64_t*>(verdicts_.data()) + words_++; }

  const codec::CodecSpec spec_;
  const codec::cuda::Stream stream_;
  const at::Device device_;
  at::Tensor workspace_;
  at::Tensor size_;
  core::Buffer verdicts_;
  std::size_t words_ = 0;
};

std::shared_ptr<DeviceReduction> DeviceReduction::create(collective::Exchange& exchange,
                                                         const collective::OpContext& context,
                                                         collective::ReduceOp op,
                                                         std::vector<collective::StripeData> stripes,
                                                         std::optional<ResidualUse> residual) {
  StreamOperation* const stream = StreamOperation::current();
  const bool is_batched = uses_batches();
  if (stream == nullptr || (residual && !is_batched)) return nullptr;
  const collective::FrameOptions batches{collective::cuda::group_bytes, true};
  auto frames = exchange.plan_frames(context, op, stripes, stream->pinned(),
                                     is_batched ? batches : collective::FrameOptions{});
  if (!frames.is_ok()) {
    if (frames.status().code() == StatusCode::Unsupported) return nullptr;
    throw_if_error(frames.status());
  }
  const codec::CodecSpec& codec = frames->plan->codec;
  if (!codec::cuda::is_supported(codec, context.dtype)) return nullptr;
  // Frame by frame its many kernels would take longer than the way through the host.
  if (!is_batched && codec.id == codec::CodecId::BitPlanes) return nullptr;
  std::uint64_t bytes = 0;
  for (const collective::StripeData& stripe : stripes) bytes += stripe.data.size();
  if (is_batched && !places().is_on_device(codec.to_string(), bytes)) return nullptr;
  std::shared_ptr<DeviceReduction> self(
      new DeviceReduction(std::move(frames).value(), context, std::move(stripes), *stream));
  const at::Device device(at::kCUDA, c10::impl::VirtualGuardImpl(at::kCUDA).getDevice().index());
  try {
    if (is_batched) {
      std::vector<std::span<std::byte>> data;
      for (const FrameChunk& chunk : self->plan_->chunks) data.push_back(self->data_of(chunk));
      self->batched_ =
          std::make_shared<Batched>(self->plan_, context.dtype, std::move(data),
                                    residual ? std::optional(self->feedback_of(*residual)) : std::nullopt,
                                    device, stream->stream(), stream->pinned());
    } else {
      self->kernels_ =
          std::make_shared<Kernels>(*self->plan_, context.dtype, device, stream->stream(), stream->pinned());
    }
  } catch (const std::bad_alloc&) {
    return nullptr;
  } catch (const c10::OutOfMemoryError&) {
    return nullptr;
  }
  if (!self->loads_kernels()) return nullptr;
  stream->hold(self);
  const std::uint32_t groups = self->plan_->groups;
  stream->set_middle(
      {groups, [reduction = self.get()](std::uint32_t group) { reduction->enqueue_sums(group); }});
  if (groups > 1) {
    stream->set_pieces(
        {groups, [reduction = self.get()](std::uint32_t group) { reduction->enqueue_contributions(group); },
         nullptr});
  }
  stream->check_at_end([reduction = self.get(), residual = std::move(residual)] {
    if (!reduction->batched_) return reduction->kernels_->verdict();
    const auto& batches = reduction->batched_->reduction();
    if (residual) residual->ended(batches.report(), batches.committed());
    return batches.verdict();
  });
  return self;
}

DeviceReduction::DeviceReduction(collective::FrameExchange exchange, const collective::OpContext& context,
                                 std::vector<collective::StripeData> stripes, StreamOperation& stream)
    : plan_(std::move(exchange.plan)),
      exchange_(std::move(exchange.run)),
      context_(context),
      stripes_(std::move(stripes)),
      stream_(stream) {}

// Which kernels there are depends on what the chunks do.
bool DeviceReduction::loads_kernels() {
  std::string key = core::str(batched_ ? "batched " : "", "reduction ", plan_->codec.to_string(), ' ',
                              core::to_string(context_.dtype), ' ', plan_->divisor != 1);
  if (batched_) key += batched_->reduction().name_of_feedback();
  std::set<std::string> kinds;
  for (const FrameChunk& chunk : plan_->chunks) {
    kinds.insert(
        core::str(' ', chunk.contributes, chunk.reduces, chunk.owns, chunk.receives, chunk.has_result));
  }
  for (const std::string& kind : kinds) key += kind;
  const bool loaded = has_kernels(key, [this] {
    for (std::uint32_t group = 0; group < plan_->groups; ++group) {
      enqueue_contributions(group);
      enqueue_sums(group);
    }
    enqueue_results();
  });
  if (kernels_) kernels_->start_over();
  return loaded;
}

void DeviceReduction::enqueue_contributions() {
  if (plan_->groups == 1) enqueue_contributions(0);
}

void DeviceReduction::enqueue_contributions(std::uint32_t group) {
  if (batched_) return batched_->enqueue_contributions(group);
  for (const FrameChunk& chunk : plan_->chunks) {
    if (!chunk.contributes) continue;
    kernels_->encode(context_.dtype, data_of(chunk).data(), chunk, chunk.contribution_options,
                     chunk.contribution);
  }
}

Status DeviceReduction::exchange() {
  GEOCOMM_RETURN_IF_ERROR(std::exchange(exchange_, nullptr)(*this));
  if (batched_) batched_->exchanged();
  return Status::ok();
}

void DeviceReduction::enqueue_sums(std::uint32_t group) {
  if (batched_) return batched_->enqueue_sums(group);
  const DType dtype = context_.dtype;
  const auto stream = kernels_->stream();
  for (const FrameChunk& chunk : plan_->chunks) {
    if (!chunk.reduces) continue;
    const std::span<std::byte> data = data_of(chunk);
    const std::uint64_t count = chunk.range.size();
    float* sums = reinterpret_cast<float*>(data.data());
    // Straight into the caller's data where that is float and no operand is read from there. Else the stream
    // is done with them when it comes to those of the next chunk.
    at::Tensor apart;
    if (dtype != DType::Float32 || !chunk.contributes) {
      apart = kernels_->floats(count);
      sums = static_cast<float*>(apart.data_ptr());
    }
    for (std::size_t site = 0; site < chunk.frames.size(); ++site) {
      const core::Buffer& frame = chunk.frames[site];
      const bool first = site == 0;
      if (frame.data() == nullptr) {  // this rank's own part, exact
        const SumPiece own[] = {{sums, data.data(), count}};
        throw_if_error(collective::cuda::accumulate_elements(
            dtype, own, first ? Accumulate::Assign : Accumulate::Add, stream));
      } else {
        kernels_->decode(dtype, frame, chunk, first ? codec::Sink::Float32 : codec::Sink::AddToFloat32,
                         reinterpret_cast<std::byte*>(sums));
      }
    }
    const bool is_apart = reinterpret_cast<std::byte*>(sums) != data.data();
    std::byte* const target = !chunk.owns && chunk.receives && is_apart ? data.data() : nullptr;
    if (target != nullptr || plan_->divisor != 1) {
      const SumPiece piece[] = {{sums, target, count}};
      throw_if_error(collective::cuda::finish_sums(dtype, piece, plan_->divisor, {}, stream));
    }
    if (chunk.owns) {
      kernels_->encode(DType::Float32, reinterpret_cast<const std::byte*>(sums), chunk, chunk.result_options,
                       chunk.result);
    }
  }
}

void DeviceReduction::enqueue_results() {
  if (batched_) return batched_->enqueue_results();
  const DType dtype = context_.dtype;
  const auto stream = kernels_->stream();
  for (const FrameChunk& chunk : plan_->chunks) {
    if (!chunk.receives || chunk.result.data() == nullptr) continue;
    const std::span<std::byte> data = data_of(chunk);
    if (dtype == DType::Float32) {
      kernels_->decode(DType::Float32, chunk.result, chunk, codec::Sink::Float32, data.data());
      continue;
    }
    const at::Tensor apart = kernels_->floats(chunk.range.size());
    auto* sums = static_cast<float*>(apart.data_ptr());
    kernels_->decode(DType::Float32, chunk.result, chunk, codec::Sink::Float32,
                     reinterpret_cast<std::byte*>(sums));
    const SumPiece piece[] = {{sums, data.data(), chunk.range.size()}};
    throw_if_error(collective::cuda::finish_sums(dtype, piece, 1, {}, stream));
  }
}

Status DeviceReduction::wait_for_contributions(std::uint32_t groups, core::Deadline deadline) {
  return stream_.wait_for_pieces(groups, deadline).status();
}

void DeviceReduction::contributions_arrived(std::uint32_t groups) {
  if (batched_) batched_->arrived(groups);
  stream_.open_arrived(groups);
}

Status DeviceReduction::wait_for_results(std::uint32_t groups, core::Deadline deadline) {
  return stream_.wait_until_made(groups, deadline);
}

collective::cuda::DeviceFeedback DeviceReduction::feedback_of(const ResidualUse& residual) const {
  collective::cuda::DeviceFeedback feedback{context_.caller->decay, {}, residual.replaces};
  for (const FrameChunk& chunk : plan_->chunks) {
    feedback.chunks.push_back(stripes_[chunk.stripe].feedback.part(chunk.range.begin, chunk.range.size()));
  }
  return feedback;
}

std::span<std::byte> DeviceReduction::data_of(const FrameChunk& chunk) const {
  const std::size_t size = core::size_of(context_.dtype);
  return stripes_[chunk.stripe].data.subspan(chunk.range.begin * size, chunk.range.size() * size);
}

}  // namespace geocomm::binding
