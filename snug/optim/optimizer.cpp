#include "snug/optim/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "snug/base/error.h"
#include "snug/hooks/region.h"
#include "snug/optim/deferred.h"
#include "snug/optim/host_states.h"

namespace snug::optim {
namespace {

void check_parameters(const std::vector<at::Tensor>& parameters) {
  check(!parameters.empty(), "an optimizer needs at least one parameter, got none");
  std::unordered_map<const void*, std::size_t> seen;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    check(parameter.defined(), "parameter ", i, " is undefined");
    const auto [first, is_new] = seen.emplace(parameter.unsafeGetTensorImpl(), i);
    check(is_new, "parameter ", i, " is parameter ", first->second, " again; give tied parameters once");
    const at::ScalarType type = parameter.scalar_type();
    check(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, "parameter ", i, " is ", type,
          "; expected Float, BFloat16 or Half");
    check(parameter.is_contiguous(), "parameter ", i, " of shape ", parameter.sizes(),
          " is not contiguous; make it so before it goes to the optimizer");
    check(parameter.device() == parameters[0].device(), "parameter ", i, " is on ", parameter.device(),
          ", parameter 0 on ", parameters[0].device(), "; expected one device");
  }
}

constexpr std::int64_t kFewElements = 16 * 1024;  // whose copies cost more than their memory is worth

bool is_usable(const at::Tensor& gradient, const at::Tensor& parameter) {
  return gradient.is_contiguous() &&
         (gradient.scalar_type() == at::kFloat || gradient.scalar_type() == parameter.scalar_type());
}

}  // namespace

Optimizer::Optimizer(std::vector<at::Tensor> parameters, double lr, Master master,
                     std::vector<std::string> moments, const Placement& placement)
    : parameters_(std::move(parameters)), master_(master), moments_(std::move(moments)), lr_(lr) {
  check_parameters(parameters_);
  check_not_negative(lr, "lr");
  check(placement.on_host >= 0 && placement.on_host <= 1,
        "the share of states on the host must be between 0 and 1, got ", placement.on_host);
  at::NoGradGuard no_grad;
  states_.resize(parameters_.size());
  is_hosted_ = choose_hosted(placement.on_host);
  std::vector<HostStates::Group> groups;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_hosted_[i] && !host_)
      host_ = std::make_unique<HostStates>(parameters_[0].device(), placement.store);
    make_states(i, is_hosted_[i] ? host_.get() : nullptr);
    if (is_hosted_[i]) groups.push_back(states_[i]);
  }
  if (host_) host_->reserve_buffers(groups);
  if (host_ && placement.update == UpdateTime::BeforeForward)
    deferred_ = std::make_unique<Deferred>(host_->stream_beside());
}

Optimizer::~Optimizer() {
  if (deferred_ && deferred_->is_waiting())
    TORCH_WARN("updates that were deferred are lost: the destructor of this optimizer does not call end()");
}

bool Optimizer::has_master(std::size_t i) const {
  return parameters_[i].scalar_type() != at::kFloat;
}

std::uint64_t Optimizer::bytes_of_states(std::size_t i) const {
  const at::Tensor& parameter = parameters_[i];
  const bool is_split = parameter.scalar_type() == at::kBFloat16 && master_ == Master::Split;
  const std::size_t of_master = !has_master(i) ? 0 : is_split ? sizeof(std::int16_t) : sizeof(float);
  return static_cast<std::uint64_t>(parameter.numel()) * (moments_.size() * sizeof(float) + of_master);
}

// The last ones first: their regions run last in a forward.
std::vector<bool> Optimizer::choose_hosted(double share) const {
  std::uint64_t all = 0, hosted = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) all += bytes_of_states(i);
  const auto most = static_cast<std::uint64_t>(std::llround(share * static_cast<double>(all)));
  std::vector<bool> chosen(parameters_.size());
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    const std::uint64_t bytes = bytes_of_states(i);
    if (bytes == 0 || parameters_[i].numel() < kFewElements || hosted + bytes > most) continue;
    hosted += bytes;
    chosen[i] = true;
  }
  return chosen;
}

