// How parameters are updated: in step(), in the backward, or later; on the device, streamed through it, or by
// the host.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <unordered_map>
#include <utility>

#include "snug/base/error.h"
#include "snug/hooks/region.h"
#include "snug/optim/clip.h"
#include "snug/optim/deferred.h"
#include "snug/optim/host_parameters.h"
#include "snug/optim/host_states.h"
#include "snug/optim/host_steps.h"
#include "snug/optim/in_backward.h"
#include "snug/optim/optimizer.h"
#include "snug/optim/streams.h"

namespace snug::optim {
namespace {

// The device waits for the weight. On Meta there is nothing to wait for.
void wait_for(const HostWorker::Ticket& ticket) {
  if (!ticket.valid()) return;
  if (const host::CopyPtr copy = ticket.get()) copy->wait();
}

bool is_done(const HostWorker::Ticket& ticket) {
  return !ticket.valid() || ticket.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

bool is_usable(const at::Tensor& gradient, const at::Tensor& parameter) {
  return gradient.is_contiguous() &&
         (gradient.scalar_type() == at::kFloat || gradient.scalar_type() == parameter.scalar_type());
}

std::vector<hooks::RegionId> regions_of(const std::vector<at::Tensor>& parameters) {
  std::vector<hooks::RegionId> regions;
  for (const at::Tensor& parameter : parameters)
    if (const hooks::RegionId region = hooks::region_of_parameter(parameter);
        region != 0 && std::ranges::find(regions, region) == regions.end())
      regions.push_back(region);
  return regions;
}

}  // namespace

// An update takes what is on the host through the device: the states of a parameter, then its weight and its
// gradient if they are there.
struct Optimizer::Streamed {
  static HostStates::Group group(const Optimizer& optimizer, const Pending& update) {
    HostStates::Group group;
    for (const at::Tensor& state : optimizer.states_[update.number]) group.push_back({state});
    const at::Tensor& parameter = optimizer.parameters_[update.number];
    if (optimizer.has_weight_there(update.number))
      group.push_back({optimizer.there_->home_of_weight(parameter), /*is_written=*/true,
                       optimizer.there_->last_written(parameter)});
    if (update.gradient_is_there) group.push_back({update.gradient, /*is_written=*/false});
    return group;
  }

  static void update(Optimizer& optimizer, const Pending& update, const HostStates::Slice& slice, double lr,
                     const ops::UpdateControl& control) {
    if (optimizer.before_write_) optimizer.before_write_(update.number);
    const auto stretch = [&](const at::Tensor& whole) {
      return whole.view(-1).narrow(0, slice.begin, slice.count);
    };
    auto next = slice.tensors.begin() + static_cast<std::ptrdiff_t>(optimizer.states_[update.number].size());
    const std::vector<at::Tensor> states(slice.tensors.begin(), next);
    const at::Tensor weight =
        optimizer.has_weight_there(update.number) ? *next++ : stretch(optimizer.parameters_[update.number]);
    const at::Tensor gradient = update.gradient_is_there ? *next : stretch(update.gradient);
    optimizer.update({optimizer.part(update.number, weight, gradient, states)}, lr, control);
  }
};

// A gradient that may be on the host need not be.
void Optimizer::make_buffers() {
  std::vector<HostStates::Group> groups;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_hosted_[i]) continue;
    groups.push_back(Streamed::group(*this, {.number = i}));
    if (there_ && there_->has_gradient(parameters_[i]))
      groups.back().push_back({there_->home_of_gradient(parameters_[i]), /*is_written=*/false});
  }
  host_->reserve_buffers(groups);
}

// What has no gradient is not updated.
Optimizer::Pending Optimizer::pending(std::size_t i) const {
  const at::Tensor& parameter = parameters_[i];
  if (there_ && there_->gradient_is_there(parameter))
    return {i, there_->home_of_gradient(parameter), /*gradient_is_there=*/true};
  const at::Tensor& gradient = parameter.grad();
  if (gradient.defined())
    check(gradient.layout() == at::kStrided, "the gradient of parameter ", i, " is ", gradient.layout(),
          "; expected a dense one");
  return {i, gradient};
}

void Optimizer::check_whole() const {
  check(!is_half_updated_,
        "an update failed before it was through: weights and states no longer belong together; go on from a "
        "saved state");
}

void Optimizer::attempt(const std::function<void()>& part) const {
  check_whole();
  try {
    part();
  } catch (...) {
    is_half_updated_ = true;
    throw;
  }
}

