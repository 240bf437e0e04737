// What a run is made of besides its configuration, to disk and back: after a resume the steps that follow are
// the same, bit for bit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "snug/base/export.h"
#include "snug/io/training_state.h"
#include "snug/precision/grad_scaler.h"
#include "snug/train/step.h"

namespace snug::train {

// After step `step`, into run/state/step-N; then all but the last keep_last states go.
SNUG_API void save_run(const std::filesystem::path& run, std::int64_t step, const TrainConfig& config,
                       const TrainingSetup& setup, const GradScaler& scaler, std::size_t keep_last);

// The last state of a run, or none. Throws Error if it is damaged, or of a run with another model, data,
// batch, precision or optimizer; memory's levers may differ.
SNUG_API std::optional<io::SavedState> last_state(const std::filesystem::path& run,
                                                  const TrainConfig& config);
SNUG_API std::int64_t step_of(const io::SavedState& state);

// All but the model, whose weights were loaded from state.folder().
SNUG_API void restore(const io::SavedState& state, TrainingSetup& setup, GradScaler& scaler);

}  // namespace snug::train
