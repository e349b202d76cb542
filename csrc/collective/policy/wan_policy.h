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

// Whether a codec can run in collectives. Errors: InvalidArgument (impossible settings), Unsupported (a stage
// that this build lacks; it needs a residual and has none).
core::Status check_collective_codec(const codec::CodecSpec& codec, bool has_residual);

// Thread-safe: does not change.
class WanPolicy {
 public:
  // `classes` by ascending size; what is smaller than the first goes uncompressed. `links` has the group's
  // sites in their order. Errors: as CostModel::create(), but one site is allowed; InvalidArgument: a codec
  // with impossible settings, classes out of order; Unsupported: a codec that cannot run in collectives.
  static core::Result<std::shared_ptr<const WanPolicy>> create(LinkMatrix links,
                                                               std::vector<CodecClass> classes);

  const codec::CodecSpec& codec_for(std::uint64_t raw_bytes) const;
  // How to carry out an all-reduce of `elements`. Null: there is one site.
  const ReduceScheme* scheme_for(const codec::CodecSpec& codec, core::DType dtype,
                                 std::uint64_t elements) const;
  // Who relays where only one site wants the result. Null: there is one site.
  const RelayPaths* relays() const { return costs_ ? &costs_->relays() : nullptr; }
  // Who relays where several sites want the same `bytes` of each site, or of one.
  RelayPaths relays_for(std::uint64_t bytes) const;
  // As LinkMatrix::regions.
  std::vector<std::uint32_t> regions() const {
    return costs_ ? costs_->links().regions : std::vector<std::uint32_t>{};
  }
  std::size_t sites() const { return costs_ ? costs_->links().sites : 1; }
  const std::vector<CodecClass>& classes() const { return classes_; }

 private:
  WanPolicy(std::optional<CostModel> costs, std::vector<CodecClass> classes);
  const std::optional<CostModel> costs_;
  const std::vector<CodecClass> classes_;
};

}  // namespace geocomm::collective
