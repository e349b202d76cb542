#include "collective/policy/packing_program.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>

namespace geocomm::collective {

namespace {

constexpr double kEpsilon = 1e-9;
constexpr double kWidest = 1e-6;

// The same numbers on all machines, in [0, 1); no two are equal (multiples of the golden ratio).
double part_of_widest(std::size_t row) {
  return static_cast<double>((row + 1) * std::uint64_t{0x9E3779B97F4A7C15} >> 11) / 9007199254740992.0;
}

}  // namespace

PackingProgram::PackingProgram(std::size_t variables)
    : count_(variables),
      values_(variables, 0.0),
      widened_(variables, 0.0),
      grows_(variables, std::vector<double>(variables, 0.0)),
      gain_(variables, 1.0),
      held_(variables) {
  for (std::size_t own = 0; own < variables; ++own) grows_[own][own] = 1.0;
  std::iota(held_.begin(), held_.end(), Variable{0});
}

void PackingProgram::add(Row row, double limit) {
  const double wider = limit * (1.0 + kWidest * part_of_widest(limits_.size()));
  limits_.push_back({std::move(row), limit, wider});
}

std::vector<double> PackingProgram::solve() {
  used_.resize(limits_.size());
  for (std::size_t column = entering(); column < count_; column = entering()) {
    const Variable full = leaving(column);
    if (full == count_ + limits_.size()) break;  // unbounded: a program without rows
    pivot(full, column);
  }
  for (double& value : values_) value = std::max(value, 0.0);
  return values_;
}

// The variable that adds most to the sum; after a step that went nowhere the lowest-numbered one, so that the
// search does not go in circles (Bland's rule).
std::size_t PackingProgram::entering() const {
  std::size_t best = count_;
  for (std::size_t c = 0; c < count_; ++c) {
    if (gain_[c] <= kEpsilon) continue;
    if (best == count_ || (has_moved_ ? gain_[c] > gain_[best] : held_[c] < held_[best])) best = c;
  }
  return best;
}

// The variable that is 0 first; the lowest-numbered one where several are.
PackingProgram::Variable PackingProgram::leaving(std::size_t column) {
  const Variable none = count_ + limits_.size();
  Variable best = none;
  double least = std::numeric_limits<double>::infinity();
  const auto look_at = [&](Variable variable, double value, double falls) {
    if (falls <= kEpsilon) return;
    const double ratio = value / falls;
    if (ratio >= least) return;
    best = variable;
    least = ratio;
  };
  for (Variable own = 0; own < count_; ++own) look_at(own, widened_[own], -grows_[own][column]);
  for (std::size_t r = 0; r < limits_.size(); ++r) {
    double used = 0.0;
    for (const Part& part : limits_[r].row) used += part.coefficient * grows_[part.variable][column];
    products_ += limits_[r].row.size();
    used_[r] = used;
    if (!limits_[r].is_full) look_at(count_ + r, limits_[r].widened_left, used);
  }
  return best;
}

void PackingProgram::pivot(Variable leaving, std::size_t column) {
  std::vector<double> falls(count_, 0.0);  // the leaving variable, with each column's
  double step = 0.0;
  double widened_step = 0.0;
  if (leaving < count_) {
    for (std::size_t c = 0; c < count_; ++c) falls[c] = -grows_[leaving][c];
    step = values_[leaving];
    widened_step = widened_[leaving];
  } else {
    const Limit& limit = limits_[leaving - count_];
    for (const Part& part : limit.row) {
      for (std::size_t c = 0; c < count_; ++c) falls[c] += part.coefficient * grows_[part.variable][c];
    }
    products_ += limit.row.size() * count_;
    step = limit.left;
    widened_step = limit.widened_left;
  }
  const double factor = 1.0 / falls[column];
  step *= factor;
  widened_step *= factor;
  has_moved_ = widened_step > 0.0;
  for (std::size_t r = 0; r < limits_.size(); ++r) {
    if (limits_[r].is_full || used_[r] == 0.0) continue;
    limits_[r].left -= step * used_[r];
    limits_[r].widened_left -= widened_step * used_[r];
  }
  for (double& fall : falls) fall *= factor;
  const auto eliminate = [&](std::vector<double>& line) {
    const double times = line[column];
    if (times == 0.0) return;
    line[column] = 0.0;
    falls[column] = factor;
    for (std::size_t c = 0; c < count_; ++c) line[c] -= times * falls[c];
    products_ += count_;
  };
  for (Variable own = 0; own < count_; ++own) {
    values_[own] += step * grows_[own][column];
    widened_[own] += widened_step * grows_[own][column];
    eliminate(grows_[own]);
  }
  eliminate(gain_);
  const Variable entering = held_[column];
  if (entering >= count_) {
    Limit& limit = limits_[entering - count_];
    limit.is_full = false;
    limit.left = step;
    limit.widened_left = widened_step;
  }
  if (leaving >= count_) {
    limits_[leaving - count_].is_full = true;
  } else {
    std::ranges::fill(grows_[leaving], 0.0);
    grows_[leaving][column] = 1.0;
    values_[leaving] = widened_[leaving] = 0.0;
  }
  held_[column] = leaving;
}

}  // namespace geocomm::collective
