// The cost model, and its correction by measurements.
#include "snug/plan/cost.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "snug/base/error.h"

namespace snug::plan {
namespace {

bool is_amount(double value) {
  return std::isfinite(value) && value >= 0;
}

bool is_usable(double value) {
  return std::isfinite(value) && value > 0;
}

double flops_rate(const Work& work, const Hardware& hardware) {
  const double matmul = work.low_precision ? hardware.matmul_flops_bf16 : hardware.matmul_flops_fp32;
  if (!work.is_attention) return matmul;
  // A GPU's attention rate is that of 16 bits, which products in fp32 cannot reach.
  return std::min(hardware.attention_flops, matmul);
}

}  // namespace

double seconds(const Work& work, const Hardware& hardware) {
  ensure(is_amount(work.flops) && is_amount(work.bytes), work.name, " is said to take ", work.flops,
         " flops and ", work.bytes, " bytes");
  return std::max(work.flops / flops_rate(work, hardware), work.bytes / hardware.memory_rate) +
         hardware.operation_seconds;
}

void MeasuredCosts::add(const Work& work, double measured_seconds) {
  const double model = seconds(work, hardware_);
  if (!is_usable(measured_seconds)) return;
  ++size_;
  Operator& same_name = operators_[work.name];
  Mean& mean = same_name.measured[{work.flops, work.bytes}];
  ++mean.count;
  mean.value += (measured_seconds - mean.value) / static_cast<double>(mean.count);

  const double ratio = measured_seconds / model;
  if (!is_usable(ratio)) return;  // nothing was predicted, or the quotient has no double
  same_name.ratios.add(ratio);
  ratios_.add(ratio);
}

double MeasuredCosts::operator()(const Work& work) const {
  const double model = seconds(work, hardware_);
  if (const auto same_name = operators_.find(work.name); same_name != operators_.end()) {
    const auto& [measured, ratios] = same_name->second;
    if (const auto same = measured.find({work.flops, work.bytes}); same != measured.end())
      return same->second.value;
    if (!ratios.empty()) return model * ratios.value();
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
