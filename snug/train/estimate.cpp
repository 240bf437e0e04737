// The bytes per parameter that every table of this kind starts from: Rajbhandari et al. 2020 (ZeRO),
// section 3.
#include "snug/train/estimate.h"

#include "snug/base/error.h"

namespace snug::train {
namespace {

// Keeps 16 bytes per parameter below 2^63.
constexpr std::uint64_t kMostParameters = 100'000'000'000'000'000;

std::uint64_t master_bytes(Precision precision, std::optional<Master> master) {
  check_master(precision, master);
  if (precision == Precision::Fp32) return 0;
  return precision == Precision::Fp16 || master == Master::Fp32 ? 4 : 2;
}

}  // namespace

StateBytes bytes_per_parameter(Precision precision, std::optional<Master> master, OptimizerKind optimizer) {
  const std::uint64_t weight = precision == Precision::Fp32 ? 4 : 2;
  const std::uint64_t moments = optimizer == OptimizerKind::AdamW ? 8 : 0;
  return {.parameters = weight, .gradients = weight, .optimizer = moments + master_bytes(precision, master)};
}

StateBytes estimate_states(const EstimateRequest& request) {
  check(request.parameters >= 1 && request.parameters <= kMostParameters,
        "the number of parameters must be between 1 and 1e17, got ", request.parameters);
  check(request.zero_stage >= 0 && request.zero_stage <= 3, "`zero_stage` must be 0, 1, 2 or 3, got ",
        request.zero_stage);
  check(request.ranks >= 1, "`ranks` must be at least 1, got ", request.ranks);

  const StateBytes each = bytes_per_parameter(request.precision, request.master, request.optimizer);
  const auto ranks = static_cast<std::uint64_t>(request.ranks);
  const std::uint64_t share = (request.parameters + ranks - 1) / ranks;
  const auto held = [&](std::int64_t from_stage) {
    return request.zero_stage >= from_stage ? share : request.parameters;
  };
  return {.parameters = each.parameters * held(3),
          .gradients = each.gradients * held(2),
          .optimizer = each.optimizer * held(1)};
}

}  // namespace snug::train
