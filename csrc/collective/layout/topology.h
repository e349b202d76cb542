// Topology: which rank of a group sits at which site. The same on all ranks but for `rank`.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"

namespace geocomm::collective {

class Topology {
 public:
  // `site_of_rank[r]` indexes `site_names`. The topology numbers the sites anew, in order of their lowest
  // rank. Errors: InvalidArgument (rank out of range, a site without ranks, an index without a name).
  static core::Result<Topology> create(int rank, std::vector<int> site_of_rank,
                                       std::vector<std::string> site_names);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(site_of_rank_.size()); }
  int site_count() const { return static_cast<int>(ranks_of_site_.size()); }
  int site() const { return site_of(rank_); }
  int site_of(int rank) const { return site_of_rank_[static_cast<std::size_t>(rank)]; }
  const std::string& site_name(int site) const { return site_names_[static_cast<std::size_t>(site)]; }
  // Group ranks of a site, ascending.
  const std::vector<int>& ranks_of(int site) const { return ranks_of_site_[static_cast<std::size_t>(site)]; }
  int site_size(int site) const { return static_cast<int>(ranks_of(site).size()); }
  int largest_site_size() const;
  int local_size() const { return site_size(site()); }
  // Position of `rank` among the ranks of its site.
  int local_rank_of(int rank) const { return local_rank_of_[static_cast<std::size_t>(rank)]; }
  int local_rank() const { return local_rank_of(rank_); }

 private:
  Topology() = default;
  int rank_ = 0;
  std::vector<int> site_of_rank_;
  std::vector<std::string> site_names_;
  std::vector<std::vector<int>> ranks_of_site_;
  std::vector<int> local_rank_of_;
};

}  // namespace geocomm::collective
