// all_reduce of sparse tensors: the sum of each site crosses the WAN, and every rank adds up the same sums in
// the same order.
#include <utility>

#include "binding/calls/call.h"
#include "binding/calls/sparse_rows.h"
#include "core/str.h"

namespace geocomm::binding {

using collective::OpContext;
using collective::OpKind;
using collective::ReceivePiece;
using collective::SendPiece;
using core::Status;
using core::StatusCode;

namespace {

std::span<std::byte> bytes_of(SparseSummary& summary) {
  return std::as_writable_bytes(std::span(&summary, 1));
}

std::string disagreement(const std::string& who, const SparseSummary& theirs, const SparseSummary& own) {
  return core::str("all_reduce of sparse tensors: ", who, " has ", theirs.describe(), ", this rank ",
                   own.describe());
}

}  // namespace

// One operation; its methods are the stages, in order.
class WanCollectives::SparseSum {
 public:
  SparseSum(WanCollectives& collectives, const at::Tensor& tensor, Milliseconds timeout)
      : collectives_(collectives),
        topology_(collectives.topology()),
        tensor_(tensor),
        timeout_(timeout),
        inner_pre_(collectives.inner(at::kCPU, false)),
        inner_post_(collectives.inner(at::kCPU, true)),
        summaries_(static_cast<std::size_t>(topology_.site_count())),
        parts_(summaries_.size()) {}

  // Every rank gets the entries of the site's ranks and adds them up.
  void sum_site() {
    auto sum = tensor_.coalesce();
    if (inner_pre_) sum = sum_of_ranks(sum);
    own_summary() = SparseSummary::of(sum);
    own_ = SparseRows::of(sum);
  }

  // Each site sends the number of its entries, then these: from and to the ranks that have the same part of
  // them.
  Status exchange(const OpContext& summaries_context, const OpContext& rows_context) {
    GEOCOMM_RETURN_IF_ERROR(exchange_summaries(summaries_context));
    return exchange_rows(rows_context);
  }

  void sum_sites() {
    at::Tensor sum;
    for (int site = 0; site < topology_.site_count(); ++site) {
      const auto part = (site == topology_.site() ? own_ : whole(site)).tensor_like(tensor_);
      sum = sum.defined() ? sum + part : part;
    }
    tensor_.copy_(sum.coalesce());
  }

 private:
  static std::size_t index(int site) { return static_cast<std::size_t>(site); }
  SparseSummary& own_summary() { return summaries_[index(topology_.site())]; }