void Optimizer::make_states(std::size_t i, HostStates* home) {
  const at::Tensor& parameter = parameters_[i];
  const auto zeros = [&](at::ScalarType dtype) {
    return home ? home->zeros(parameter.sizes(), dtype)
                : at::zeros_like(parameter, at::TensorOptions(dtype).requires_grad(false));
  };
  for (std::size_t k = 0; k < moments_.size(); ++k) states_[i].push_back(zeros(at::kFloat));
  if (!has_master(i)) return;
  if (parameter.scalar_type() == at::kBFloat16 && master_ == Master::Split) {
    states_[i].push_back(zeros(at::kShort));
    return;
  }
  const at::Tensor whole = parameter.to(at::kFloat);
  states_[i].push_back(home ? zeros(at::kFloat).copy_(whole) : whole);
}

void Optimizer::step(double lr, const ops::UpdateControl& control) {
  check_not_negative(lr, "lr");
  at::NoGradGuard no_grad;
  if (deferred_) deferred_->check_unused();
  finish();
  std::vector<std::size_t> which, later;
  std::vector<at::Tensor> usable, later_usable;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    if (!gradient.defined()) continue;
    check(gradient.layout() == at::kStrided, "the gradient of parameter ", i, " is ", gradient.layout(),
          "; expected a dense one");
    if (!is_usable(gradient, parameters_[i])) {
      update_all({i}, {gradient.to(at::kFloat).contiguous()}, lr, control);
      continue;
    }
    const bool waits = deferred_ && is_hosted_[i] && hooks::region_of_parameter(parameters_[i]) != 0;
    (waits ? later : which).push_back(i);
    (waits ? later_usable : usable).push_back(gradient);
  }
  if (!which.empty()) update_all(which, usable, lr, control);
  if (!later.empty()) defer(later, later_usable, lr, control);
}

void Optimizer::begin_update(const std::vector<std::size_t>&, const ops::UpdateControl&) {}

Optimizer::Part Optimizer::part(std::size_t i, const at::Tensor& weight, const at::Tensor& gradient,
                                const std::vector<at::Tensor>& states) const {
  const auto end_of_moments = states.begin() + static_cast<std::ptrdiff_t>(moments_.size());
  return {.parameter = i,
          .weight = weight,
          .gradient = gradient,
          .master = has_master(i) ? states.back() : weight,
          .moments = {states.begin(), end_of_moments}};
}

void Optimizer::update_all(const std::vector<std::size_t>& which, const std::vector<at::Tensor>& gradients,
                           double lr, const ops::UpdateControl& control) {
  begin_update(which, control);
  std::vector<Part> here;
  std::vector<std::size_t> hosted;  // their places
  std::vector<HostStates::Group> groups;
  for (std::size_t place = 0; place < which.size(); ++place) {
    const std::size_t i = which[place];
    if (is_hosted_[i]) {
      hosted.push_back(place);
      groups.push_back(states_[i]);
    } else {
      here.push_back(part(i, parameters_[i], gradients[place], states_[i]));
    }
  }
  // Those that are here beside the last copies.
  if (!hosted.empty())
    HostStates::Walk(*host_, groups, [&](const HostStates::Slice& slice) {
      const std::size_t place = hosted[slice.group];
      update_stretch(which[place], slice.begin, gradients[place], slice.tensors, lr, control);
    }).go_to(groups.size());
  if (!here.empty()) update(here, lr, control);
}

void Optimizer::update_stretch(std::size_t i, std::int64_t begin, const at::Tensor& gradient,
                               const std::vector<at::Tensor>& states, double lr,
                               const ops::UpdateControl& control) {
  const auto stretch = [&](const at::Tensor& whole) {
    return whole.view(-1).narrow(0, begin, states.front().numel());
  };
  update({part(i, stretch(parameters_[i]), stretch(gradient), states)}, lr, control);
}

