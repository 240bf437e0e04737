// The cost model, and its correction by measurements.
#include "snug/plan/cost.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "snug/base/error.h"

namespace snug::plan {
namespace {

bool is_amount(double value) {
  return std::isfinite(value) && value >= 0;
}

bool is_usable(double value) {
  return std::isfinite(value) && value > 0;
}

// A kernel begins and ends with a device that is partly idle; measured on an H200 over kernels of 5 to 100
// us.
constexpr double kEdge = 4e-6;

double flops_rate(const Work& work, const Hardware& hardware) {
  const double matmul = work.low_precision ? hardware.matmul_flops_bf16 : hardware.matmul_flops_fp32;
  if (!work.is_attention) return matmul;
  // A GPU's attention rate is that of 16 bits, which products in fp32 cannot reach.
  return std::min(hardware.attention_flops, matmul);
}

// How far one amount of work is from another: by how many times they differ.
double distance(std::pair<double, double> a, std::pair<double, double> b) {
  return std::abs(std::log((1 + a.first) / (1 + b.first))) +
         std::abs(std::log((1 + a.second) / (1 + b.second)));
}

template <class Measured>
const typename Measured::value_type& nearest(const Measured& measured, std::pair<double, double> amounts) {
  return *std::ranges::min_element(measured, {},
                                   [&](const auto& entry) { return distance(entry.first, amounts); });
}

}  // namespace

double seconds(const Work& work, const Hardware& hardware) {
  ensure(is_amount(work.flops) && is_amount(work.bytes), work.name, " is said to take ", work.flops,
         " flops and ", work.bytes, " bytes");
  const double busy = std::max(work.flops / flops_rate(work, hardware), work.bytes / hardware.memory_rate);
  if (!hardware.is_gpu) return busy + hardware.operation_seconds;
  if (busy == 0) return 0;  // a view: nothing is launched
  return std::max(busy + kEdge, hardware.operation_seconds);
}

MeasuredCosts::MeasuredCosts(Hardware hardware) : hardware_(std::move(hardware)) {
  for (const auto& [work, seconds] : hardware_.operators) add(work, seconds);
}

void MeasuredCosts::add(const Work& work, double measured_seconds) {
  const double model = seconds(work, hardware_);
  if (!is_usable(measured_seconds)) return;
  if (hardware_.is_gpu && model == 0) return;  // nothing was launched: what was measured is the measuring
  ++size_;
  Mean& mean = operators_[work.name][{work.flops, work.bytes}];
  ++mean.count;
  mean.value += (measured_seconds - mean.value) / static_cast<double>(mean.count);

  const double ratio = measured_seconds / model;
  if (!is_usable(ratio)) return;  // nothing was predicted, or the quotient has no double
  ratios_.add(ratio);
}

double MeasuredCosts::operator()(const Work& work) const {
  const double model = seconds(work, hardware_);
  if (const auto same_name = operators_.find(work.name); same_name != operators_.end()) {
    const auto& [amounts, mean] = nearest(same_name->second, {work.flops, work.bytes});
    if (amounts == Amounts{work.flops, work.bytes}) return mean.value;
    Work measured = work;
    std::tie(measured.flops, measured.bytes) = amounts;
    const double ratio = mean.value / seconds(measured, hardware_);
    if (is_usable(ratio)) return model * ratio;
  }
  return ratios_.empty() ? model : model * ratios_.value();
}

void MeasuredCosts::Median::add(double value) {
  if (smaller_.empty() || value <= smaller_.top()) {
    smaller_.push(value);
  } else {
    larger_.push(value);
  }
  if (smaller_.size() > larger_.size() + 1) {
    larger_.push(smaller_.top());
    smaller_.pop();
  } else if (larger_.size() > smaller_.size()) {
    smaller_.push(larger_.top());
    larger_.pop();
  }
}

double MeasuredCosts::Median::value() const {
  return smaller_.size() > larger_.size() ? smaller_.top() : std::midpoint(smaller_.top(), larger_.top());
}

}  // namespace snug::plan