  at::Tensor sum_of_ranks(const at::Tensor& coalesced) {
    auto own = SparseSummary::of(coalesced);
    const auto own_words = at::from_blob(&own, {1, sizeof(own)}, at::kByte);
    const auto words = gather(inner_pre_, own_words, 1);
    std::vector<SparseSummary> all(static_cast<std::size_t>(topology_.local_size()));
    std::memcpy(all.data(), words.const_data_ptr(), words.nbytes());
    std::int64_t most = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!all[i].has_shape_of(own)) {
        const int rank = topology_.ranks_of(topology_.site())[i];
        throw_status(StatusCode::InvalidArgument, disagreement(core::str("rank ", rank), all[i], own));
      }
      most = std::max(most, all[i].entries);
    }
    const auto rows = SparseRows::of(coalesced);
    const SparseRows gathered{gather(inner_pre_, rows.indices, most), gather(inner_pre_, rows.values, most)};
    at::Tensor sum;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto of_rank = gathered.slice(static_cast<std::int64_t>(i) * most, all[i].entries);
      sum = i == 0 ? of_rank.tensor_like(coalesced) : sum + of_rank.tensor_like(coalesced);
    }
    return sum.coalesce();
  }

  Status exchange_summaries(const OpContext& context) {
    std::vector<SendPiece> sends;
    std::vector<ReceivePiece> receives;
    for (int site = 0; site < topology_.site_count(); ++site) {
      if (site == topology_.site()) continue;
      for (const int rank : topology_.ranks_of(site)) {
        if (topology_.local_rank_of(rank) % topology_.local_size() != topology_.local_rank()) continue;
        sends.push_back({rank, bytes_of(own_summary())});
      }
      receives.push_back({informant_of(site), bytes_of(summaries_[index(site)])});
    }
    GEOCOMM_RETURN_IF_ERROR(collectives_.exchange_->move(context, sends, receives));
    for (int site = 0; site < topology_.site_count(); ++site) {
      const auto& theirs = summaries_[index(site)];
      if (!theirs.has_shape_of(own_summary())) {
        return {StatusCode::InvalidArgument,
                disagreement(core::str("rank ", informant_of(site), " at site ", topology_.site_name(site)),
                             theirs, own_summary())};
      }
      if (!theirs.has_possible_entries()) {
        return core::corrupt("a sparse tensor with ", theirs.entries, " entries of ", theirs.describe(),
                             " from site ", topology_.site_name(site));
      }
    }
    return Status::ok();
  }

  // The rank of another site that tells this one of it.
  int informant_of(int site) const {
    return topology_.ranks_of(site)[index(topology_.local_rank() % topology_.site_size(site))];
  }

  Status exchange_rows(const OpContext& context) {
    std::vector<SendPiece> sends;
    std::vector<ReceivePiece> receives;
    for (int site = 0; site < topology_.site_count(); ++site) {
      const bool is_own = site == topology_.site();
      const auto entries = static_cast<std::uint64_t>(summaries_[index(site)].entries);
      const auto part = collective::part_of(entries, topology_.local_size(), topology_.local_rank());
      if (!is_own) parts_[index(site)] = SparseRows::room_for(tensor_, signed_size(part.size()));
      for (const auto& stripe : collective::stripes_of(topology_, entries)) {
        if (stripe.rank_of_site[index(topology_.site())] != topology_.rank()) continue;
        const auto rows = is_own
                              ? own_.slice(signed_size(stripe.range.begin), signed_size(stripe.range.size()))
                              : parts_[index(site)].slice(signed_size(stripe.range.begin - part.begin),
                                                          signed_size(stripe.range.size()));
        for (const auto& column : {rows.indices, rows.values}) {
          if (!is_own) receives.push_back({stripe.rank_of_site[index(site)], bytes_of(column)});
          for (int other = 0; is_own && other < topology_.site_count(); ++other) {
            if (other != site) sends.push_back({stripe.rank_of_site[index(other)], bytes_of(column)});
          }
        }
      }
    }
    GEOCOMM_RETURN_IF_ERROR(collectives_.exchange_->move(context, sends, receives));
    for (int site = 0; site < topology_.site_count(); ++site) {
      const auto& part = parts_[index(site)];
      if (part.indices.defined() && !part.is_within(tensor_)) {
        return core::corrupt("a sparse tensor with indices outside of its shape from site ",
                             topology_.site_name(site));
      }
    }
    return Status::ok();
  }

  // The entries of another site, of which each rank of this one has received a part.
  SparseRows whole(int site) {
    const auto& part = parts_[index(site)];
    if (!inner_post_) return part;
    const auto entries = summaries_[index(site)].entries;
    const auto room =
        signed_size(collective::part_size(static_cast<std::uint64_t>(entries), topology_.local_size()));
    const SparseRows parts{gather(inner_post_, part.indices, room), gather(inner_post_, part.values, room)};
    return parts.slice(0, entries);  // only the last parts are short
  }

  // The rows of the site's ranks, those of each filled up to `room`, in order of rank.
  at::Tensor gather(const BackendPtr& backend, const at::Tensor& rows, std::int64_t room) {
    auto all = at::empty({room * topology_.local_size(), rows.size(1)}, rows.options());
    if (all.numel() == 0) return all;
    auto own = rows;
    if (rows.size(0) != room) {
      own = at::zeros({room, rows.size(1)}, rows.options());
      own.narrow(0, 0, rows.size(0)).copy_(rows);
    }
    collectives_.all_gather_in_site(backend, all, own, timeout_);
    return all;
  }

  WanCollectives& collectives_;
  const collective::Topology& topology_;
  const at::Tensor tensor_;
  const Milliseconds timeout_;
  const BackendPtr inner_pre_;
  const BackendPtr inner_post_;
  std::vector<SparseSummary> summaries_;  // by site
  SparseRows own_;                        // this site's sum
  std::vector<SparseRows> parts_;         // by site: what this rank has received
};

WorkPtr WanCollectives::all_reduce_sparse(const at::Tensor& tensor, Milliseconds timeout) {
  const Call call(*this, OpKind::SparseAllReduce, c10d::OpType::_ALLREDUCE_SPARSE, "sparse_all_reduce",
                  tensor.device(), timeout, 0, moved_dtype(tensor.scalar_type()));
  const auto sum = std::make_shared<SparseSum>(*this, tensor, timeout);
  auto rows = call.context(sum);
  rows.seq = next_seq_.fetch_add(1);  // of the second of its two exchanges
  auto exchange = [sum, first = call.context(sum), second = std::move(rows)] {
    return sum->exchange(first, second);
  };
  return call.issue({tensor}, {tensor}, {[sum] { sum->sum_site(); }, exchange, [sum] { sum->sum_sites(); }});
}

}  // namespace geocomm::binding
