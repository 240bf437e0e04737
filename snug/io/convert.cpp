#include "snug/io/convert.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "snug/base/error.h"
#include "snug/base/json.h"
#include "snug/io/companions.h"
#include "snug/io/safetensors_header.h"
#include "snug/io/safetensors_writer.h"
#include "snug/io/training_state.h"
#include "snug/io/unfinished_folder.h"
#include "snug/io/weight_files.h"

namespace snug::io {
namespace fs = std::filesystem;

namespace {

// bf16 weights and the 16 bits that they lack (see optim::Master).
at::Tensor joined(const at::Tensor& weight, const at::Tensor& remainder) {
  return weight.view(at::kShort).to(at::kInt).bitwise_left_shift_(16).add_(remainder).view(at::kFloat);
}

// The exact value behind a 16-bit weight, where the optimizer of a training state has it; else undefined.
at::Tensor exact(const StoredTensors& optimizer, const std::string& name, const at::Tensor& weight) {
  const auto checked = [&](const StoredTensor& tensor, c10::ScalarType dtype) {
    check(tensor.dtype == dtype && weight.sizes() == at::IntArrayRef(tensor.shape), tensor.where(), " is ",
          safetensors_name(tensor.dtype), " ", at::IntArrayRef(tensor.shape), ", expected ",
          safetensors_name(dtype), " ", weight.sizes());
    return tensor.whole();
  };
  if (const StoredTensor* master = optimizer.find("master." + name)) return checked(*master, c10::kFloat);
  const StoredTensor* remainder = optimizer.find("remainder." + name);
  if (!remainder || weight.scalar_type() != c10::kBFloat16) return {};
  return joined(weight, checked(*remainder, c10::kShort));
}

void refuse_overflow(const at::Tensor& before, const at::Tensor& after, const std::string& where) {
  if (!after.is_floating_point() || !at::isinf(after).any().item<bool>()) return;
  const at::Tensor lost = before.masked_select(at::isinf(after) & at::isfinite(before));
  check(lost.numel() == 0, where, " holds ", lost.numel() > 0 ? lost[0].item<double>() : 0, ", more than ",
        safetensors_name(after.scalar_type()), " can: choose another `dtype`");
}

struct Shard {
  std::vector<TensorSource> tensors;
  std::uint64_t bytes = 0;
};

std::vector<Shard> in_shards(std::vector<TensorSource> tensors, std::uint64_t most) {
  std::vector<Shard> shards(1);
  for (TensorSource& tensor : tensors) {
    if (!shards.back().tensors.empty() && shards.back().bytes + tensor.bytes() > most) shards.emplace_back();
    shards.back().bytes += tensor.bytes();
    shards.back().tensors.push_back(std::move(tensor));
  }
  return shards;
}

void write_shards(const fs::path& folder, const std::vector<Shard>& shards) {
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  if (shards.size() == 1) {
    write_safetensors(folder / "model.safetensors", shards[0].tensors, metadata);
    return;
  }
  std::map<std::string, std::string> places;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_safetensors(folder / name, shards[i].tensors, metadata);
    for (const TensorSource& tensor : shards[i].tensors) places[tensor.name] = name;
    bytes += shards[i].bytes;
  }
  write_to_disk(folder / "model.safetensors.index.json",
                Json{{"metadata", {{"total_size", bytes}}}, {"weight_map", places}}.dump(2) + "\n");
}

void copy_config(const fs::path& from, const fs::path& to, std::optional<c10::ScalarType> dtype) {
  Json config = read_json(from);
  if (dtype) {
    config[config.contains("torch_dtype") ? "torch_dtype" : "dtype"] = config_name(*dtype);
    if (config.contains("torch_dtype")) config.erase("dtype");
  }
  write_to_disk(to, config.dump(2) + "\n");
}

}  // namespace

Converted convert_weights(const fs::path& from, const fs::path& to, const ConvertOptions& options) {
  std::error_code error;
  const fs::path target = to.has_filename() ? to : to.parent_path();
  check(!fs::exists(target, error), target.string(), ": exists already; expected a new folder");
  check(options.shard_bytes > 0, "a file of weights must hold more than 0 bytes");
  const StoredTensors weights = open_weights(from);
  std::optional<SavedState> state;
  if (is_training_state(from)) {
    if (options.dtype == c10::kFloat)
      state.emplace(from);
    else
      check_saved_model(from);
  }

  std::vector<TensorSource> sources;
  std::size_t done = 0;
  const std::size_t count = weights.all().size();
  for (const StoredTensor& tensor : weights.all()) {
    const bool changes = options.dtype && c10::isFloatingType(tensor.dtype);
    const c10::ScalarType dtype = changes ? *options.dtype : tensor.dtype;
    sources.push_back({tensor.name, dtype, tensor.shape, [&, dtype] {
                         if (options.stop && *options.stop)
                           throw RunError(concat(target.string(), ": stopped, and nothing was left there"));
                         const at::Tensor weight = tensor.whole();
                         at::Tensor value;
                         if (state && dtype == c10::kFloat)
                           value = exact(state->optimizer(), tensor.name, weight);
                         if (!value.defined()) value = weight;
                         const at::Tensor result = value.to(dtype, /*non_blocking=*/false, /*copy=*/true);
                         if (dtype != tensor.dtype) refuse_overflow(value, result, tensor.where());
                         tensor.release();
                         if (options.on_tensor) options.on_tensor(++done, count);
                         return result;
                       }});
  }

  UnfinishedFolder part(target);
  const std::vector<Shard> shards = in_shards(std::move(sources), options.shard_bytes);
  write_shards(part.path(), shards);
  if (fs::exists(from / "config.json", error))
    copy_config(from / "config.json", part.path() / "config.json", options.dtype);
  for (const auto& [name, bytes] : read_companions(from)) write_to_disk(part.path() / name, bytes);
  part.finish();

  Converted result{.tensors = count, .files = shards.size()};
  for (const Shard& shard : shards) result.bytes += shard.bytes;
  return result;
}

}  // namespace snug::io
