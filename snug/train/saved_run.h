// What a run is made of besides its configuration, to disk and back: after a resume with the same split of
// the batch the steps that follow are the same, bit for bit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/export.h"
#include "snug/io/training_state.h"
#include "snug/precision/grad_scaler.h"
#include "snug/train/step.h"

namespace snug::train {

// What the numbers of the steps to come depend on; how memory is saved is not among it. Data counts by its
// content, which is read once.
SNUG_API Json run_facts(const TrainConfig& config, const io::TokenDataset& data);

class SNUG_API RunSaver {
 public:
  // Into run/state/step-N; all but the last keep_last of them go, except that with config.allow_nan the last
  // one with finite weights stays. What goes along with config.weights is read now: that folder may be gone
  // later.
  RunSaver(std::filesystem::path run, const TrainConfig& config, Json run_facts, std::size_t keep_last);

  // Returns the state's folder.
  std::filesystem::path save(std::int64_t step, const TrainingSetup& setup, const GradScaler& scaler) const;

 private:
  std::filesystem::path run_;
  Json run_facts_, plan_, model_config_, split_;
  std::vector<io::Companion> companions_;
  std::int64_t batch_size_;
  bool may_be_nan_;
  std::size_t keep_last_;
};

// The last state of a run, or none. Throws Error if it is damaged, or of a run with other facts: another
// model, data, batch, precision or optimizer.
SNUG_API std::optional<io::SavedState> last_state(const std::filesystem::path& run, const Json& run_facts);
SNUG_API std::int64_t step_of(const io::SavedState& state);
// What to say if the batch was split otherwise when it was saved; else empty.
SNUG_API std::string other_split(const io::SavedState& state, const TrainConfig& config);

// All but the model, whose weights were loaded from state.folder().
SNUG_API void restore(const io::SavedState& state, TrainingSetup& setup, GradScaler& scaler);

}  // namespace snug::train