void Optimizer::step(double lr, const ops::UpdateControl& control) {
  check_not_negative(lr, "lr");
  check_whole();
  at::NoGradGuard no_grad;
  if (deferred_) deferred_->check_unused();
  check_used_once();
  const bool had_backward = end_backward();
  check(!had_backward || (!control.factor && !control.skip),
        "gradients that were used in the backward cannot be clipped, unscaled or skipped any more: leave out "
        "last_pass(), or `control`");
  finish();
  if (host_) host_->begin_walks();
  if (there_) there_->before_update();
  std::vector<Pending> now, later;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Pending update = pending(i);
    if (!update.gradient.defined()) continue;
    if (!update.gradient_is_there && !is_usable(update.gradient, parameters_[i])) {
      update.gradient = update.gradient.to(at::kFloat).contiguous();
      attempt([&] { update_all({update}, lr, control); });
      continue;
    }
    const bool is_elsewhere = is_stepped_there(update) || is_streamed(update);
    const bool waits = deferred_ && is_elsewhere && hooks::region_of_parameter(parameters_[i]) != 0;
    (waits ? later : now).push_back(std::move(update));
  }
  attempt([&] {
    if (!now.empty()) update_all(now, lr, control);
    if (!later.empty()) defer(later, lr, control);
  });
}

void Optimizer::count_step(const std::vector<std::size_t>&, const ops::UpdateControl&) {}

void Optimizer::begin_update(const std::vector<Pending>& which, const ops::UpdateControl& control) {
  std::vector<std::size_t> numbers;
  for (const Pending& update : which) {
    numbers.push_back(update.number);
    if (there_) there_->note_update(parameters_[update.number]);
  }
  count_step(numbers, control);
  if (std::ranges::any_of(which, [&](const Pending& update) { return is_stepped_there(update); }))
    stepped_there_->begin(numbers, control, numbers_of_step());
}

bool Optimizer::is_stepped_there(const Pending& update) const {
  return stepped_there_ && stepped_there_->takes(update.number, update.gradient);
}

// What has no states, with its weight and this gradient on the device, has nothing to bring there.
bool Optimizer::is_streamed(const Pending& update) const {
  return is_hosted_[update.number] && !Streamed::group(*this, update).empty();
}

AskedOfHost Optimizer::ask_host(const Pending& update, double lr) {
  const std::size_t i = update.number;
  const at::Tensor& parameter = parameters_[i];
  if (before_write_) before_write_(i);
  const auto step_it = [this, i, lr](const HostSteps::Here& here) {
    Part whole = part(i, here.weight, here.gradient, states_[i]);
    whole.numbers = here.numbers;
    this->update({whole}, lr, here.control);
  };
  return stepped_there_->push(i, parameter, update.gradient_is_there ? at::Tensor() : update.gradient,
                              there_ ? there_->copies_of(parameter) : std::vector<host::CopyPtr>(), step_it);
}

Optimizer::Part Optimizer::part(std::size_t i, const at::Tensor& weight, const at::Tensor& gradient,
                                const std::vector<at::Tensor>& states) const {
  const auto end_of_moments = states.begin() + static_cast<std::ptrdiff_t>(moments_.size());
  return {.parameter = i,
          .weight = weight,
          .gradient = gradient,
          .master = has_master(i) ? states.back() : weight,
          .moments = {states.begin(), end_of_moments}};
}

void Optimizer::update_all(const std::vector<Pending>& which, double lr, const ops::UpdateControl& control) {
  begin_update(which, control);
  std::vector<Part> here;
  std::vector<Ticket> there;
  std::vector<Pending> streamed;
  for (const Pending& update : which) {
    const std::size_t i = update.number;
    if (is_stepped_there(update)) {
      there.push_back(ask_host(update, lr).ticket);
    } else if (is_streamed(update)) {
      streamed.push_back(update);
    } else {
      here.push_back(part(i, parameters_[i], update.gradient, states_[i]));
    }
  }
  // Those that are here beside the last copies.
  stream(streamed, lr, control);
  if (!here.empty()) update(here, lr, control);
  for (const Ticket& ticket : there) wait_for(ticket);
}

void Optimizer::stream(const std::vector<Pending>& which, double lr, const ops::UpdateControl& control) {
  if (which.empty()) return;
  std::vector<HostStates::Group> groups;
  for (const Pending& update : which) groups.push_back(Streamed::group(*this, update));
  HostStates::Walk(*host_, std::move(groups), [&](const HostStates::Slice& slice) {
    Streamed::update(*this, which[slice.group], slice, lr, control);
  }).go_to(which.size());
}

