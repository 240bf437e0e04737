// All that a run needs to go on, in one folder that is there whole or not at all:
//
//   run/state/step-100/config.json, model.safetensors     the model, as others load it
//                      optimizer.safetensors              under prefixed names: exp_avg.model.norm.weight
//                      state.json                         the rest, and a checksum of each of these files
//                      tokenizer.json, ...                what else belongs to the model
//
// A folder is written under another name, brought to the disk and renamed, so that neither a kill nor a power
// cut leaves half of one. Tensors are written and read one at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/export.h"
#include "snug/base/json.h"
#include "snug/io/companions.h"
#include "snug/io/safetensors.h"
#include "snug/io/safetensors_writer.h"

namespace snug::io {

struct TrainingState {
  Json facts;  // whatever is no tensor
  Json model_config;
  std::vector<TensorSource> model, optimizer;
  std::vector<Companion> companions;  // of the model that training began with
};

// Throws RunError, and leaves what was there, if it cannot be written.
SNUG_API void write_training_state(const std::filesystem::path& folder, const TrainingState& state);

// One that was written. Opening it reads every byte once.
class SNUG_API SavedState {
 public:
  // Throws Error for a file that is missing or not what was written, and for a version that is not known.
  explicit SavedState(const std::filesystem::path& folder);

  const Json& facts() const { return facts_; }
  const SafetensorsFile& optimizer() const { return *optimizer_; }
  const std::filesystem::path& folder() const { return folder_; }  // also a folder of weights

 private:
  std::filesystem::path folder_;
  Json facts_;
  std::unique_ptr<SafetensorsFile> optimizer_;
};

// Whether a folder is a training state, or a model that somebody published.
SNUG_API bool is_training_state(const std::filesystem::path& folder);
// Throws Error unless the model of a training state, with what belongs to it, is what was written; its
// optimizer is not read.
SNUG_API void check_saved_model(const std::filesystem::path& folder);
SNUG_API void check_saved_config(const std::filesystem::path& folder);  // the same for config.json alone
// Throws Error unless state.json is what was written; nothing else is read.
SNUG_API Json facts_of(const std::filesystem::path& folder);

// The states of a run: folders step-N in run/state, by number. Throws RunError if it cannot be looked into.
SNUG_API std::filesystem::path state_folder(const std::filesystem::path& run, std::int64_t step);
SNUG_API std::vector<std::int64_t> saved_steps(const std::filesystem::path& run);
// What a kill has left under hidden names.
SNUG_API void remove_unfinished_states(const std::filesystem::path& run);
// The same, and of the states up to step `newest` all but the last `count`, and but for `also_kept`.
SNUG_API void remove_older_states(const std::filesystem::path& run, std::int64_t newest, std::size_t count,
                                  std::optional<std::int64_t> also_kept = std::nullopt);

}  // namespace snug::io
