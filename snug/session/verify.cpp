#include "snug/session/verify.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <vector>

#include "snug/tape/recording.h"

namespace snug {

namespace {

std::vector<at::Tensor> take_gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
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

}  // namespace

Deterministic::Deterministic(c10::Device device)
    : device_(device),
      before_(at::globalContext().deterministicAlgorithms()),
      before_warn_only_(at::globalContext().deterministicAlgorithmsWarnOnly()) {
  if (!device.is_cuda()) return;
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // read when the first product runs
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
}

Deterministic::~Deterministic() {
  at::globalContext().setDeterministicAlgorithms(before_, before_warn_only_);
  try {
    if (device_.is_cuda()) at::getDeviceAllocator(at::kCUDA)->emptyCache();
  } catch (const std::exception&) {  // the device failed, and that is on its way already
  }
}

Verified verify(const Treatment& treatment, const VerifyOptions& options) {
  const auto gradients = [&](const std::function<void()>& backward) {
    backward();
    return take_gradients(options.parameters);
  };
  const auto if_it_fits =
      [&](const std::function<void()>& backward) -> std::optional<std::vector<at::Tensor>> {
    try {
      return gradients(backward);
    } catch (const c10::OutOfMemoryError&) {
      take_gradients(options.parameters);  // what there is of them
      return std::nullopt;
    }
  };

  const auto plain = if_it_fits(options.backward);
  Verified verified{.micro_batches = options.micro_batches};
  auto recording = make_recording(treatment, {.verify = true, .prove = false});
  const std::vector<at::Tensor> planned = gradients(options.backward);
  for (const auto& [region, totals] : recording->totals()) {
    verified.values += totals.checked;
    verified.differing_values += totals.differing;
  }
  recording.reset();
  if (plain) compare(*plain, planned, verified);
  if (options.unsplit_backward)
    if (const auto unsplit = if_it_fits(options.unsplit_backward))
      verified.unsplit_difference = relative_difference(planned, *unsplit);
  return verified;
}

}  // namespace snug
