#include "snug/models/weights.h"

#include <ATen/ops/equal.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "snug/base/error.h"
#include "snug/io/weight_files.h"

namespace snug::models {
namespace {

using io::TensorEntry;

// Files of a model without its head leave out the name of what is around it.
std::string_view prefix(const ModelConfig& config) {
  return config.family == Family::Gpt2 ? "transformer." : "model.";
}

// Buffers that older versions of transformers saved with the weights.
bool is_of_no_use(std::string_view name, const ModelConfig& config) {
  if (config.family == Family::Gpt2)
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  return name.ends_with(".rotary_emb.inv_freq");
}

// Eight bits mean nothing without scales, of which nothing is known here.
bool is_plain(c10::ScalarType dtype) {
  return dtype == c10::kFloat || dtype == c10::kBFloat16 || dtype == c10::kHalf || dtype == c10::kDouble;
}

class Loader {
 public:
  Loader(LanguageModel& model, const HomeOf& home_of) : config_(model.config()), home_of_(home_of) {
    for (auto& item : model.named_parameters()) missing_.emplace(item.key(), item.value());
  }

  void load(const io::SafetensorsFile& file) {
    for (const TensorEntry& entry : file.entries()) {
      if (is_of_no_use(entry.name, config_)) continue;
      const std::string where = concat(file.path().string(), ": '", entry.name, "'");
      if (config_.tied_embeddings && entry.name == "lm_head.weight") {
        head_ = {&file, &entry};
        continue;
      }
      auto parameter = missing_.find(entry.name);
      if (parameter == missing_.end()) parameter = missing_.find(concat(prefix(config_), entry.name));
      check(parameter != missing_.end(), where, " is no parameter of the model that config.json describes");
      copy(file, entry, parameter->second, where);
      missing_.erase(parameter);
    }
  }

  void check_complete(const std::filesystem::path& folder) const {
    if (missing_.empty()) return;
    const auto& [name, parameter] = *missing_.begin();
    fail(folder.string(), ": '", name, "' ", parameter.sizes(), " is in no file",
         missing_.size() > 1 ? concat(", nor are ", missing_.size() - 1, " others") : "");
  }

  // A head beside an embedding that serves as the head must be the same tensor: else the model is another
  // one.
  void check_head(const at::Tensor& embedding) const {
    const auto [file, entry] = head_;
    if (!file) return;
    const bool same_shape = embedding.sizes() == at::IntArrayRef(entry->shape);
    const Home home = home_of(embedding);
    const bool same = same_shape && (embedding.is_meta() ||
                                     at::equal(stretch(*file, *entry, home).to(embedding.scalar_type()),
                                               home.tensor.view(-1).cpu()));
    file->release(*entry);
    check(same, file->path().string(),
          ": 'lm_head.weight' differs from the embedding, although config.json says that they are",
          " one; set tie_word_embeddings to false there");
  }

 private:
  Home home_of(const at::Tensor& parameter) const { return home_of_ ? home_of_(parameter) : Home{parameter}; }

  static at::Tensor stretch(const io::SafetensorsFile& file, const TensorEntry& entry, const Home& home) {
    return file.tensor(entry).view(-1).narrow(0, home.begin, home.tensor.numel());
  }

  void copy(const io::SafetensorsFile& file, const TensorEntry& entry, const at::Tensor& parameter,
            const std::string& where) const {
    check(is_plain(entry.dtype), where, ": expected F32, BF16, F16 or F64, got ",
          io::safetensors_name(entry.dtype));
    check(parameter.sizes() == at::IntArrayRef(entry.shape), where, ": the model needs ", parameter.sizes(),
          ", got ", at::IntArrayRef(entry.shape));
    if (parameter.is_meta()) return;
    const Home home = home_of(parameter);
    home.tensor.view(-1).copy_(stretch(file, entry, home));
    file.release(entry);
  }

  const ModelConfig& config_;
  const HomeOf& home_of_;
  std::map<std::string, at::Tensor> missing_;
  std::pair<const io::SafetensorsFile*, const TensorEntry*> head_ = {};  // that is not needed
};

}  // namespace

void load_weights(LanguageModel& model, const std::filesystem::path& folder, const HomeOf& home_of) {
  at::NoGradGuard no_grad;
  const io::WeightFiles weights(folder);
  Loader loader(model, home_of);
  for (const io::SafetensorsFile& file : weights.files()) loader.load(file);
  loader.check_complete(folder);
  loader.check_head(model.parameters()[0]);
}

void check_weights(const ModelConfig& config, const std::filesystem::path& folder) {
  load_weights(*make_model(config, {.tensors = at::kMeta, .fresh = false}), folder);
}

}  // namespace snug::models
