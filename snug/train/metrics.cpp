#include "snug/train/metrics.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <string>
#include <system_error>

#include "snug/base/error.h"
#include "snug/io/training_state.h"

namespace snug::train {

namespace fs = std::filesystem;

namespace {

// JSON has no word for a number that is none.
std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null";
}

std::string scale_fields(const StepMetrics& metrics) {
  if (!metrics.loss_scale) return "";
  return fmt::format(R"(,"loss_scale":{},"skipped":{})", number(*metrics.loss_scale), metrics.skipped);
}

// What a run leaves that failed before the end of its first step. Its place may be taken.
bool never_stepped(const fs::path& path) {
  std::error_code missing;
  return fs::file_size(path / "metrics.jsonl", missing) == 0;
}

// Lines of later steps than the one that was saved last will be written again; half a line is what a kill
// left.
std::uintmax_t bytes_up_to(const fs::path& path, std::int64_t step) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw RunError(concat(path.string(), ": cannot be read"));
  std::uintmax_t kept = 0;
  for (std::string line; std::getline(file, line) && !file.eof(); kept += line.size() + 1) {
    const Json metrics = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!metrics.is_object() || !metrics.contains("step") || !(metrics["step"] <= step)) break;
  }
  return kept;
}

}  // namespace

RunBudgets budgets_of_run(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  std::error_code missing;
  if (!fs::is_regular_file(path, missing)) return {};
  const JsonReader config(read_json(path), path.string());
  const auto bytes = [&](const char* key) -> std::optional<std::uint64_t> {
    if (!config.has(key)) return std::nullopt;
    return static_cast<std::uint64_t>(config.required<std::int64_t>(key));
  };
  return {bytes("budget_bytes"), bytes("host_budget_bytes")};
}

void RunDirectory::check_free(const fs::path& path) {
  const auto steps = io::saved_steps(path);
  check(steps.empty(), "`out_dir` ", path.string(), " already holds a run (state/step-",
        steps.empty() ? 0 : steps.back(), " is there): go on with `resume`, or choose another");
  if (never_stepped(path)) return;
  for (const char* file : {"config.json", "metrics.jsonl", "trace"})
    check(!fs::exists(path / file), "`out_dir` ", path.string(), " already holds a run (", file,
          " is there): choose another");
}

RunDirectory::RunDirectory(const fs::path& path, const Json& config) : path_(path) {
  std::error_code error;
  const bool made = fs::create_directories(path_, error);
  check(!error, "`out_dir` ", path_.string(), " cannot be made: ", error.message());
  check_free(path_);
  try {
    metrics_ = std::make_unique<OutputFile>(path_ / "metrics.jsonl", OutputFile::Mode::Append);
    check(metrics_->lock(), "another run is writing to it");
    write_config(config);
  } catch (const Error& failed) {
    const bool is_ours = dynamic_cast<const RunError*>(&failed) != nullptr;
    const std::string message = concat("`out_dir` ", path_.string(), " cannot be written: ", failed.what());
    metrics_.reset();
    if (made) fs::remove(path_, error);
    if (is_ours) throw RunError(message);
    throw Error(message);
  }
  metrics_->keep();
}

RunDirectory::RunDirectory(const fs::path& path) : path_(path) {
  std::error_code error;
  check(fs::exists(path_ / "config.json", error) || !io::saved_steps(path_).empty(), "`resume`: `out_dir` ",
        path_.string(), " holds no run (config.json is not there); leave out `resume` to begin one");
  metrics_ = std::make_unique<OutputFile>(path_ / "metrics.jsonl", OutputFile::Mode::Append);
  const bool is_ours = metrics_->lock();
  metrics_->keep();
  check(is_ours, "`out_dir` ", path_.string(), ": another run is writing to it");
}

void RunDirectory::check_no_steps() const {
  std::ifstream file(metrics_->path(), std::ios::binary);
  std::int64_t steps = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) ++steps;
  check(steps == 0, "`resume`: `out_dir` ", path_.string(), " holds ", steps, steps == 1 ? " step" : " steps",
        " and no state to go on from: choose another `out_dir`");
}

void RunDirectory::go_on_after(std::int64_t step, const Json& config) {
  const std::uintmax_t kept = bytes_up_to(metrics_->path(), step);
  write_config(config);
  std::error_code error;
  fs::resize_file(metrics_->path(), kept, error);
  if (error) throw RunError(concat(metrics_->path().string(), ": cannot be cut: ", error.message()));
}

// Under another name first: what is there stays if the disk is full.
void RunDirectory::write_config(const Json& config) const {
  const fs::path place = path_ / "config.json", part = path_ / "config.json.part";
  OutputFile file(part);
  file.write(config.dump(2) + "\n");
  file.close();
  std::error_code error;
  fs::rename(part, place, error);
  if (error) throw RunError(concat(place.string(), ": cannot write: ", error.message()));
}

void RunDirectory::sync() {
  metrics_->sync();
}

void RunDirectory::append(const StepMetrics& metrics) {
  const fs::path& file = metrics_->path();
  const auto whole_lines = fs::file_size(file);
  try {
    metrics_->write(fmt::format(
        R"({{"step":{},"loss":{},"gradient_norm":{},"lr":{},"seconds":{:.6f},"tokens_per_second":{:.1f},"peak_bytes":{}{}}})"
        "\n",
        metrics.step, number(metrics.loss), number(metrics.gradient_norm), number(metrics.lr),
        metrics.seconds, metrics.tokens_per_second, metrics.peak_bytes, scale_fields(metrics)));
  } catch (const RunError&) {
    std::error_code ignored;
    fs::resize_file(file, whole_lines, ignored);  // no half line for a reader to stumble over
    throw;
  }
}

fs::path RunDirectory::first_free(const fs::path& parent, const std::string& name) {
  for (int number = 1;; ++number) {
    fs::path path = parent / fmt::format("{}-{}", name, number);
    if (!fs::exists(path)) return path;
  }
}

}  // namespace snug::train
