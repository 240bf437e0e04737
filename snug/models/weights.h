// Published weights into a model, one tensor at a time: no second copy of them is ever in RAM.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "snug/base/export.h"
#include "snug/models/language_model.h"

namespace snug::models {

// Where a parameter's weight is, if it is not in the parameter: all of it, or a stretch from element `begin`
// on.
struct Home {
  at::Tensor tensor;  // contiguous
  std::int64_t begin = 0;
};
using HomeOf = std::function<Home(const at::Tensor& parameter)>;

// From a Hugging Face folder, in F32, BF16, F16 or F64; each parameter keeps its own type and device. Throws
// Error for a tensor that is missing, one that the model does not have, and one of another shape.
SNUG_API void load_weights(LanguageModel& model, const std::filesystem::path& folder,
                           const HomeOf& home_of = {});

// Throws what load_weights() would, by the headers of the files alone.
SNUG_API void check_weights(const ModelConfig& config, const std::filesystem::path& folder);

}  // namespace snug::models
