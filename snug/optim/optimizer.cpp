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
#include "snug/host/host_tensor.h"
#include "snug/optim/deferred.h"
#include "snug/optim/host_parameters.h"
#include "snug/optim/host_states.h"
#include "snug/optim/host_steps.h"
#include "snug/optim/in_backward.h"

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

std::int64_t elements_of(const Placement& placement, const std::vector<at::Tensor>& parameters,
                         std::size_t i) {
  return placement.elements.empty() ? parameters[i].numel() : placement.elements[i];
}

}  // namespace

Optimizer::Optimizer(std::vector<at::Tensor> parameters, double lr, Master master,
                     std::vector<std::string> moments, const Placement& placement)
    : parameters_(std::move(parameters)),
      master_(master),
      moments_(std::move(moments)),
      there_(placement.parameters),
      lr_(lr) {
  check_parameters(parameters_);
  check_not_negative(lr, "lr");
  host::check_share_on_host(placement.on_host, "states");
  host::check_share_on_host(placement.stepped_there, "updates");
  at::NoGradGuard no_grad;
  states_.resize(parameters_.size());
  check(placement.elements.empty() || placement.elements.size() == parameters_.size(), "`elements` are of ",
        placement.elements.size(), " parameters, the optimizer has ", parameters_.size());
  is_hosted_ = choose_hosted(placement);
  if (std::ranges::count(is_hosted_, true) > 0)
    host_ = std::make_unique<HostStates>(parameters_[0].device(), placement.store);
  for (std::size_t i = 0; i < parameters_.size(); ++i) make_states(i, is_hosted_[i] ? host_.get() : nullptr);
  if (host_) make_buffers();
  if (host_ && placement.stepped_there > 0) choose_stepped_there(placement);
  listen(placement.update);
}

void Optimizer::listen(UpdateTime update) {
  const auto is_told = [this](hooks::RegionId region) { return there_ && there_->has_region(region); };
  if (update == UpdateTime::InBackward) {
    in_backward_ = std::make_unique<InBackward>(parameters_, is_told, [this] { wait_for_backward(); });
    if (there_) there_->told(this).before_send = [this] { in_backward_->take_complete(); };
  }
  if (update == UpdateTime::BeforeForward && host_) {
    deferred_ = std::make_unique<Deferred>(host_->stream_beside(), is_told);
    if (there_)
      there_->told(this).before_fetch = [this](hooks::RegionId region, bool wait) {
        return deferred_->ask_for_region(region, wait);
      };
  }
}

void Optimizer::choose_stepped_there(const Placement& placement) {
  stepped_there_ =
      std::make_unique<HostSteps>(parameters_[0].device(), placement.store, *host_, parameters_.size());
  // Spread evenly: the host and the link work on the same region, and then on the next. The first one
  // streams, which is the faster way for one alone.
  std::int64_t seen = 0, stepped = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    if (!is_hosted_[i]) continue;
    const std::int64_t elements = elements_of(placement, parameters_, i);
    seen += elements;
    const double owed = placement.stepped_there * static_cast<double>(seen) - static_cast<double>(stepped);
    if (owed < static_cast<double>(elements)) continue;
    stepped += elements;
    stepped_there_->add(
        i, parameter, has_weight_there(i) ? there_->home_of_weight(parameter) : at::Tensor(),
        there_ && there_->has_gradient(parameter) ? there_->home_of_gradient(parameter) : at::Tensor(),
        bytes_of_states(i, parameter.numel()));
  }
}

Optimizer::~Optimizer() {
  if (there_) there_->tell_no_more(this);
  if (deferred_ && deferred_->is_waiting())
    TORCH_WARN("updates that were deferred are lost: the destructor of this optimizer does not call end()");
}

bool Optimizer::has_master(std::size_t i) const {
  return parameters_[i].scalar_type() != at::kFloat;
}

bool Optimizer::has_weight_there(std::size_t i) const {
  return there_ && there_->has_weight(parameters_[i]);
}