// The settings of this step go with them. Regions come in the order of their first parameters.
void Optimizer::defer(const std::vector<std::size_t>& which, const std::vector<at::Tensor>& gradients,
                      double lr, const ops::UpdateControl& control) {
  begin_update(which, control);
  const auto updates = std::make_shared<std::vector<Deferred::Update>>();
  std::unordered_map<hooks::RegionId, std::size_t> order;
  for (std::size_t place = 0; place < which.size(); ++place) {
    at::Tensor& parameter = parameters_[which[place]];
    const hooks::RegionId region = hooks::region_of_parameter(parameter);
    order.try_emplace(region, order.size());
    updates->push_back({which[place], parameter, gradients[place], region});
    parameter.mutable_grad().reset();
  }
  std::ranges::stable_sort(*updates, {}, [&](const auto& update) { return order.at(update.region); });
  std::vector<HostStates::Group> groups;
  for (const Deferred::Update& update : *updates) groups.push_back(states_[update.number]);
  const auto walk = std::make_shared<HostStates::Walk>(
      *host_, std::move(groups), [this, updates, lr, control](const HostStates::Slice& slice) {
        const Deferred::Update& update = (*updates)[slice.group];
        update_stretch(update.number, slice.begin, update.gradient, slice.tensors, lr, control);
      });
  deferred_->begin(updates, [walk](std::size_t count) { walk->go_to(count); });
}

void Optimizer::finish() {
  if (deferred_) deferred_->finish();
}

void Optimizer::end() noexcept try { finish(); } catch (const std::exception& error) {
  TORCH_WARN("an update that was deferred failed: ", error.what());
}

void Optimizer::zero_grad() {
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

std::vector<at::Tensor> Optimizer::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

at::Tensor Optimizer::exact(std::size_t i) const {
  check(i < parameters_.size(), "no parameter ", i, " among ", parameters_.size());
  at::NoGradGuard no_grad;
  if (deferred_) deferred_->finish();
  if (host_) host_->finish();
  if (!has_master(i)) return parameters_[i].detach().clone();
  const at::Tensor master = states_[i].back().to(parameters_[i].device());
  if (master.scalar_type() == at::kFloat) return master.clone();
  const at::Tensor high = parameters_[i].view(at::kShort).to(at::kInt).bitwise_left_shift_(16);
  return high.add_(master).view(at::kFloat);
}

std::vector<StateTensor> Optimizer::state() const {
  if (deferred_) deferred_->finish();
  if (host_) host_->finish();
  std::vector<StateTensor> state;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (std::size_t k = 0; k < moments_.size(); ++k) state.push_back({i, moments_[k], states_[i][k]});
    if (!has_master(i)) continue;
    const at::Tensor& master = states_[i].back();
    state.push_back({i, master.scalar_type() == at::kShort ? "remainder" : "master", master});
  }
  return state;
}

std::uint64_t Optimizer::state_bytes() const {
  std::uint64_t bytes = 0;
  for (const StateTensor& state : state()) bytes += state.tensor.nbytes();
  return bytes;
}

std::uint64_t Optimizer::host_bytes() const {
  return host_ ? host_->bytes() : 0;
}

ops::UpdateTensors Optimizer::tensors_of(const std::vector<Part>& parts) {
  ops::UpdateTensors tensors;
  for (const Part& part : parts) {
    tensors.weights.push_back(part.weight);
    tensors.gradients.push_back(part.gradient);
    tensors.masters.push_back(part.master);
  }
  return tensors;
}

void check_not_negative(double value, const char* name) {
  check(std::isfinite(value) && value >= 0, name, " must be finite and at least 0, got ", value);
}

}  // namespace snug::optim
