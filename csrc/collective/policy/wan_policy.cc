#include "collective/policy/wan_policy.h"

#include <utility>

#include "codec/entropy/plane.h"
#include "codec/payload/expected_size.h"
#include "core/str.h"

namespace geocomm::collective {

using core::Result;
using core::Status;
using core::StatusCode;
using core::str;

namespace {

const codec::CodecSpec kUncompressed;

}  // namespace

Status check_collective_codec(const codec::CodecSpec& spec, bool has_residual) {
  if (spec.has_blocks() && !codec::is_valid_block(spec.block)) {
    return {StatusCode::InvalidArgument, str("codec block of ", spec.block, " elements")};
  }
  if (spec.needs_feedback() && !has_residual) {
    return {StatusCode::Unsupported, str("codec ", spec.to_string(),
                                         " drops so much that it needs a residual, and "
                                         "this collective has none; use geocomm.compress(tensor, codec, "
                                         "residual=...)")};
  }
  if (!codec::has_stage(spec.entropy)) {
    return {StatusCode::Unsupported,
            str("codec ", spec.to_string(), " needs an entropy stage that this build of geocomm lacks")};
  }
  return Status::ok();
}

Result<std::shared_ptr<const WanPolicy>> WanPolicy::create(LinkMatrix links,
                                                           std::vector<CodecClass> classes) {
  for (std::size_t i = 0; i < classes.size(); ++i) {
    GEOCOMM_RETURN_IF_ERROR(check_collective_codec(classes[i].codec, false));
    if (i > 0 && classes[i].from_bytes <= classes[i - 1].from_bytes) {
      return Status(StatusCode::InvalidArgument, "codec classes must be in order of their sizes");
    }
  }
  std::optional<CostModel> costs;
  if (links.sites > 1) {
    GEOCOMM_ASSIGN_OR_RETURN(costs, CostModel::create(std::move(links)));
  }
  return std::shared_ptr<const WanPolicy>(new WanPolicy(std::move(costs), std::move(classes)));
}

WanPolicy::WanPolicy(std::optional<CostModel> costs, std::vector<CodecClass> classes)
    : costs_(std::move(costs)), classes_(std::move(classes)) {}

const codec::CodecSpec& WanPolicy::codec_for(std::uint64_t raw_bytes) const {
  const codec::CodecSpec* found = &kUncompressed;
  for (const CodecClass& one : classes_) {
    if (raw_bytes >= one.from_bytes) found = &one.codec;
  }
  return *found;
}

const ReduceScheme* WanPolicy::scheme_for(const codec::CodecSpec& codec, core::DType dtype,
                                          std::uint64_t elements) const {
  if (!costs_) return nullptr;
  return &costs_->choose(codec::expected_bytes_per_element(codec, dtype) * static_cast<double>(elements));
}

RelayPaths WanPolicy::relays_for(std::uint64_t bytes) const {
  if (!costs_) return {};
  return collective::relays_for(static_cast<double>(bytes), costs_->links(), costs_->relays());
}

}  // namespace geocomm::collective