// The settings of this step go with them. Regions come in the order of their first parameters.
void Optimizer::defer(const std::vector<Pending>& which, double lr, const ops::UpdateControl& control) {
  begin_update(which, control);
  const auto updates = std::make_shared<std::vector<Deferred::Update>>();
  std::unordered_map<hooks::RegionId, std::size_t> order;
  for (const Pending& update : which) {
    at::Tensor& parameter = parameters_[update.number];
    const hooks::RegionId region = hooks::region_of_parameter(parameter);
    order.try_emplace(region, order.size());
    updates->push_back({update.number, parameter, update.gradient, update.gradient_is_there, region});
    if (there_) there_->forget_gradient(parameter);
    parameter.mutable_grad().reset();
  }
  std::ranges::stable_sort(*updates, {}, [&](const auto& update) { return order.at(update.region); });
  std::vector<HostStates::Group> groups;
  const auto pending_of = [](const Deferred::Update& update) {
    return Pending{update.number, update.gradient, update.gradient_is_there};
  };
  std::vector<std::size_t> streamed, stepped;  // among the updates
  for (std::size_t i = 0; i < updates->size(); ++i) {
    const Pending update = pending_of((*updates)[i]);
    if (is_stepped_there(update)) {
      stepped.push_back(i);
      continue;
    }
    streamed.push_back(i);
    groups.push_back(Streamed::group(*this, update));
  }
  const auto walk = std::make_shared<HostStates::Walk>(
      *host_, std::move(groups),
      [this, updates, streamed, pending_of, lr, control](const HostStates::Slice& slice) {
        Streamed::update(*this, pending_of((*updates)[streamed[slice.group]]), slice, lr, control);
      });
  const auto tickets = std::make_shared<std::vector<Ticket>>(updates->size());
  auto ask = [this, updates, stepped, pending_of, lr, tickets,
              next = std::size_t{0}](std::size_t end) mutable {
    for (; next < stepped.size() && stepped[next] < end; ++next)
      (*tickets)[stepped[next]] = ask_host(pending_of((*updates)[stepped[next]]), lr).ticket;
  };
  deferred_->begin(updates, regions_of(parameters_),
                   {.ask_host = [this, ask](std::size_t end) mutable { attempt([&] { ask(end); }); },
                    .go_to =
                        [this, walk, streamed](std::size_t end) {
                          const auto found = std::ranges::lower_bound(streamed, end);
                          attempt([&] { walk->go_to(static_cast<std::size_t>(found - streamed.begin())); });
                        },
                    .wait = [this, tickets](std::size_t i) { attempt([&] { wait_for((*tickets)[i]); }); },
                    .is_done = [tickets](std::size_t i) { return is_done((*tickets)[i]); }});
}

void Optimizer::last_pass(double lr) {
  check_not_negative(lr, "lr");
  check_whole();
  if (!in_backward_) return;
  end_backward();
  if (host_) host_->begin_walks();
  in_backward_->begin(
      [this, lr](const std::vector<std::size_t>& numbers) {
        attempt([&] { update_in_backward(numbers, lr); });
      },
      [this] { stream_updated(); });
}

void Optimizer::update_in_backward(const std::vector<std::size_t>& numbers, double lr) {
  stream_updated();
  release_updated();
  std::vector<Pending> here, there, streamed, all;
  std::vector<at::Tensor> gradients;
  for (const std::size_t i : numbers) {
    Pending update = pending(i);
    const bool is_updated = updated_ && updated_->norms[i].defined();  // step() says so
    if (is_updated || !update.gradient.defined() || update.gradient_is_there ||
        !is_usable(update.gradient, parameters_[i]))
      continue;  // for step()
    all.push_back(update);
    gradients.push_back(update.gradient);
    (is_stepped_there(update) ? there : is_streamed(update) ? streamed : here).push_back(std::move(update));
  }
  if (all.empty()) return;
  if (!updated_) {
    updated_ = std::make_unique<UpdatedInBackward>();
    updated_->norms.resize(parameters_.size());
  }
  const std::vector<at::Tensor> norms = at::_foreach_norm(gradients, 2, at::kFloat);
  for (std::size_t k = 0; k < all.size(); ++k) {
    updated_->norms[all[k].number] = norms[k];
    if (there_) there_->forget_gradient(parameters_[all[k].number]);
    parameters_[all[k].number].mutable_grad().reset();
  }
  for (const auto* away : {&there, &streamed})
    for (const Pending& update : *away) updated_->gradients.push_back(update.gradient);
  begin_update(all, {});
  for (const Pending& update : there) {
    AskedOfHost asked = ask_host(update, lr);
    updated_->tickets.push_back(std::move(asked.ticket));
    updated_->sent.insert(updated_->sent.end(), asked.sent.begin(), asked.sent.end());
  }
  if (!streamed.empty()) {
    std::shared_ptr<c10::Event> complete;  // the gradients
    if (const std::optional<c10::Stream> beside = host_->stream_beside()) {
      complete = std::make_shared<c10::Event>(beside->device_type());
      complete->record(current_stream(beside->device()));
    }
    updated_->stream = [=, this, streamed = std::move(streamed)] {
      stream_beside(streamed, lr, complete.get());
    };
  }
  std::vector<Part> parts;
  for (const Pending& update : here)
    parts.push_back(part(update.number, parameters_[update.number], update.gradient, states_[update.number]));
  if (!parts.empty()) update(parts, lr, {});
}

