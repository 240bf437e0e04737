// How long an operator takes: from what the machine can do, and better from what was measured.
//
//   MeasuredCosts costs(hardware);
//   for (...) costs.add(work, measured_seconds);
//   double expected = costs(other_work);
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/export.h"
#include "snug/plan/hardware.h"
#include "snug/trace/work.h"

namespace snug::plan {

using trace::Work;

// The roofline: whichever of arithmetic and memory takes longer, and what every operator costs. On a GPU the
// host asks for the next operator while one runs; only what is smaller than asking costs as much as that.
SNUG_API double seconds(const Work& work, const Hardware& hardware);

// Answers with the first that there is: the mean measured for the same name, flops and bytes; seconds() times
// measured / seconds() of the operator of that name whose work is nearest; seconds() times the median of that
// over all operators; seconds(). Knows what the hardware's file has from the start.
class SNUG_API MeasuredCosts {
 public:
  explicit MeasuredCosts(Hardware hardware);

  void add(const Work& work, double measured_seconds);  // ignored unless finite and above 0
  double operator()(const Work& work) const;
  std::size_t size() const { return size_; }  // measurements that were not ignored

 private:
  // Two heaps, the smaller half and the larger: a long run adds many measurements, a planner asks often.
  class Median {
   public:
    void add(double value);
    bool empty() const { return smaller_.empty(); }
    double value() const;  // not when empty

   private:
    std::priority_queue<double> smaller_;
    std::priority_queue<double, std::vector<double>, std::greater<>> larger_;
  };
  struct Mean {
    double value = 0;
    std::size_t count = 0;
  };
  using Amounts = std::pair<double, double>;  // flops and bytes

  Hardware hardware_;
  std::map<std::string, std::map<Amounts, Mean>> operators_;
  Median ratios_;
  std::size_t size_ = 0;
};

}  // namespace snug::plan
