// What the ranks of a group have agreed on for one epoch: how fast the links are, and which codec reductions
// of each size take. An operation keeps the policy that was in force when it was issued; all ranks change it
// between the same two operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "codec/spec/codec_spec.h"
#include "collective/policy/cost_model.h"
#include "core/dtype.h"
#include "core/status.h"

namespace geocomm::collective {

// Reductions of at least so many raw bytes (whole operation), up to the next class, take this codec.
struct CodecClass {
  std::uint64_t from_bytes = 0;
  codec::CodecSpec codec;
};

// What a codec takes on the host, of tensors on an accelerator, which codes what goes by no regions: seconds
// for a byte of a site's elements, by the slowest rank, for each time that it is coded or copied.
struct HostCoding {
  codec::CodecSpec codec;
  double encode_s = 0.0;
  double decode_s = 0.0;
  double copy_s = 0.0;
};

// Whether a codec can run in collectives. Errors: InvalidArgument (impossible settings), Unsupported (a stage
// that this build lacks; it needs a residual and has none).
core::Status check_collective_codec(const codec::CodecSpec& codec, bool has_residual);

// Thread-safe: does not change.
class WanPolicy {
 public:
  // `classes` by ascending size; what is smaller than the first goes uncompressed. `links` has the group's
  // sites in their order. `coding`: empty where tensors are not on accelerators, or nobody knows. Errors: as
  // CostModel::create(), but one site is allowed; InvalidArgument: a codec with impossible settings, classes
  // out of order, seconds below zero; Unsupported: a codec that cannot run in collectives.
  static core::Result<std::shared_ptr<const WanPolicy>> create(LinkMatrix links,
                                                               std::vector<CodecClass> classes,
                                                               std::vector<HostCoding> coding = {});

  const codec::CodecSpec& codec_for(std::uint64_t raw_bytes) const;
  // How to carry out a reduction of `elements`. Null: there is one site.
  const ReduceScheme* scheme_for(Pattern pattern, const codec::CodecSpec& codec, core::DType dtype,
                                 std::uint64_t elements) const;
  // Seconds of the host that two levels take more than others, of tensors on accelerators.
  double coding_s(Pattern pattern, const codec::CodecSpec& codec, double raw_bytes) const;
  // Who relays where all sites want the same `bytes` of one.
  RelayPaths relays_for(std::uint64_t bytes) const;
  // Who relays where all sites want the same `bytes` of each.
  RelayTurns gather_relays_for(std::uint64_t bytes) const;
  // As LinkMatrix::regions.
  std::vector<std::uint32_t> regions() const {
    return costs_ ? costs_->links().regions : std::vector<std::uint32_t>{};
  }
  std::size_t sites() const { return costs_ ? costs_->links().sites : 1; }
  const std::vector<CodecClass>& classes() const { return classes_; }

 private:
  WanPolicy(std::optional<CostModel> costs, std::vector<CodecClass> classes, std::vector<HostCoding> coding);
  const std::optional<CostModel> costs_;
  const std::vector<CodecClass> classes_;
  const std::vector<HostCoding> coding_;
};

}  // namespace geocomm::collective
