// All that a run needs to go on, in one folder that is there whole or not at all:
//
//   run/state/step-100/config.json, model.safetensors     the model, as others load it
//                      optimizer.safetensors              under prefixed names: exp_avg.model.norm.weight
//                      state.json                         the rest, and a checksum of each of these files
//                      tokenizer.json, ...                what else belongs to the model
//
// A folder is written under another name, brought to the disk and renamed, so that neither a kill nor a power
// cut leaves half of one. Tensors are written and read one at a time. Ranks write one folder together, each
// its pieces: see files_of_ranks.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/export.h"
#include "snug/base/json.h"
#include "snug/io/companions.h"
#include "snug/io/safetensors_writer.h"
#include "snug/io/stored_tensors.h"

namespace snug::io {

struct TrainingState {
  Json facts;  // whatever is no tensor
  Json model_config;
  std::vector<TensorSource> model, optimizer;
  std::vector<Companion> companions;  // of the model that training began with
};

// Ranks that write one state.
struct WritingRanks {
  int rank = 0, ranks = 1;
  StoredTensors::Shapes model, optimizer;  // of all tensors of which any rank has a piece
  // Gives each rank's text to all, by rank; all call it as often.
  std::function<std::vector<std::string>(const std::string&)> exchange;
};

// Throws RunError, and leaves what was there, if it cannot be written. `together`: all ranks call it, each
// with its own tensors (StoredTensors::piece_name); what else there is is rank 0's. All throw if one does.
SNUG_API void write_training_state(const std::filesystem::path& folder, const TrainingState& state,
                                   const WritingRanks* together = nullptr);

// One that was written. Opening it reads every byte once: of several files each `ranks`th, from that of
// `rank` on.
class SNUG_API SavedState {
 public:
  // Throws Error for a file that is missing or not what was written, and for a version that is not known.
  explicit SavedState(const std::filesystem::path& folder, int rank = 0, int ranks = 1);

  const Json& facts() const { return facts_; }
  const StoredTensors& optimizer() const { return optimizer_; }
  const std::filesystem::path& folder() const { return folder_; }  // also a folder of weights

 private:
  std::filesystem::path folder_;
  Json facts_;
  StoredTensors optimizer_;
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
