#include "snug/io/files_of_ranks.h"

#include <system_error>
#include <vector>

#include "snug/base/error.h"

namespace snug::io {
namespace fs = std::filesystem;

namespace {

StoredTensors open(const fs::path& folder, const char* what) {
  const std::string where = (folder / kShapes).string();
  const JsonReader json(read_json(folder / kShapes), where);
  const auto ranks = json.required<std::int64_t>("ranks");
  check(ranks >= 1 && ranks <= 1'000'000, where, ": ranks must be at least 1, got ", ranks);
  const Json shapes = json.required<Json>(what);
  json.ignore("model");
  json.ignore("optimizer");
  json.refuse_unread();
  StoredTensors::Shapes whole;
  check(shapes.is_object(), where, ": ", what, " must be an object from tensors to shapes");
  for (const auto& [name, shape] : shapes.items()) {
    check(shape.is_array(), where, ": the shape of '", name, "' must be a list, got ", shape.dump());
    for (const Json& length : shape) {
      check(length.is_number_integer() && length.get<std::int64_t>() >= 0, where, ": the shape of '", name,
            "' must be of whole numbers, got ", shape.dump());
      whole[name].push_back(length.get<std::int64_t>());
    }
  }
  std::vector<fs::path> files;
  for (int rank = 0; rank < ranks; ++rank)
    files.push_back(folder / file_of_rank(what, rank, static_cast<int>(ranks)));
  return StoredTensors(files, whole);
}

}  // namespace

std::string file_of_rank(std::string_view stem, int rank, int ranks) {
  return concat(stem, "-rank-", rank, "-of-", ranks, ".safetensors");
}

bool is_written_by_ranks(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / kShapes, ignored);
}

bool is_file_of_ranks(const std::string& name) {
  const bool is_of_tensors = name.starts_with("model-rank-") || name.starts_with("optimizer-rank-");
  return name == kShapes || (is_of_tensors && name.ends_with(".safetensors"));
}

Json shapes_json(int ranks, const StoredTensors::Shapes& model, const StoredTensors::Shapes& optimizer) {
  return {{"ranks", ranks}, {"model", model}, {"optimizer", optimizer}};
}

StoredTensors open_model_of_ranks(const fs::path& folder) {
  return open(folder, "model");
}

StoredTensors open_optimizer_of_ranks(const fs::path& folder) {
  return open(folder, "optimizer");
}

}  // namespace snug::io
