#include "snug/optim/host_steps.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "snug/host/host_tensor.h"

namespace snug::optim {

HostSteps::HostSteps(c10::Device device, std::shared_ptr<host::Store> store, HostStates& states,
                     std::size_t parameters)
    : device_(device), store_(std::move(store)), states_(states), homes_(parameters) {
  const auto count = static_cast<std::int64_t>(parameters);
  numbers_ = at::zeros({count, 4}, at::TensorOptions(at::kFloat).device(device));
  numbers_there_ = states_.zeros({count, 4}, at::kFloat);
  if (store_) worker_ = std::make_unique<HostWorker>(store_);
}

void HostSteps::add(std::size_t i, const at::Tensor& parameter, const at::Tensor& weight,
                    const at::Tensor& gradient, std::uint64_t bytes_of_states) {
  Home& home = homes_[i];
  const at::ScalarType of_gradient = parameter.grad_dtype().value_or(parameter.scalar_type());
  home = {.weight = weight.defined() ? weight : states_.zeros(parameter.sizes(), parameter.scalar_type()),
          .gradient = gradient.defined() ? gradient : states_.zeros(parameter.sizes(), of_gradient),
          .has_weight_here = !weight.defined()};
  const std::uint64_t bytes_of_gradient = host::host_bytes(home.gradient);
  all_.parameters += static_cast<std::uint64_t>(parameter.numel());
  all_.bytes += bytes_of_states + host::host_bytes(home.weight) + bytes_of_gradient;
  if (gradient.defined())
    all_.gradient_bytes += home.gradient.nbytes();
  else
    all_.sent_bytes += bytes_of_gradient;
  if (!home.has_weight_here) return;
  all_.sent_bytes += parameter.nbytes();
  all_.fetched_bytes += parameter.nbytes();
}

bool HostSteps::takes(std::size_t i, const at::Tensor& gradient) const {
  return homes_[i].gradient.defined() && homes_[i].gradient.scalar_type() == gradient.scalar_type();
}

// Rows of others in between are as they were.
void HostSteps::begin(const std::vector<std::size_t>& which, const ops::UpdateControl& control,
                      const at::Tensor& numbers) {
  const auto [first, last] = std::ranges::minmax(which);
  const auto rows = [&](const at::Tensor& all) {
    return all.narrow(0, static_cast<std::int64_t>(first), static_cast<std::int64_t>(last - first + 1));
  };
  const at::Tensor here = rows(numbers_);
  const auto set = [&](std::int64_t place, const std::optional<at::Tensor>& value, float otherwise) {
    const at::Tensor column = here.select(1, place);
    value ? column.copy_(value->view(at::IntArrayRef{}).expand_as(column)) : column.fill_(otherwise);
  };
  set(0, control.factor, 1);
  set(1, control.skip, 0);
  if (numbers.defined()) here.narrow(1, 2, 2).copy_(rows(numbers));
  if (!store_) return;
  begun_ = store_->link().mark();
  numbers_sent_ = store_->link().copy_to_host(here.const_data_ptr(), rows(numbers_there_).mutable_data_ptr(),
                                              here.nbytes(), nullptr, begun_);
}

AskedOfHost HostSteps::push(std::size_t i, const at::Tensor& parameter, const at::Tensor& gradient,
                            std::vector<host::CopyPtr> before, std::function<void(const Here&)> update) {
  const Home& home = homes_[i];
  if (home.has_weight_here) parameter.unsafeGetTensorImpl()->bump_version();  // as an operator that writes
  if (!store_) return {};
  AskedOfHost asked;
  const auto send = [&](const at::Tensor& from, const at::Tensor& to) {
    asked.sent.push_back(store_->link().copy_to_host(from.const_data_ptr(), to.mutable_data_ptr(),
                                                     from.nbytes(), nullptr, begun_));
  };
  try {
    if (gradient.defined()) send(gradient, home.gradient);
    if (home.has_weight_here) send(parameter, home.weight);
  } catch (...) {  // what was asked for before still reads what the caller may free then
    host::finish_all(asked.sent);
    throw;
  }
  before.push_back(numbers_sent_);
  before.insert(before.end(), asked.sent.begin(), asked.sent.end());
  const at::Tensor row = numbers_there_.select(0, static_cast<std::int64_t>(i));
  Here here{.weight = home.weight,
            .gradient = home.gradient,
            .control = {row.select(0, 0), row.select(0, 1),
                        device_.is_cuda() ? ops::Arithmetic::Cuda : ops::Arithmetic::OfDevice},
            .numbers = row.narrow(0, 2, 2)};
  asked.ticket =
      worker_->push({.before = std::move(before),
                     .update = [here = std::move(here), update = std::move(update)] { update(here); },
                     .weight = home.weight,
                     .to = home.has_weight_here ? parameter.mutable_data_ptr() : nullptr});
  return asked;
}

void HostSteps::finish() {
  if (worker_) worker_->finish();
  if (numbers_sent_) numbers_sent_->finish();
}

}  // namespace snug::optim
