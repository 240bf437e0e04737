#include "snug/models/weights.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "snug/base/error.h"
#include "snug/io/weight_files.h"

namespace snug::models {
namespace {

using io::StoredTensor;

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

  void load(const StoredTensor& tensor) {
    if (is_of_no_use(tensor.name, config_)) return;
    if (config_.tied_embeddings && tensor.name == "lm_head.weight") {
      head_ = &tensor;
      return;
    }
    auto parameter = missing_.find(tensor.name);
    if (parameter == missing_.end()) parameter = missing_.find(concat(prefix(config_), tensor.name));
    check(parameter != missing_.end(), tensor.where(),
          " is no parameter of the model that config.json describes");
    copy(tensor, parameter->second);
    missing_.erase(parameter);
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
    if (!head_) return;
    const bool same_shape = embedding.sizes() == at::IntArrayRef(head_->shape);
    const bool same = same_shape && (embedding.is_meta() || is_same(*head_, home_of(embedding)));
    head_->release();
    check(same, head_->where(), " differs from the embedding, although config.json says that they are",
          " one; set tie_word_embeddings to false there");
  }

 private:
  Home home_of(const at::Tensor& parameter) const { return home_of_ ? home_of_(parameter) : Home{parameter}; }

  static bool is_same(const StoredTensor& tensor, const Home& home) {
    const at::Tensor there = home.tensor.view(-1).cpu();
    const at::Tensor stored = at::empty_like(there);
    tensor.copy_to(stored, home.begin);
    return at::equal(stored, there);
  }

  void copy(const StoredTensor& tensor, const at::Tensor& parameter) const {
    check(is_plain(tensor.dtype), tensor.where(), ": expected F32, BF16, F16 or F64, got ",
          io::safetensors_name(tensor.dtype));
    check(parameter.sizes() == at::IntArrayRef(tensor.shape), tensor.where(), ": the model needs ",
          parameter.sizes(), ", got ", at::IntArrayRef(tensor.shape));
    if (parameter.is_meta()) return;
    const Home home = home_of(parameter);
    tensor.copy_to(home.tensor, home.begin);
    tensor.release();
  }

  const ModelConfig& config_;
  const HomeOf& home_of_;
  std::map<std::string, at::Tensor> missing_;
  const StoredTensor* head_ = nullptr;  // that is not needed
};

}  // namespace

void load_weights(LanguageModel& model, const std::filesystem::path& folder, const HomeOf& home_of) {
  at::NoGradGuard no_grad;
  const io::StoredTensors weights = io::open_weights(folder);
  Loader loader(model, home_of);
  for (const StoredTensor& tensor : weights.all()) loader.load(tensor);
  loader.check_complete(folder);
  loader.check_head(model.parameters()[0]);
}

void check_weights(const ModelConfig& config, const std::filesystem::path& folder) {
  load_weights(*make_model(config, {.tensors = at::kMeta, .fresh = false}), folder);
}

}  // namespace snug::models
