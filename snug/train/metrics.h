// The run directory: config.json, metrics.jsonl, trace; state/ beside them is saved_run.h's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "snug/base/export.h"
#include "snug/base/json.h"
#include "snug/base/output_file.h"

namespace snug::train {

struct StepMetrics {
  std::int64_t step = 0;  // counted from 1
  double loss = 0;
  double gradient_norm = 0;
  double lr = 0;
  double seconds = 0;
  double tokens_per_second = 0;
  std::uint64_t peak_bytes = 0;
  std::optional<double> loss_scale;  // of this step, in fp16
  bool skipped = false;              // the gradients overflowed under that scale: nothing was updated
};

// As a run in this folder was last given them; none if there is no config.json.
struct RunBudgets {
  std::optional<std::uint64_t> device_bytes, host_bytes;
};
SNUG_API RunBudgets budgets_of_run(const std::filesystem::path& folder);

class SNUG_API RunDirectory {
 public:
  // A new run. Throws Error if the folder cannot be made or written, or already holds a run of at least one
  // step or a saved state.
  RunDirectory(const std::filesystem::path& path, const Json& config);
  // Throws what making one would, if there is something in the way already.
  static void check_free(const std::filesystem::path& path);
  // One that is there, and from now on is ours alone; nothing is changed yet. Throws Error if there is none.
  explicit RunDirectory(const std::filesystem::path& path);

  // Throws Error if metrics.jsonl has a whole line: without a state to go on from it would be lost.
  void check_no_steps() const;
  // The lines up to this step stay: those after it will be written again.
  void go_on_after(std::int64_t step, const Json& config);

  void append(const StepMetrics& metrics);  // one whole line of metrics.jsonl; a kill does not lose it
  void sync();                              // nor does a power cut, from here on
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path trace_path() const { return path_ / "trace"; }
  std::filesystem::path plan_path() const { return path_ / "plan.json"; }

  static std::filesystem::path first_free(const std::filesystem::path& parent,
                                          const std::string& name);  // runs/tiny-1

 private:
  void write_config(const Json& config) const;

  std::filesystem::path path_;
  std::unique_ptr<OutputFile> metrics_;
};

}  // namespace snug::train
