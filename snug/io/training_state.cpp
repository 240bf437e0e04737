#include "snug/io/training_state.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>

#include "snug/base/error.h"
#include "snug/io/checksum.h"
#include "snug/io/files_of_ranks.h"
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
  return part == Part::All || !name.starts_with("optimizer");
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
Json check_state(const fs::path& folder, Part part, int rank = 0, int ranks = 1) {
  const auto [facts, files] = read_state(folder);
  const JsonReader noted(files, concat((folder / kState).string(), ": files"));
  const bool is_of_ranks = files.contains(kShapes);
  for (const char* name : {kConfig, is_of_ranks ? kShapes : kModel, is_of_ranks ? kShapes : kOptimizer})
    if (is_in(part, name)) noted.required<Json>(name);
  int place = 0;
  for (const auto& [name, file] : files.items())
    if (is_in(part, name) && place++ % ranks == rank) check_file(folder / name, file);
  return facts;
}

StoredTensors open_optimizer(const fs::path& folder) {
  return is_written_by_ranks(folder) ? open_optimizer_of_ranks(folder) : StoredTensors({folder / kOptimizer});
}

}  // namespace

namespace {

// Files of an unfinished state, and what state.json says of them.
class Files {
 public:
  explicit Files(fs::path folder) : folder_(std::move(folder)) {}

  void write(const std::string& name, const std::string& text) {
    write_to_disk(folder_ / name, text);
    note(name, checksum_of(text));
  }
  void write(const std::string& name, const std::vector<TensorSource>& tensors,
             const std::map<std::string, std::string>& metadata = {}) {
    note(name, write_safetensors(folder_ / name, tensors, metadata));
  }
  void add(const Json& others) { noted_.update(others); }

  // All that is not of tensors.
  void finish(const TrainingState& state) {
    write(kConfig, state.model_config.dump(2) + "\n");
    for (const auto& [name, bytes] : state.companions) write(name, bytes);
    Json all = {{"version", kVersion}, {"facts", state.facts}, {"files", noted_}};
    all["xxh3"] = checksum_of(all.dump());
    write_to_disk(folder_ / kState, all.dump(2) + "\n");
  }
  const Json& noted() const { return noted_; }

 private:
  void note(const std::string& name, const std::string& checksum) {
    noted_[name] = {{"bytes", fs::file_size(folder_ / name)}, {"xxh3", checksum}};
  }

  fs::path folder_;
  Json noted_ = Json::object();
};

// What all ranks do between two exchanges. All throw what one of them throws; what each returns, by rank.
std::vector<Json> on_all(const WritingRanks& together, const std::function<Json()>& mine) {
  Json said;
  try {
    said = {{"done", mine()}};
  } catch (const std::exception& error) {
    said = {{"error", error.what()}};
  }
  std::vector<Json> done;
  for (const std::string& text :
       together.exchange(said.dump(-1, ' ', false, Json::error_handler_t::replace))) {
    const Json one = Json::parse(text);
    if (one.contains("error")) throw RunError(one["error"].get<std::string>());
    done.push_back(one["done"]);
  }
  return done;
}

void write_together(const fs::path& folder, const TrainingState& state, const WritingRanks& together) {
  std::optional<UnfinishedFolder> part;
  const bool is_first = together.rank == 0;
  on_all(together, [&]() -> Json {
    if (is_first) part.emplace(folder);
    return "";
  });
  Files files(UnfinishedFolder::path_of(folder));
  const std::vector<Json> written = on_all(together, [&] {
    const auto write = [&](const char* stem, const std::vector<TensorSource>& tensors) {
      files.write(file_of_rank(stem, together.rank, together.ranks), tensors);
    };
    write("model", state.model);
    write("optimizer", state.optimizer);
    if (is_first)
      files.write(kShapes, shapes_json(together.ranks, together.model, together.optimizer).dump(2) + "\n");
    return files.noted();
  });
  on_all(together, [&]() -> Json {
    if (!is_first) return "";
    for (const Json& noted : written) files.add(noted);
    files.finish(state);
    part->finish();
    return "";
  });
}

}  // namespace

void write_training_state(const fs::path& folder, const TrainingState& state, const WritingRanks* together) {
  if (together) return write_together(folder, state, *together);
  UnfinishedFolder part(folder);
  Files files(part.path());
  files.write(kModel, state.model, {{"format", "pt"}});
  files.write(kOptimizer, state.optimizer);
  files.finish(state);
  part.finish();
}

SavedState::SavedState(const fs::path& folder, int rank, int ranks)
    : folder_(folder),
      facts_(check_state(folder, Part::All, rank, ranks)),
      optimizer_(open_optimizer(folder)) {}

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
