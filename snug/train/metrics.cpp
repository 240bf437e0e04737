#include "snug/train/metrics.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <string>
#include <system_error>

#include "snug/base/error.h"

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
  return fs::exists(path / "config.json", missing) && fs::file_size(path / "metrics.jsonl", missing) == 0;
}

// Lines of later steps than the one that was saved last will be written again; half a line is what a kill
// left.
void cut_after(const fs::path& path, std::int64_t step) {
  std::ifstream file(path, std::ios::binary);
  std::uintmax_t kept = 0;
  for (std::string line; std::getline(file, line) && !file.eof(); kept += line.size() + 1) {
    const Json metrics = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!metrics.is_object() || !metrics.contains("step") || !(metrics["step"] <= step)) break;
  }
  fs::resize_file(path, kept);
}

}  // namespace

RunDirectory::RunDirectory(const fs::path& path, const Json& config, std::optional<std::int64_t> resume_after)
    : path_(path) {
  std::error_code error;
  check(!resume_after || fs::exists(path_ / "config.json", error), "--resume: --out-dir ", path_.string(),
        " holds no run (config.json is not there); leave out --resume to begin one");
  const bool made = fs::create_directories(path_, error);
  check(!error, "--out-dir ", path_.string(), " cannot be made: ", error.message());
  if (!resume_after && !never_stepped(path_)) {
    for (const char* file : {"config.json", "metrics.jsonl", "trace"})
      check(!fs::exists(path_ / file), "--out-dir ", path_.string(), " already holds a run (", file,
            " is there): choose another");
  }
  try {
    metrics_ = std::make_unique<OutputFile>(path_ / "metrics.jsonl", OutputFile::Mode::Append);
    check(metrics_->lock(), "another run is writing to it");
    if (resume_after) cut_after(metrics_->path(), *resume_after);
    OutputFile file(path_ / "config.json");
    file.write(config.dump(2) + "\n");
    file.close();
  } catch (const Error& failed) {
    metrics_.reset();
    if (made) fs::remove(path_, error);
    fail("--out-dir ", path_.string(), " cannot be written: ", failed.what());
  }
  metrics_->keep();
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
