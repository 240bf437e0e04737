#include "snug/train/verify.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <vector>

#include "snug/host/arena.h"
#include "snug/train/predict.h"
#include "snug/train/step.h"

namespace snug::train {

namespace {

// On a GPU attention's backward adds in any order: without this the plain step would differ from itself.
class Deterministic {
 public:
  explicit Deterministic(c10::Device device) {
    if (!device.is_cuda()) return;
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // read when the first product runs
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  ~Deterministic() { at::globalContext().setDeterministicAlgorithms(before_, before_warn_only_); }
  Deterministic(const Deterministic&) = delete;  // it is a stretch of time
  Deterministic& operator=(const Deterministic&) = delete;

 private:
  bool before_ = at::globalContext().deterministicAlgorithms();
  bool before_warn_only_ = at::globalContext().deterministicAlgorithmsWarnOnly();
};

// What torch's allocator keeps of a plain step would count against the budget of what runs next.
class CacheReturned {
 public:
  explicit CacheReturned(c10::Device device) : device_(device) {}
  ~CacheReturned() {
    try {
      if (device_.is_cuda()) at::getDeviceAllocator(at::kCUDA)->emptyCache();
    } catch (const std::exception&) {  // the device failed, and that is on its way already
    }
  }
  CacheReturned(const CacheReturned&) = delete;  // it is a stretch of time
  CacheReturned& operator=(const CacheReturned&) = delete;

 private:
  c10::Device device_;
};

std::vector<at::Tensor> take_gradients(models::LanguageModel& model) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : model.parameters()) {
    gradients.push_back(parameter.grad().defined() ? parameter.grad().cpu() : at::Tensor());
    parameter.mutable_grad().reset();
  }
  return gradients;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto bytes = [](const at::Tensor& tensor) { return tensor.contiguous().view(at::kByte); };
  return a.sizes() == b.sizes() && at::equal(bytes(a.reshape(-1)), bytes(b.reshape(-1)));
}

void compare(const std::vector<at::Tensor>& plain, const std::vector<at::Tensor>& planned,
             Verified& verified) {
  for (std::size_t i = 0; i < plain.size(); ++i) {
    if (!plain[i].defined() && !planned[i].defined()) continue;
    ++verified.tensors;
    if (plain[i].defined() && planned[i].defined() && same_bits(plain[i], planned[i])) continue;
    ++verified.differing_tensors;
    if (plain[i].defined() && planned[i].defined())
      verified.largest_difference =
          std::max(verified.largest_difference,
                   at::nan_to_num((plain[i].to(at::kDouble) - planned[i].to(at::kDouble)).abs(),
                                  /*nan=*/std::numeric_limits<double>::infinity())
                       .max()
                       .item<double>());
  }
}

double relative_difference(const std::vector<at::Tensor>& planned, const std::vector<at::Tensor>& unsplit) {
  double differences = 0, squares = 0;
  const auto square = [](const at::Tensor& tensor) { return tensor.pow(2).sum().item<double>(); };
  for (std::size_t i = 0; i < planned.size(); ++i) {
    if (!planned[i].defined() || !unsplit[i].defined()) continue;
    const at::Tensor whole = unsplit[i].to(at::kDouble);
    differences += square(planned[i].to(at::kDouble) - whole);
    squares += square(whole);
  }
  return squares > 0 ? std::sqrt(differences / squares) : std::sqrt(differences);
}

// On the CPU nobody refuses memory before it is too late.
bool may_fit(const TrainConfig& config) {
  return !config.device.is_cpu() || predict(config).peak.total <= host::free_host_bytes();
}

}  // namespace

Verified verify(const TrainConfig& config) {
  validate(config);
  const io::TokenDataset data = open_data(config);
  const Deterministic deterministic(config.device);
  prepare(config.device);
  const CacheReturned cache_returned(config.device);
  memory::Tracker tracker({.device = config.device});
  at::manual_seed(config.seed);
  TrainingSetup setup(config, config.device, tracker);
  const io::Batch host = data.batch(0, config.batch_size);
  const io::Batch batch{host.tokens.to(config.device), host.targets.to(config.device)};
  const auto gradients = [&](const TrainConfig& split) {
    const double scale = first_loss_scale(config).value_or(1);
    accumulate_gradients(*setup.model, batch, split,
                         scale / static_cast<double>(count_targets(batch.targets)));
    return take_gradients(*setup.model);
  };
  const auto if_it_fits = [&](const TrainConfig& split) -> std::optional<std::vector<at::Tensor>> {
    try {
      return gradients(split);
    } catch (const c10::OutOfMemoryError&) {
      take_gradients(*setup.model);  // what there is of them
      return std::nullopt;
    }
  };

  const auto plain = if_it_fits(config);
  Verified verified{.micro_batches = config.accumulation()};
  auto recording = make_recording(config, {.verify = true});
  const std::vector<at::Tensor> planned = gradients(config);
  for (const auto& [region, totals] : recording->totals()) {
    verified.values += totals.checked;
    verified.differing_values += totals.differing;
  }
  recording.reset();
  if (plain) compare(*plain, planned, verified);
  TrainConfig whole = config;
  whole.plan.reset();
  whole.micro_batch = config.batch_size;
  whole.head_chunks = 0;
  if (config.accumulation() > 1 && may_fit(whole))
    if (const auto unsplit = if_it_fits(whole))
      verified.unsplit_difference = relative_difference(planned, *unsplit);
  return verified;
}

}  // namespace snug::train