// `after`: null where nothing runs beside the caller.
void Optimizer::stream_beside(const std::vector<Pending>& which, double lr, c10::Event* after) {
  const std::optional<c10::Stream> beside = host_->stream_beside();
  std::optional<c10::StreamGuard> guard;
  if (beside) {
    after->block(*beside);
    guard.emplace(*beside);
  }
  const auto record = [&] {
    if (!beside) return;
    updated_->done = std::make_unique<c10::Event>(beside->device_type());
    updated_->done->record(*beside);
  };
  try {
    stream(which, lr, {});
  } catch (...) {
    record();  // what was asked for before still uses the gradients
    throw;
  }
  record();
}

void Optimizer::stream_updated() const {
  if (!updated_) return;
  if (const auto stream = std::exchange(updated_->stream, nullptr)) attempt(stream);
}

// One region later, when most of it is over.
void Optimizer::release_updated() {
  if (!updated_) return;
  if (const auto done = std::exchange(updated_->done, nullptr))
    done->block(current_stream(parameters_[0].device()));
  host::wait_for_all(std::exchange(updated_->sent, {}));
  updated_->gradients.clear();
}

void Optimizer::wait_for_backward() const {
  if (!updated_) return;
  stream_updated();
  if (updated_->done) updated_->done->block(current_stream(parameters_[0].device()));
  attempt([&] {
    for (const Ticket& ticket : updated_->tickets) wait_for(ticket);
  });
}

void Optimizer::check_used_once() const {
  if (!updated_) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    check(!updated_->norms[i].defined() || !parameters_[i].grad().defined(), "parameter ", i,
          " has a gradient again after its update: last_pass() was called before a backward that another one "
          "followed; call it before the last one");
}

bool Optimizer::end_backward() {
  if (in_backward_) in_backward_->end();
  if (!updated_) return false;
  stream_updated();
  release_updated();
  const auto updated = std::exchange(updated_, nullptr);
  attempt([&] {
    for (const Ticket& ticket : updated->tickets) wait_for(ticket);
  });
  return true;
}

void Optimizer::finish() {
  wait_for_backward();
  if (deferred_) deferred_->finish();
}

void Optimizer::finish_region(hooks::RegionId region) {
  check_whole();
  if (deferred_) deferred_->finish_region(region);
}

// The worker first, which uses what goes with the optimizer.
void Optimizer::end() noexcept {
  const auto try_to = [](const auto& part) {
    try {
      part();
    } catch (const std::exception& error) {
      TORCH_WARN("an update that was deferred failed: ", error.what());
    }
  };
  const auto finish_there = [this] {
    if (stepped_there_) stepped_there_->finish();
  };
  try_to(finish_there);
  try_to([this] { end_backward(); });
  try_to([this] { finish(); });
  try_to(finish_there);  // what these asked of it
}

void Optimizer::zero_grad() {
  if (updated_) end_backward();
  for (at::Tensor& parameter : parameters_) {
    if (there_) there_->forget_gradient(parameter);
    parameter.mutable_grad().reset();
  }
}

std::vector<at::Tensor> Optimizer::gradients() const {
  if (there_) there_->finish_gradients();
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (at::Tensor gradient = pending(i).gradient; gradient.defined())
      gradients.push_back(std::move(gradient));
  return gradients;
}

at::Tensor Optimizer::gradient_norm() const {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> here, norms;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (updated_ && updated_->norms[i].defined()) {
      norms.push_back(updated_->norms[i]);
      continue;
    }
    const Pending update = pending(i);
    if (!update.gradient.defined()) continue;
    if (!update.gradient_is_there) here.push_back(update.gradient);
    norms.push_back(update.gradient_is_there ? there_->gradient_norm(parameters_[i]) : at::Tensor());
  }
  fill_in_norms(norms, here);
  return norm_of_norms(norms);
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

}  // namespace snug::optim
