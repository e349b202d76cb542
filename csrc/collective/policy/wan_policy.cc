#include "collective/policy/wan_policy.h"

#include <algorithm>
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
constexpr double kMostSecondsPerByte = 1.0;

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

Result<std::shared_ptr<const WanPolicy>> WanPolicy::create(LinkMatrix links, std::vector<CodecClass> classes,
                                                           std::vector<HostCoding> coding) {
  for (std::size_t i = 0; i < classes.size(); ++i) {
    GEOCOMM_RETURN_IF_ERROR(check_collective_codec(classes[i].codec, false));
    if (i > 0 && classes[i].from_bytes <= classes[i - 1].from_bytes) {
      return Status(StatusCode::InvalidArgument, "codec classes must be in order of their sizes");
    }
  }
  for (const HostCoding& one : coding) {
    const double seconds = one.encode_s + one.decode_s + one.copy_s;
    if (std::min({one.encode_s, one.decode_s, one.copy_s}) >= 0.0 && seconds <= kMostSecondsPerByte) continue;
    return Status(StatusCode::InvalidArgument,
                  str("codec ", one.codec.to_string(), " takes ", seconds, " s for a byte"));
  }
  std::optional<CostModel> costs;
  if (links.sites > 1) {
    GEOCOMM_ASSIGN_OR_RETURN(costs, CostModel::create(std::move(links)));
  }
  return std::shared_ptr<const WanPolicy>(
      new WanPolicy(std::move(costs), std::move(classes), std::move(coding)));
}

WanPolicy::WanPolicy(std::optional<CostModel> costs, std::vector<CodecClass> classes,
                     std::vector<HostCoding> coding)
    : costs_(std::move(costs)), classes_(std::move(classes)), coding_(std::move(coding)) {}

const codec::CodecSpec& WanPolicy::codec_for(std::uint64_t raw_bytes) const {
  const codec::CodecSpec* found = &kUncompressed;
  for (const CodecClass& one : classes_) {
    if (raw_bytes >= one.from_bytes) found = &one.codec;
  }
  return *found;
}

const ReduceScheme* WanPolicy::scheme_for(Pattern pattern, const codec::CodecSpec& codec, core::DType dtype,
                                          std::uint64_t elements) const {
  if (!costs_) return nullptr;
  const auto count = static_cast<double>(elements);
  return &costs_->choose(codec::expected_bytes_per_element(codec, dtype) * count, pattern,
                         coding_s(pattern, codec, static_cast<double>(core::size_of(dtype)) * count));
}

// A site encodes what it has, and its share of the results; it decodes its share of what others have, and all
// results.
double WanPolicy::coding_s(Pattern pattern, const codec::CodecSpec& codec, double raw_bytes) const {
  if (codec.is_exact() || coding_.empty()) return 0.0;  // those are always the host's
  const auto is_it = [&](const HostCoding& one) { return one.codec.id == codec.id; };
  const bool is_known = std::ranges::any_of(coding_, is_it);
  const double share = 1.0 / static_cast<double>(sites());
  double most = 0.0;
  for (const HostCoding& one : coding_) {
    if (is_known && !is_it(one)) continue;  // else as the slowest
    const double once = one.encode_s + one.decode_s + one.copy_s;
    const double results = share * one.encode_s + one.decode_s + one.copy_s;
    most = std::max(most, once + (pattern == Pattern::AllReduce ? results : 0.0));
  }
  return most * raw_bytes;
}

RelayPaths WanPolicy::relays_for(std::uint64_t bytes) const {
  if (!costs_) return {};
  return collective::relays_for(static_cast<double>(bytes), costs_->links(), costs_->relays());
}

RelayTurns WanPolicy::gather_relays_for(std::uint64_t bytes) const {
  if (!costs_) return {};
  const ReduceScheme& scheme = costs_->choose(static_cast<double>(bytes), Pattern::AllGather);
  return scheme.relays.has_adders() ? scheme.relays : RelayTurns(relays_for(bytes));
}

}  // namespace geocomm::collective
