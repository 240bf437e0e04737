// What a run is made of besides its configuration, to disk and back: after a resume with the same split of
// the batch the steps that follow are the same, bit for bit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/export.h"
#include "snug/io/training_state.h"
#include "snug/precision/grad_scaler.h"
#include "snug/train/background_save.h"
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
  using Write =
      std::function<void(const std::filesystem::path&, const io::TrainingState&, const io::WritingRanks*)>;
  RunSaver(std::filesystem::path run, const TrainConfig& config, Json run_facts, std::size_t keep_last,
           Write write = io::write_training_state);
  ~RunSaver();                         // waits
  RunSaver(const RunSaver&) = delete;  // a thread points to it
  RunSaver& operator=(const RunSaver&) = delete;

  // One state at a time is written: both wait for the one before, and throw RunError if it could not be.
  // Ranks call them together, and write between the steps.
  void save(std::int64_t step, const TrainingSetup& setup, const GradScaler& scaler);
  // Writes it beside the steps that follow, as it is now (see background_save.h), if so much of the host may
  // be taken as copies of all that does not wait there need; else as save() does. Returns what to say of that
  // the first time; else empty.
  std::string begin_save(std::int64_t step, const TrainingSetup& setup, const GradScaler& scaler,
                         std::uint64_t spare_host_bytes);
  void check_written();            // throws RunError if it is known that a state could not be written
  std::filesystem::path finish();  // waits; the folder of the last state, empty if there was none

 private:
  io::TrainingState describe(std::int64_t step, const TrainingSetup& setup, const GradScaler& scaler) const;
  void save_together(std::int64_t step, const TrainingSetup& setup, const GradScaler& scaler);
  void write(std::int64_t step, const io::TrainingState& state,
             const io::WritingRanks* together = nullptr) const;

  std::filesystem::path run_;
  Json run_facts_, plan_, model_config_, split_;
  std::vector<io::Companion> companions_;
  std::int64_t batch_size_;
  bool may_be_nan_;
  std::size_t keep_last_;
  Write write_;
  bool has_said_ = false;
  std::optional<std::int64_t> last_;         // step
  std::shared_ptr<BackgroundSave> writing_;  // null: all is written
};

// The last state of a run, or none. Throws Error if it is damaged, or of a run with other facts: another
// model, data, batch, precision or optimizer.
// Of several ranks each looks at a part of the files.
SNUG_API std::optional<io::SavedState> last_state(const std::filesystem::path& run, const Json& run_facts,
                                                  int rank = 0, int ranks = 1);
SNUG_API std::int64_t step_of(const io::SavedState& state);
// What to say if the batch was split otherwise when it was saved; else empty.
SNUG_API std::string other_split(const io::SavedState& state, const TrainConfig& config);

// All but the model, whose weights were loaded from state.folder().
SNUG_API void restore(const io::SavedState& state, TrainingSetup& setup, GradScaler& scaler);

}  // namespace snug::train
