// How gradients are summed over the ranks, and what is left of them on each.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <ranges>
#include <utility>

#include "snug/base/error.h"
#include "snug/optim/clip.h"
#include "snug/zero/shared_bucket.h"

namespace snug::zero {

namespace {

// A part of a tensor's memory as a gradient: no view to autograd, which an optimizer may detach in place.
at::Tensor gradient_in(const at::Tensor& flat, const Piece& piece, at::IntArrayRef sizes) {
  at::Tensor gradient = at::empty({0}, flat.options());
  gradient.unsafeGetTensorImpl()->set_storage_keep_dtype(flat.storage());
  gradient.unsafeGetTensorImpl()->set_storage_offset(flat.storage_offset() + piece.begin);
  gradient.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return gradient;
}

}  // namespace

bool Sharding::sums_in_backward() const {
  return options_.stage >= 2 || is_last_pass_;
}

void Sharding::expect_passes(std::int64_t backwards) {
  const std::lock_guard lock(mutex_);
  passes_left_ = backwards;
  is_last_pass_ = false;
}

void Sharding::backward_begins() {
  const std::lock_guard lock(mutex_);
  is_last_pass_ = passes_left_ > 0 && --passes_left_ == 0;
}

// Autograd has added up all that this backward adds to it.
void Sharding::gradient_ready(const at::Tensor& leaf) {
  const std::lock_guard lock(mutex_);
  Shared* const shared = find(leaf);
  if (!shared || shared->is_under_way) return;  // under way: it is announced
  check(
      !shared->is_summed, "a parameter of region \"", shared->name,
      "\" has a gradient again after it was summed over the ranks: last_pass() was called before a backward "
      "that another one followed; call it before the last one");
  if (!sums_in_backward() || ++shared->ready < shared->members.size()) return;
  // Where nothing else says that a region's backward is over.
  if (!complete_.empty() && complete_.back()->place != shared->place) {
    const hooks::AsideScope aside;
    const at::NoGradGuard no_grad;
    sum_complete();
  }
  complete_.push_back(shared);
}

// What the region before made is summed by now, or is waited for.
void Sharding::sum_complete() {
  end_sums();
  const std::vector<Shared*> complete = std::exchange(complete_, {});
  group_->together([&] {
    for (Shared* const shared : complete) begin_sum(*shared);
  });
  if (options_.stage == 0)
    group_->together([&] {
      for (Shared* const shared : complete) spread_sum(*shared);
    });
}

void Sharding::begin_sum(Shared& shared) {
  shared.ready = 0;
  shared.is_under_way = true;
  const at::Tensor& first = shared.members[0].parameter.grad();
  const auto is_dense = [](const at::Tensor& gradient) {
    return gradient.layout() == at::kStrided && gradient.is_contiguous();
  };
  if (shared.members.size() == 1 && is_dense(first)) {
    shared.gradient = first.detach().view(-1);
  } else {
    const auto some = std::ranges::find_if(
        shared.members, [](const Member& member) { return member.parameter.grad().defined(); });
    shared.gradient = at::zeros({shared.elements}, some->parameter.grad().options());
    for (const Member& member : shared.members) {
      const at::Tensor& gradient = member.parameter.grad();
      if (!gradient.defined()) continue;
      check(gradient.layout() == at::kStrided, "a gradient of region \"", shared.name, "\" is ",
            gradient.layout(), ": expected a dense one");
      shared.gradient.narrow(0, member.begin, gradient.numel()).view(gradient.sizes()).copy_(gradient);
    }
  }
  for (const Member& member : shared.members) member.parameter.mutable_grad().reset();
  under_way_.push_back(&shared);
  shared.summed = group_->reduce_scatter(shared.gradient, shared.pieces, shared.name);
  if (options_.there) options_.there->fetch_gradient(shared.trained);
}

void Sharding::spread_sum(Shared& shared) {
  shared.summed = group_->all_gather(shared.gradient, shared.pieces, "sums of " + shared.name);
}

void Sharding::end_sum(Shared& shared) {
  if (const CollectivePtr summed = std::exchange(shared.summed, nullptr)) summed->wait();
  if (options_.stage == 0) {
    for (const Member& member : shared.members) {
      const Piece all{member.begin, member.parameter.numel()};
      member.parameter.mutable_grad() = gradient_in(shared.gradient, all, member.parameter.sizes());
      hooks::announce_gradient(member.parameter);
    }
    shared.is_summed = true;
    shared.is_under_way = false;
    return;
  }
  shared.is_under_way = false;
  shared.is_summed = options_.stage == 1;
  const at::Tensor gradient = std::exchange(shared.gradient, {});
  if (!shared.trained.defined()) return;
  if (options_.there) options_.there->use_gradient(shared.trained);
  const at::Tensor mine =
      gradient_in(gradient, shared.pieces[static_cast<std::size_t>(group_->rank())], shared.trained.sizes());
  at::Tensor& sum = shared.trained.mutable_grad();
  if (sum.defined())
    sum.add_(mine);
  else
    sum = options_.stage == 1 ? mine : mine.clone();
  hooks::announce_gradient(shared.trained);
}

void Sharding::end_sums() {
  if (options_.there) options_.there->leave_gradients();
  const std::vector<Shared*> ended = std::exchange(under_way_, {});
  if (ended.empty()) return;
  std::vector<at::Tensor> sums;
  for (Shared* const shared : ended) {
    end_sum(*shared);
    sums.push_back(shared->trained);
  }
  if (options_.there) options_.there->send_gradients(sums);
}

void Sharding::finish_gradients() {
  const std::lock_guard lock(mutex_);
  const hooks::AsideScope aside;
  const at::NoGradGuard no_grad;
  throw_failed();
  end_sums();
  complete_.clear();
  for (const SharedPtr& shared : shared_ | std::views::reverse) {
    shared->ready = 0;
    const bool has_gradient = std::ranges::any_of(
        shared->members, [](const Member& member) { return member.parameter.grad().defined(); });
    if (!shared->has_gradients || shared->is_summed || !has_gradient) continue;
    begin_sum(*shared);
    if (options_.stage == 0) spread_sum(*shared);
    end_sums();
  }
  end_sums();
  passes_left_ = 0;
  is_last_pass_ = false;
}

at::Tensor Sharding::gradient_norm() {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  std::vector<at::Tensor> own, norms;
  for (const SharedPtr& shared : shared_)
    if (options_.there && options_.there->gradient_is_there(shared->trained)) {
      norms.push_back(options_.there->gradient_norm(shared->trained));
    } else if (const at::Tensor gradient = own_gradient(*shared); gradient.defined()) {
      own.push_back(gradient);
      norms.emplace_back();
    }
  optim::fill_in_norms(norms, own);
  const c10::Device device = shared_.at(0)->members[0].parameter.device();
  at::Tensor square = at::zeros({1}, at::TensorOptions(device).dtype(at::kDouble));
  if (!norms.empty()) square = at::stack(norms).to(at::kDouble).square().sum().view(1);
  return sum(square, "gradient norm")[0].sqrt().to(at::kFloat);
}

at::Tensor Sharding::clip_grad_norm_(double max_norm) {
  check(max_norm > 0, "the norm to clip to must be above 0, got ", max_norm);
  check(!options_.there || options_.there->shares().gradients == 0,
        "gradients that wait on the host are clipped in the optimizer's step(): give it "
        "clip_factor(gradient_norm(), ",
        max_norm, ")");
  const at::NoGradGuard no_grad;
  const at::Tensor norm = gradient_norm();
  const at::Tensor factor = (max_norm / (norm + 1e-6)).clamp_max_(1.0);
  for (const at::Tensor& trained : trained())
    if (at::Tensor gradient = trained.grad(); gradient.defined())
      gradient.copy_(gradient.scalar_type() == at::kFloat ? gradient * factor
                                                          : gradient.to(at::kFloat) * factor);
  return norm;
}

std::vector<at::Tensor> Sharding::own_gradients() const {
  const std::lock_guard lock(mutex_);
  if (options_.there) options_.there->finish_gradients();
  std::vector<at::Tensor> own;
  for (const SharedPtr& shared : shared_)
    if (options_.there && options_.there->gradient_is_there(shared->trained))
      own.push_back(options_.there->home_of_gradient(shared->trained));
    else if (const at::Tensor gradient = own_gradient(*shared); gradient.defined())
      own.push_back(gradient);
  return own;
}

at::Tensor Sharding::own_gradient(const Shared& shared) const {
  const Piece mine = shared.pieces[static_cast<std::size_t>(group_->rank())];
  if (mine.count == 0) return {};
  return options_.stage == 0 && shared.gradient.defined() ? shared.gradient.narrow(0, mine.begin, mine.count)
                                                          : shared.trained.grad();
}

void Sharding::zero_grad() {
  const std::lock_guard lock(mutex_);
  complete_.clear();
  for (Shared* const shared : std::exchange(under_way_, {})) {  // a backward failed
    if (const CollectivePtr summed = std::exchange(shared->summed, nullptr)) summed->wait();
    shared->is_under_way = false;
  }
  for (const SharedPtr& shared : shared_) {
    for (const Member& member : shared->members) member.parameter.mutable_grad().reset();
    if (options_.there) options_.there->forget_gradient(shared->trained);
    if (shared->trained.defined()) shared->trained.mutable_grad().reset();
    shared->gradient.reset();
    shared->ready = 0;
    shared->is_summed = false;
  }
}

}  // namespace snug::zero
