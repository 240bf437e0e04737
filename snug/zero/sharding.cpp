#include "snug/zero/sharding.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <ranges>
#include <utility>

#include "snug/base/error.h"
#include "snug/host/host_tensor.h"

namespace snug::zero {

namespace {

constexpr std::size_t kNowhere = ~std::size_t{0};

// What shares a bucket: one collective carries one type, and one optimizer's rule holds for all of it.
int kind_of(const at::Tensor& parameter) {
  return static_cast<int>(parameter.scalar_type()) * 4 + (parameter.dim() >= 2 ? 2 : 0) +
         (parameter.requires_grad() ? 1 : 0);
}

// All of a tensor's memory, with a count of writes of its own: what comes from other ranks is no write.
at::Tensor memory_of(const at::Tensor& tensor) {
  at::Tensor memory = at::empty({0}, tensor.options().requires_grad(false));
  memory.unsafeGetTensorImpl()->set_storage_keep_dtype(tensor.storage());
  memory.unsafeGetTensorImpl()->set_sizes_contiguous({tensor.numel()});
  return memory;
}

// A part of a tensor's memory as a gradient: no view to autograd, which an optimizer may detach in place.
at::Tensor gradient_in(const at::Tensor& flat, const Piece& piece, at::IntArrayRef sizes) {
  at::Tensor gradient = at::empty({0}, flat.options());
  gradient.unsafeGetTensorImpl()->set_storage_keep_dtype(flat.storage());
  gradient.unsafeGetTensorImpl()->set_storage_offset(flat.storage_offset() + piece.begin);
  gradient.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return gradient;
}

at::Tensor stretch(const at::Tensor& flat, const Piece& piece) {
  return flat.narrow(0, piece.begin, piece.count);
}

// The pieces of a weight that other ranks have.
class OnRanks final : public host::Source {
 public:
  OnRanks(Group& group, const at::Tensor& weight, at::Tensor piece, const Pieces& pieces, std::string what)
      : group_(group),
        whole_(memory_of(weight)),
        piece_(std::move(piece)),
        pieces_(pieces),
        what_(std::move(what)) {}

  host::CopyPtr fetch(const c10::Storage&, const host::CopyPtr&, const host::CopyPtr&) override {
    const at::NoGradGuard no_grad;
    mine().copy_(piece_);
    return group_.all_gather(whole_, pieces_, what_);
  }
  host::CopyPtr send(const c10::Storage&) override {
    const at::NoGradGuard no_grad;
    piece_.copy_(mine());
    return nullptr;
  }

 private:
  at::Tensor mine() const { return stretch(whole_, pieces_[static_cast<std::size_t>(group_.rank())]); }

  Group& group_;
  const at::Tensor whole_, piece_;
  const Pieces pieces_;
  const std::string what_;
};

}  // namespace

// One bucket.
struct Sharding::Shared {
  std::string name;
  Pieces pieces;
  std::int64_t elements = 0;
  std::vector<Member> members;
  std::size_t place = 0;  // of its region
  bool has_gradients = false;
  at::Tensor whole;                            // all weights; undefined where they come and go
  at::Tensor piece;                            // this rank's weights, [n]
  at::Tensor trained;                          // the same as the optimizer sees them
  std::unique_ptr<host::MovingTensor> moving;  // null: they stay
  bool has_changed = false;                    // and was not gathered since
  CollectivePtr gathered;                      // weights that changed

  std::size_t ready = 0;  // gradients of members, in this backward
  at::Tensor gradient;    // all of it, [elements]: being summed, or (stages 0 and 1) summed
  CollectivePtr summed;   // null: nothing to wait for
  bool is_under_way = false, is_summed = false;
};

Sharding::Sharding(std::shared_ptr<Group> group, const ShardingOptions& options)
    : group_(std::move(group)), options_(options) {
  check(options.stage >= 0 && options.stage <= 3, "the ZeRO stage must be 0, 1, 2 or 3, got ", options.stage);
}

// Collectives point to what is here.
Sharding::~Sharding() {
  for (const SharedPtr& shared : shared_) try {
      if (shared->summed) shared->summed->finish();
      if (shared->gathered) shared->gathered->finish();
    } catch (const std::exception&) {  // whoever waited for it was told
    }
}

void Sharding::add(std::string_view name, at::TensorList parameters) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  const hooks::RegionId id = hooks::region_id(name);
  if (place_of(id) == kNowhere) {
    regions_.push_back(id);
    weights_.add_region();
  }
  const std::size_t place = place_of(id);
  std::vector<at::Tensor> fresh;
  std::vector<Parameter> sizes;
  for (const at::Tensor& parameter : parameters) {
    if (const Shared* const known = find(parameter)) {
      if (known->moving && known->place != place) weights_.add(place, known->moving.get());
      continue;
    }
    check(parameter.is_contiguous() && parameter.layout() == at::kStrided && parameter.numel() > 0,
          "a parameter of region \"", name, "\" is ", parameter.sizes(), ", ", parameter.layout(),
          ": expected one that is dense, contiguous and not empty");
    fresh.push_back(parameter);
    sizes.push_back({.elements = parameter.numel(), .kind = kind_of(parameter)});
  }
  for (const Bucket& bucket : buckets_of(sizes, {.ranks = group_->size(), .small = options_.small})) {
    shared_.push_back(make_shared(bucket, fresh, std::string(name)));
    Shared& shared = *shared_.back();
    shared.place = place;
    for (const Member& member : shared.members)
      of_parameter_[member.parameter.unsafeGetTensorImpl()] = &shared;
    if (shared.moving) weights_.add(place, shared.moving.get());
    std::vector<at::Tensor> bound;
    for (const Member& member : shared.members) bound.push_back(member.parameter);
    if (shared.trained.defined()) bound.push_back(shared.trained);
    hooks::bind_parameters(id, bound);
  }
}

