// An estimate as a table for people and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "snug/base/json.h"
#include "snug/train/estimate.h"

namespace snug::cli {

// The highest that each reaches in a step; the moments differ.
struct Activations {
  std::uint64_t saved = 0;
  std::uint64_t temporaries = 0;
};

// `step`: none if only the number of parameters is known.
std::string table(const train::EstimateRequest& request, const train::StateBytes& states,
                  const std::optional<Activations>& step);
Json document(const train::EstimateRequest& request, const train::StateBytes& states,
              const std::optional<Activations>& step);

}  // namespace snug::cli
