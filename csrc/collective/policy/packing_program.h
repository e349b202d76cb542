// A linear program of packing, by the simplex method.
#pragma once

#include <cstddef>
#include <vector>

namespace geocomm::collective {

// maximise sum(v), where v >= 0 and each row, times v, is at most its limit. No coefficient is negative, and
// all limits are positive, so v = 0 is where the search begins. Only + - * / and comparisons: IEEE gives
// all machines the same bits.
//
// Rows are many, have few coefficients, and most of them limit nothing. So the tableau has lines of the
// program's own variables alone; a row's is made of these where a step needs it. A step takes as many
// products as all rows have coefficients, and as the variables squared. Where limits are alike, steps would
// go nowhere, again and again: they are chosen for limits that are wider by different parts of a millionth.
class PackingProgram {
 public:
  struct Part {
    std::size_t variable;
    double coefficient;
  };
  using Row = std::vector<Part>;

  explicit PackingProgram(std::size_t variables);

  void add(Row row, double limit);
  // Of one of the best solutions. Once.
  std::vector<double> solve();

  // Multiplications of all steps.
  std::size_t products() const { return products_; }

 private:
  // The program's own are numbered first, then what is left of each row's limit.
  using Variable = std::size_t;
  struct Limit {
    Row row;
    double left;
    double widened_left;
    bool is_full = false;  // what is left is 0 for as long as its column stands for it
  };

  std::size_t entering() const;
  Variable leaving(std::size_t column);
  void pivot(Variable leaving, std::size_t column);

  const std::size_t count_;
  std::vector<Limit> limits_;
  std::vector<double> values_;
  std::vector<double> widened_;             // the same with limits that differ a little more
  std::vector<std::vector<double>> grows_;  // [own variable][column]: by how much with that of the column
  std::vector<double> gain_;                // [column]: by how much the sum does
  std::vector<Variable> held_;              // [column]: which variable is held at 0
  std::vector<double> used_;                // [limit], of the last column that was looked at: what it takes
  bool has_moved_ = true;                   // by the last step
  std::size_t products_ = 0;
};

}  // namespace geocomm::collective