Sharding::SharedPtr Sharding::make_shared(const Bucket& bucket, const std::vector<at::Tensor>& parameters,
                                          const std::string& region) const {
  auto shared = std::make_unique<Shared>();
  shared->name = region;
  shared->pieces = bucket.pieces;
  shared->elements = bucket.elements;
  for (const Bucket::Member& member : bucket.members)
    shared->members.push_back({parameters[member.parameter], member.begin});
  const at::Tensor& first = shared->members[0].parameter;
  shared->has_gradients = first.requires_grad();
  const Piece mine = bucket.pieces[static_cast<std::size_t>(group_->rank())];
  const bool is_alone = bucket.members.size() == 1;
  if (options_.stage == 3 && is_alone && first.numel() >= options_.small) {
    check(host::fills_its_storage(first),
          "a weight that ranks share out must have its memory for itself: ", first.sizes(), " of region \"",
          region, "\" is a view");
    shared->piece = stretch(memory_of(first), mine).clone();
    shared->moving = std::make_unique<host::MovingTensor>(
        first, std::make_unique<OnRanks>(*group_, first, shared->piece, shared->pieces, region),
        /*is_sent=*/true,
        host::MovingTensorOptions{
            .why_away = concat("this weight is shared out over the ranks: it is whole while region \"",
                               region, "\" runs. Elsewhere read it with Sharding::read(), on all ranks."),
            .came = hooks::announce_parameter});
    shared->moving->drop();
  } else if (is_alone) {
    shared->whole = first.detach().view(-1);
    shared->piece = stretch(shared->whole, mine);
  } else {
    shared->whole = at::zeros({bucket.elements}, first.options().requires_grad(false));
    for (Member& member : shared->members) {
      const std::int64_t count = member.parameter.numel();
      const at::Tensor home = shared->whole.narrow(0, member.begin, count).view(member.parameter.sizes());
      home.copy_(member.parameter);
      member.parameter.set_data(home);
    }
    shared->piece = stretch(shared->whole, mine);
  }
  if (mine.count > 0) shared->trained = first.dim() >= 2 ? shared->piece.view({1, -1}) : shared->piece;
  return shared;
}

std::vector<at::Tensor> Sharding::trained() const {
  std::vector<at::Tensor> trained;
  for (const SharedPtr& shared : shared_) {
    if (!shared->has_gradients) continue;
    if (options_.stage == 0)
      for (const Member& member : shared->members) trained.push_back(member.parameter);
    else if (shared->trained.defined())
      trained.push_back(shared->trained);
  }
  check(!trained.empty(), "rank ", group_->rank(), " of ", group_->size(),
        " would have nothing to train: the model has too few parameters for so many ranks");
  return trained;
}

std::vector<Sharding::Stretch> Sharding::own() const {
  return stretches(/*own=*/true);
}

std::vector<Sharding::Stretch> Sharding::updated() const {
  std::vector<Stretch> updated = stretches(options_.stage != 0);
  std::erase_if(updated, [](const Stretch& stretch) { return !stretch.trained; });
  return updated;
}

