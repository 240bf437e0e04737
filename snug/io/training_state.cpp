#include "snug/io/training_state.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>

#include "snug/base/error.h"
#include "snug/io/checksum.h"
#include "snug/io/unfinished_folder.h"

namespace snug::io {
namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kVersion = 2;  // 1 knew data by its path
constexpr const char* kModel = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kConfig = "config.json";
constexpr const char* kState = "state.json";
constexpr std::string_view kPrefix = "step-";
constexpr const char* kDamaged = ": is damaged: its checksum is not that of what was written";

enum class Part { Config, Model, All };  // each with what is in the one before

bool is_in(Part part, std::string_view name) {
  if (part == Part::Config) return name == kConfig;
  return part == Part::All || name != kOptimizer;
}

void check_file(const fs::path& path, const Json& noted) {
  const JsonReader file(noted,
                        concat((path.parent_path() / kState).string(), ": ", path.filename().string()));
  const auto bytes = file.required<std::int64_t>("bytes");
  const auto expected = file.required<std::string>("xxh3");
  file.refuse_unread();
  const MappedFile mapped(path);
  check(static_cast<std::int64_t>(mapped.bytes().size()) == bytes, path.string(), ": expected ", bytes,
        " bytes, got ", mapped.bytes().size(), ": is damaged");
  check(checksum_of(mapped) == expected, path.string(), kDamaged);
}

// Of state.json, which is what was written.
struct Written {
  Json facts, files;
};

Written read_state(const fs::path& folder) {
  const std::string where = (folder / kState).string();
  Json whole = read_json(folder / kState);
  const JsonReader json(whole, where);
  const auto version = json.required<std::int64_t>("version");
  check(version == kVersion, where, ": version ", version, " of training states is not known; expected ",
        kVersion);
  Written written{json.required<Json>("facts"), json.required<Json>("files")};
  const auto expected = json.required<std::string>("xxh3");
  whole.erase("xxh3");
  check(checksum_of(whole.dump()) == expected, where, kDamaged);
  json.refuse_unread();
  return written;
}

// Returns its facts.
Json check_state(const fs::path& folder, Part part) {
  const auto [facts, files] = read_state(folder);
  const JsonReader noted(files, concat((folder / kState).string(), ": files"));
  for (const char* name : {kConfig, kModel, kOptimizer})
    if (is_in(part, name)) noted.required<Json>(name);
  for (const auto& [name, file] : files.items())
    if (is_in(part, name)) check_file(folder / name, file);
  return facts;
}

}  // namespace

void write_training_state(const fs::path& folder, const TrainingState& state) {
  UnfinishedFolder part(folder);
  Json files;
  const auto note = [&](const std::string& name, const std::string& checksum) {
    files[name] = {{"bytes", fs::file_size(part.path() / name)}, {"xxh3", checksum}};
  };
  const auto write = [&](const std::string& name, const std::string& text) {
    write_to_disk(part.path() / name, text);
    note(name, checksum_of(text));
  };
  write(kConfig, state.model_config.dump(2) + "\n");
  note(kModel, write_safetensors(part.path() / kModel, state.model, {{"format", "pt"}}));
  note(kOptimizer, write_safetensors(part.path() / kOptimizer, state.optimizer));
  for (const auto& [name, bytes] : state.companions) write(name, bytes);
  Json all = {{"version", kVersion}, {"facts", state.facts}, {"files", files}};
  all["xxh3"] = checksum_of(all.dump());
  write_to_disk(part.path() / kState, all.dump(2) + "\n");
  part.finish();
}

SavedState::SavedState(const fs::path& folder) : folder_(folder), facts_(check_state(folder, Part::All)) {
  optimizer_ = std::make_unique<SafetensorsFile>(folder / kOptimizer);
}

bool is_training_state(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / kState, ignored);
}

void check_saved_model(const fs::path& folder) {
  check_state(folder, Part::Model);
}

void check_saved_config(const fs::path& folder) {
  check_state(folder, Part::Config);
}

Json facts_of(const fs::path& folder) {
  return read_state(folder).facts;
}

fs::path state_folder(const fs::path& run, std::int64_t step) {
  return run / "state" / concat(kPrefix, step);
}

std::vector<std::int64_t> saved_steps(const fs::path& run) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run / "state", error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    std::int64_t step = 0;
    const char* const end = name.data() + name.size();
    const auto [stop, bad] = std::from_chars(name.data() + kPrefix.size(), end, step);
    if (bad == std::errc() && stop == end && step >= 1 && state_folder(run, step).filename() == name)
      steps.push_back(step);
  }
  if (error && error != std::errc::no_such_file_or_directory)
    throw RunError(concat((run / "state").string(), ": cannot be read: ", error.message()));
  std::ranges::sort(steps);
  return steps;
}

void remove_unfinished_states(const fs::path& run) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(run / "state", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".") && (name.ends_with(".part") || name.ends_with(".old")))
      fs::remove_all(entry.path(), ignored);
  }
}

void remove_older_states(const fs::path& run, std::int64_t newest, std::size_t count,
                         std::optional<std::int64_t> also_kept) {
  remove_unfinished_states(run);
  std::error_code ignored;
  auto steps = saved_steps(run);
  std::erase_if(steps, [&](std::int64_t step) { return step > newest; });
  for (std::size_t i = 0; i + count < steps.size(); ++i) {
    if (steps[i] == also_kept) continue;
    const fs::path gone = run / "state" / concat(".", kPrefix, steps[i], ".old");
    fs::rename(state_folder(run, steps[i]), gone, ignored);  // a kill leaves no half of it under its name
    fs::remove_all(gone, ignored);
  }
}

}  // namespace snug::io
