#include "snug/io/weight_files.h"

#include <map>
#include <set>
#include <string>
#include <system_error>

#include "snug/base/error.h"
#include "snug/base/json.h"
#include "snug/io/files_of_ranks.h"

namespace snug::io {
namespace fs = std::filesystem;

namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Tensor names by file.
std::map<std::string, std::vector<std::string>> read_index(const fs::path& path) {
  const JsonReader json(read_json(path), path.string());
  json.ignore("metadata");
  const Json places = json.required<Json>("weight_map");
  json.refuse_unread();
  check(places.is_object() && !places.empty(), path.string(),
        ": weight_map must be an object from tensors to files, got ", places.dump().substr(0, 100));
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [tensor, file] : places.items()) {
    check(file.is_string(), path.string(), ": '", tensor, "' must be in a file, got ", file.dump());
    const auto name = file.get<std::string>();
    check(!name.empty() && name != "." && name != ".." && fs::path(name).filename() == name, path.string(),
          ": '", tensor, "' is said to be in '", name, "'; expected a file of the same folder");
    files[name].push_back(tensor);
  }
  return files;
}

}  // namespace

void refuse_what_is_no_model(const fs::path& path) {
  std::error_code ignored;
  check(path.extension() != ".safetensors" || !fs::is_regular_file(path, ignored), path.string(),
        " is a file of weights: give the folder that it is in");
  const bool has_weights = is_there(path / kSingle) || is_there(path / kIndex) || is_written_by_ranks(path);
  check(has_weights || !is_there(path / "metrics.jsonl"), path.string(),
        " is a run of snug train, not a model: its models are in ", (path / "state" / "step-N").string());
}

fs::path file_of_weights(const fs::path& folder) {
  if (is_written_by_ranks(folder)) return folder / kShapes;
  return folder / (is_there(folder / kSingle) ? kSingle : kIndex);
}

namespace {

StoredTensors open_index(const fs::path& path) {
  const auto index = read_index(path);
  std::vector<fs::path> files;
  for (const auto& [name, tensors] : index) {
    files.push_back(path.parent_path() / name);
    check(is_there(files.back()), path.string(), ": '", name, "' is missing, which holds '", tensors.front(),
          "'");
  }
  StoredTensors stored(files);
  for (const auto& file : stored.files()) {
    const std::string name = file->path().filename().string();
    const std::vector<std::string>& tensors = index.at(name);
    for (const std::string& tensor : tensors)
      check(file->find(tensor), path.string(), ": '", tensor, "' is not in ", name,
            ", where it is said to be");
    if (file->entries().size() == tensors.size()) continue;
    const std::set<std::string> named(tensors.begin(), tensors.end());
    for (const TensorEntry& entry : file->entries())
      check(named.contains(entry.name), path.string(), ": '", entry.name, "' in ", name, " is not named");
  }
  return stored;
}

}  // namespace

StoredTensors open_weights(const fs::path& folder) {
  refuse_what_is_no_model(folder);
  if (is_written_by_ranks(folder)) return open_model_of_ranks(folder);
  if (is_there(folder / kSingle)) return StoredTensors({folder / kSingle});
  const bool has_pickle =
      is_there(folder / "pytorch_model.bin") || is_there(folder / "pytorch_model.bin.index.json");
  check(is_there(folder / kIndex), folder.string(), ": no weights: expected ", kSingle, " or ", kIndex,
        has_pickle ? "; pytorch_model.bin is not read, save the model with safetensors" : "");
  return open_index(folder / kIndex);
}

}  // namespace snug::io
