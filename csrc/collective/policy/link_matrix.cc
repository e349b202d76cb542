#include "collective/policy/link_matrix.h"

#include <algorithm>
#include <limits>

#include "core/str.h"

namespace geocomm::collective {

using core::Status;
using core::StatusCode;
using core::str;

namespace {

constexpr double kMinBytesPerS = 1.0;
constexpr double kMaxBytesPerS = 1e15;
constexpr double kMaxDelayS = 60.0;
constexpr double kMaxDollarsPerByte = 1e300;  // finite

// Written so that NaN is out of range.
bool is_within(double value, double low, double high) {
  return value >= low && value <= high;
}

Status check_access(const std::vector<double>& rates, std::size_t sites, const char* name) {
  if (rates.empty()) return Status::ok();
  if (rates.size() != sites) {
    return {StatusCode::InvalidArgument, str(name, " has ", rates.size(), " rates for ", sites, " sites")};
  }
  for (std::size_t site = 0; site < sites; ++site) {
    if (!is_within(rates[site], kMinBytesPerS, kMaxBytesPerS)) {
      return {StatusCode::InvalidArgument, str(name, " of site ", site, " is ", rates[site], " bytes/s")};
    }
  }
  return Status::ok();
}

Status check_regions(const LinkMatrix& links) {
  const auto fits = [&](std::size_t count) { return count == 0 || count == links.sites; };
  if (!fits(links.regions.size()) || !fits(links.dollars_per_byte.size())) {
    return {StatusCode::InvalidArgument,
            str("a link matrix of ", links.sites, " sites has ", links.regions.size(), " regions and ",
                links.dollars_per_byte.size(), " prices")};
  }
  std::uint32_t next = 0;
  for (const std::uint32_t region : links.regions) {
    if (region > next) return {StatusCode::InvalidArgument, str("region ", region, " comes before ", next)};
    if (region == next) ++next;
  }
  for (const double price : links.dollars_per_byte) {
    if (!is_within(price, 0.0, kMaxDollarsPerByte)) {
      return {StatusCode::InvalidArgument, str("a site pays ", price, " dollars for a byte")};
    }
  }
  return Status::ok();
}

}  // namespace

LinkMatrix LinkMatrix::uniform(std::size_t sites, double bytes_per_s, double one_way_s) {
  LinkMatrix links;
  links.sites = sites;
  links.bytes_per_s.assign(sites * sites, bytes_per_s);
  links.one_way_s.assign(sites * sites, one_way_s);
  return links;
}

double LinkMatrix::access(std::size_t site) const {
  const double up = up_bytes_per_s.empty() ? std::numeric_limits<double>::infinity() : up_bytes_per_s[site];
  const double down =
      down_bytes_per_s.empty() ? std::numeric_limits<double>::infinity() : down_bytes_per_s[site];
  return std::min(up, down);
}

Status LinkMatrix::validate() const {
  if (bytes_per_s.size() != sites * sites || one_way_s.size() != sites * sites) {
    return {StatusCode::InvalidArgument, str("a link matrix of ", sites, " sites has ", bytes_per_s.size(),
                                             " rates and ", one_way_s.size(), " delays")};
  }
  for (std::size_t from = 0; from < sites; ++from) {
    for (std::size_t to = 0; to < sites; ++to) {
      if (from == to) continue;
      if (!is_within(rate(from, to), kMinBytesPerS, kMaxBytesPerS)) {
        return {StatusCode::InvalidArgument,
                str("the link from site ", from, " to ", to, " has ", rate(from, to), " bytes/s")};
      }
      if (!is_within(delay(from, to), 0.0, kMaxDelayS)) {
        return {StatusCode::InvalidArgument,
                str("the link from site ", from, " to ", to, " has a delay of ", delay(from, to), " s")};
      }
    }
  }
  if (Status status = check_access(up_bytes_per_s, sites, "up"); !status.is_ok()) return status;
  if (Status status = check_access(down_bytes_per_s, sites, "down"); !status.is_ok()) return status;
  return check_regions(*this);
}

}  // namespace geocomm::collective