std::vector<Sharding::Stretch> Sharding::stretches(bool own) const {
  std::vector<Stretch> stretches;
  std::size_t trained = 0;
  for (const SharedPtr& shared : shared_) {
    const Piece mine =
        own ? shared->pieces[static_cast<std::size_t>(group_->rank())] : Piece{0, shared->elements};
    const bool is_by_parameter = shared->has_gradients && options_.stage == 0;
    const bool is_by_piece = shared->has_gradients && options_.stage > 0 && shared->trained.defined();
    for (const auto& [parameter, place] : shared->members) {
      const std::int64_t first = std::max(mine.begin, place);
      const std::int64_t last = std::min(mine.begin + mine.count, place + parameter.numel());
      Stretch stretch{.parameter = parameter, .begin = first - place, .count = last - first};
      if (is_by_parameter) {
        stretch.trained = trained++;
        stretch.offset = stretch.begin;
      }
      if (stretch.count <= 0) continue;
      if (is_by_piece) {
        stretch.trained = trained;
        stretch.offset = first - mine.begin;
      }
      stretch.weights = shared->moving ? shared->piece.narrow(0, first - mine.begin, stretch.count)
                                       : shared->whole.narrow(0, first, stretch.count);
      stretches.push_back(std::move(stretch));
    }
    if (is_by_piece) ++trained;
  }
  return stretches;
}

std::vector<at::Tensor> Sharding::like(std::size_t i) const {
  std::size_t trained = 0;
  for (const SharedPtr& shared : shared_) {
    if (!shared->has_gradients) continue;
    if (options_.stage == 0) {
      if (i < trained + shared->members.size()) return {shared->members[i - trained].parameter};
      trained += shared->members.size();
    } else if (shared->trained.defined() && trained++ == i) {
      std::vector<at::Tensor> members;
      for (const Member& member : shared->members) members.push_back(member.parameter);
      return members;
    }
  }
  fail("no tensor ", i, " is trained on rank ", group_->rank());
}

std::size_t Sharding::place_of(hooks::RegionId id) const {
  const auto found = std::ranges::find(regions_, id);
  return found == regions_.end() ? kNowhere : static_cast<std::size_t>(found - regions_.begin());
}

Sharding::Shared* Sharding::find(const at::Tensor& parameter) const {
  const auto found = of_parameter_.find(parameter.unsafeGetTensorImpl());
  return found == of_parameter_.end() ? nullptr : found->second;
}

void Sharding::throw_failed() {
  if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
}

// Gradients.

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
  for (Shared* const shared : std::exchange(complete_, {})) begin_sum(*shared);
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
  if (options_.stage == 0)
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
  for (Shared* const shared : std::exchange(under_way_, {})) end_sum(*shared);
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
    end_sums();
  }
  passes_left_ = 0;
  is_last_pass_ = false;
}

at::Tensor Sharding::gradient_norm() {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> own = own_gradients();
  const c10::Device device = shared_.at(0)->piece.device();
  at::Tensor square = at::zeros({1}, at::TensorOptions(device).dtype(at::kDouble));
  if (!own.empty())
    square = at::stack(at::_foreach_norm(own, 2, at::kFloat)).to(at::kDouble).square().sum().view(1);
  return sum(square, "gradient norm")[0].sqrt().to(at::kFloat);
}

at::Tensor Sharding::clip_grad_norm_(double max_norm) {
  check(max_norm > 0, "the norm to clip to must be above 0, got ", max_norm);
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
  std::vector<at::Tensor> own;
  for (const SharedPtr& shared : shared_) {
    const Piece mine = shared->pieces[static_cast<std::size_t>(group_->rank())];
    if (mine.count == 0) continue;
    const at::Tensor gradient = options_.stage == 0 && shared->gradient.defined()
                                    ? stretch(shared->gradient, mine)
                                    : shared->trained.grad();
    if (gradient.defined()) own.push_back(gradient);
  }
  return own;
}

void Sharding::zero_grad() {
  const std::lock_guard lock(mutex_);
  for (const SharedPtr& shared : shared_) {
    for (const Member& member : shared->members) member.parameter.mutable_grad().reset();
    if (shared->trained.defined()) shared->trained.mutable_grad().reset();
    shared->gradient.reset();
    shared->is_summed = false;
  }
}

// Weights.

void Sharding::set_before_gather(std::function<void(hooks::RegionId)> tell) {
  const std::lock_guard lock(mutex_);
  before_gather_ = std::move(tell);
}

bool Sharding::tell_before_gather(std::size_t place) const {
  if (before_gather_) before_gather_(regions_[place]);
  return true;
}

void Sharding::spread() {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  for (const SharedPtr& shared : shared_)
    if (!shared->moving)
      if (const CollectivePtr gathered = group_->all_gather(shared->whole, shared->pieces, shared->name))
        gathered->finish();
}

void Sharding::finish_update() {
  const std::lock_guard lock(mutex_);
  if (options_.stage == 0) return;
  const hooks::AsideScope aside;
  const at::NoGradGuard no_grad;
  for (const SharedPtr& shared : shared_) {
    if (!shared->has_gradients) continue;
    if (shared->moving)
      shared->moving->note_update();
    else
      shared->has_changed = true;
  }
  if (before_gather_) return;  // region by region, when their updates are done
  for (std::size_t place = 0; place < regions_.size(); ++place) gather_changed(place);
}