std::uint64_t Optimizer::bytes_of_states(std::size_t i, std::int64_t elements) const {
  const at::Tensor& parameter = parameters_[i];
  const bool is_split = parameter.scalar_type() == at::kBFloat16 && master_ == Master::Split;
  const std::size_t of_master = !has_master(i) ? 0 : is_split ? sizeof(std::int16_t) : sizeof(float);
  return static_cast<std::uint64_t>(elements) * (moments_.size() * sizeof(float) + of_master);
}

// The last ones first: their regions run last in a forward.
std::vector<bool> Optimizer::choose_hosted(const Placement& placement) const {
  std::uint64_t all = 0, hosted = 0;
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    all += sizes.emplace_back(bytes_of_states(i, elements_of(placement, parameters_, i)));
  const auto most = static_cast<std::uint64_t>(std::llround(placement.on_host * static_cast<double>(all)));
  std::vector<bool> chosen(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    chosen[i] = there_ && (there_->has_weight(parameters_[i]) || there_->has_gradient(parameters_[i]));
    if (chosen[i]) hosted += sizes[i];
  }
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    const bool is_small = elements_of(placement, parameters_, i) < host::kFewElements;
    if (chosen[i] || sizes[i] == 0 || is_small || hosted + sizes[i] > most) continue;
    hosted += sizes[i];
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
  const at::Tensor whole = weight(i).to(at::kFloat);
  states_[i].push_back(home ? zeros(at::kFloat).copy_(whole) : whole);
}

at::Tensor Optimizer::weight(std::size_t i) const {
  check(i < parameters_.size(), "no parameter ", i, " among ", parameters_.size());
  check_whole();
  if (deferred_) deferred_->finish();
  wait_for_backward();
  return there_ ? there_->weight(parameters_[i]) : parameters_[i];
}

void Optimizer::finish_updates() const {
  check_whole();
  if (deferred_) deferred_->finish();
  wait_for_backward();
  attempt([this] {
    if (stepped_there_) stepped_there_->finish();
    if (host_) host_->finish();
  });
}

at::Tensor Optimizer::exact(std::size_t i) const {
  at::NoGradGuard no_grad;
  const at::Tensor weight = this->weight(i);
  finish_updates();
  if (!has_master(i)) return weight.detach().clone();
  const at::Tensor master = states_[i].back().to(weight.device());
  if (master.scalar_type() == at::kFloat) return master.clone();
  const at::Tensor high = weight.view(at::kShort).to(at::kInt).bitwise_left_shift_(16);
  return high.add_(master).view(at::kFloat);
}

std::vector<StateTensor> Optimizer::state() const {
  finish_updates();
  std::vector<StateTensor> state;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (std::size_t k = 0; k < moments_.size(); ++k)
      state.push_back({i, moments_[k], states_[i][k], is_hosted_[i]});
    if (!has_master(i)) continue;
    const at::Tensor& master = states_[i].back();
    state.push_back({i, master.scalar_type() == at::kShort ? "remainder" : "master", master, is_hosted_[i]});
  }
  return state;
}

void Optimizer::set_before_write(std::function<void(std::size_t)> tell) {
  before_write_ = std::move(tell);
  if (!there_) return;
  there_->told(this).before_write = [this](const at::Tensor& weight) {
    const auto found =
        std::ranges::find_if(parameters_, [&](const at::Tensor& p) { return p.is_same(weight); });
    if (before_write_ && found != parameters_.end())
      before_write_(static_cast<std::size_t>(found - parameters_.begin()));
  };
}

std::uint64_t Optimizer::state_bytes() const {
  std::uint64_t bytes = 0;
  for (const StateTensor& state : state()) bytes += state.tensor.nbytes();
  return bytes;
}

std::uint64_t Optimizer::host_bytes() const {
  return host_ ? host_->bytes() : 0;
}

SteppedThere Optimizer::stepped_there() const {
  return stepped_there_ ? stepped_there_->all() : SteppedThere();
}

void check_not_negative(double value, const char* name) {
  check(std::isfinite(value) && value >= 0, name, " must be finite and at least 0, got ", value);
}

}  // namespace snug::optim