void Sharding::gather_changed(std::size_t place) {
  if (place >= regions_.size()) return;
  const auto is_meant = [&](const SharedPtr& shared) {
    return shared->place == place && shared->has_changed;
  };
  if (std::ranges::any_of(shared_, is_meant)) tell_before_gather(place);
  for (const SharedPtr& shared : shared_)
    if (is_meant(shared)) {
      shared->has_changed = false;
      shared->gathered = group_->all_gather(shared->whole, shared->pieces, shared->name);
    }
}

void Sharding::finish() {
  const std::lock_guard lock(mutex_);
  const hooks::AsideScope aside;
  const at::NoGradGuard no_grad;
  for (std::size_t place = 0; place < regions_.size(); ++place) gather_changed(place);
  for (const SharedPtr& shared : shared_)
    if (const CollectivePtr gathered = std::exchange(shared->gathered, nullptr)) gathered->finish();
}

at::Tensor Sharding::sum(const at::Tensor& numbers, const std::string& what) {
  const at::NoGradGuard no_grad;
  const std::int64_t ranks = group_->size(), count = numbers.numel();
  at::Tensor all = at::zeros({ranks, count}, numbers.options().dtype(at::kDouble));
  all.select(0, group_->rank()).copy_(numbers);
  Pieces rows;
  for (std::int64_t rank = 0; rank < ranks; ++rank) rows.push_back({rank * count, count});
  if (const CollectivePtr gathered = group_->all_gather(all.view(-1), rows, what)) gathered->wait();
  at::Tensor sum = all.select(0, 0).clone();
  for (std::int64_t rank = 1; rank < ranks; ++rank) sum.add_(all.select(0, rank));
  return sum;
}

Sharding::Home Sharding::home_of(const at::Tensor& parameter) const {
  const Shared* const shared = find(parameter);
  if (!shared || !shared->moving) return {parameter, 0};
  return {shared->piece, shared->pieces[static_cast<std::size_t>(group_->rank())].begin};
}

void Sharding::write(const at::Tensor& parameter, const std::function<void()>& fill) {
  const std::lock_guard lock(mutex_);
  const Shared* const shared = find(parameter);
  shared && shared->moving ? shared->moving->write(fill) : fill();
}

void Sharding::read(const at::Tensor& parameter, const std::function<void(const at::Tensor&)>& look) {
  const std::lock_guard lock(mutex_);
  finish();
  const Shared* const shared = find(parameter);
  if (!shared || !shared->moving) return look(parameter);
  const hooks::AsideScope aside;
  shared->moving->use();
  look(parameter);
  shared->moving->drop();
}

// What regions do.

void Sharding::before_forward(hooks::RegionId id) {
  const std::lock_guard lock(mutex_);
  const hooks::AsideScope aside;
  const at::NoGradGuard no_grad;
  throw_failed();
  end_sums();
  const std::size_t place = place_of(id);
  if (place == kNowhere) return;
  gather_changed(place);
  for (const SharedPtr& shared : shared_)
    if (shared->place == place)
      if (const CollectivePtr gathered = std::exchange(shared->gathered, nullptr)) gathered->wait();
  gather_changed(place + 1);
  weights_.begin_forward(place);
}

void Sharding::after_forward(hooks::RegionId id) {
  const std::lock_guard lock(mutex_);
  const std::size_t place = place_of(id);
  if (place == kNowhere) return;
  const hooks::AsideScope aside;
  try {
    weights_.end_forward(place);
  } catch (...) {  // nobody may throw here
    failed_ = std::current_exception();
  }
}

void Sharding::before_backward(hooks::RegionId id) {
  const std::lock_guard lock(mutex_);
  const std::size_t place = place_of(id);
  if (place == kNowhere) return;
  const hooks::AsideScope aside;
  const at::NoGradGuard no_grad;
  throw_failed();
  weights_.use(place);
  if (place > 0) weights_.fetch(place - 1);
}

void Sharding::after_backward(hooks::RegionId id) {
  const std::lock_guard lock(mutex_);
  const hooks::AsideScope aside;
  const at::NoGradGuard no_grad;
  if (const std::size_t place = place_of(id); place != kNowhere) weights_.end_backward(place);
  sum_complete();
}

void Sharding::before_replay(hooks::RegionId, at::TensorList parameters) {
  const std::lock_guard lock(mutex_);
  const hooks::AsideScope aside;
  for (const at::Tensor& parameter : parameters)
    if (const Shared* const shared = find(parameter); shared && shared->moving) shared->moving->use();
}

}  // namespace snug::zero
