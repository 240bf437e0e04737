#include "snug/zero/sharding.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <ranges>
#include <utility>

#include "snug/base/error.h"
#include "snug/host/host_tensor.h"
#include "snug/zero/shared_bucket.h"

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

at::Tensor stretch(const at::Tensor& flat, const Piece& piece) {
  return flat.narrow(0, piece.begin, piece.count);
}

// A gather of which this rank's piece comes from the host. If it is called off that copy may still be under
// way: nobody is told before it is over.
class Gathered final : public host::Copy {
 public:
  Gathered(host::CopyPtr came, CollectivePtr gathered)
      : came_(std::move(came)), gathered_(gathered ? host::CopyPtr(std::move(gathered)) : came_) {}
  void wait() override {
    finished_if_it_fails([this] { gathered_->wait(); });
  }
  void finish() override {
    finished_if_it_fails([this] { gathered_->finish(); });
  }
  std::uint64_t number() const override { return gathered_->number(); }

 private:
  template <class Wait>
  void finished_if_it_fails(const Wait& wait) {
    try {
      wait();
    } catch (...) {
      came_->finish();
      throw;
    }
  }

  const host::CopyPtr came_, gathered_;  // the same where there is nobody to gather from
};

// The pieces of a weight that other ranks have.
class OnRanks final : public host::Source {
 public:
  // `piece`: this rank's, [1, n] or [n], on the device or `there`.
  OnRanks(Group& group, optim::HostParameters* there, const at::Tensor& weight, at::Tensor piece,
          const Pieces& pieces, std::string what)
      : group_(group),
        there_(there),
        whole_(memory_of(weight)),
        piece_(std::move(piece)),
        pieces_(pieces),
        what_(std::move(what)) {}

  host::CopyPtr fetch(void*, const host::CopyPtr&, const host::CopyPtr& since) override {
    const at::NoGradGuard no_grad;
    host::CopyPtr came;
    if (is_there())
      came = there_->fetch_weight(piece_, mine().mutable_data_ptr(), since);
    else if (piece_.defined())
      mine().copy_(piece_);
    if (!came) return group_.all_gather(whole_, pieces_, what_);
    try {
      return std::make_shared<Gathered>(came, group_.all_gather(whole_, pieces_, what_, came));
    } catch (...) {
      came->finish();
      throw;
    }
  }
  host::CopyPtr send(const void*) override {
    const at::NoGradGuard no_grad;
    if (is_there()) return there_->send_weight(piece_, mine().const_data_ptr());
    if (piece_.defined()) piece_.copy_(mine());
    return nullptr;
  }
  host::CopyPtr mark() override { return is_there() ? there_->mark() : nullptr; }

 private:
  bool is_there() const { return there_ && there_->has_weight(piece_); }
  at::Tensor mine() const {
    return stretch(whole_, pieces_[static_cast<std::size_t>(group_.rank())])
        .view(piece_.defined() ? piece_.sizes() : at::IntArrayRef{0});
  }

  Group& group_;
  optim::HostParameters* const there_;  // null: nothing is there
  const at::Tensor whole_, piece_;      // piece_: undefined where this rank has none
  const Pieces pieces_;
  const std::string what_;
};

}  // namespace

Sharding::Sharding(std::shared_ptr<Group> group, const ShardingOptions& options)
    : group_(std::move(group)), options_(options) {
  check(options.stage >= 0 && options.stage <= 3, "the ZeRO stage must be 0, 1, 2 or 3, got ", options.stage);
  if (!options.there) return;
  check(options.there->moved_by() == optim::MovedBy::Owner,
        "a rank's pieces come and go as it shares them out, not with regions: make `there` with "
        "MovedBy::Owner");
  const auto& [weights, gradients] = options.there->shares();
  check(weights == 0 || options.stage == 3, "weights on the host are pieces, which ZeRO stage 3 makes: got ",
        options.stage);
  check(gradients == 0 || options.stage >= 2,
        "gradients on the host are pieces, which ZeRO stages 2 and 3 make: got ", options.stage);
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
    if (Shared* const known = find(parameter)) {
      if (!known->moving || known->place == place) continue;
      weights_.add(place, known->moving.get());
      known->other_places.push_back(place);
      continue;
    }
    check(parameter.is_contiguous() && parameter.layout() == at::kStrided && parameter.numel() > 0,
          "a parameter of region \"", name, "\" is ", parameter.sizes(), ", ", parameter.layout(),
          ": expected one that is dense, contiguous and not empty");
    fresh.push_back(parameter);
    sizes.push_back({.elements = parameter.numel(), .kind = kind_of(parameter)});
  }
  const auto before = static_cast<std::ptrdiff_t>(shared_.size());
  std::vector<optim::HostParameters::Piece> pieces;
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
    if (shared.trained.defined())
      pieces.push_back(
          {shared.trained, bucket.pieces[0].count, shared.moving != nullptr, shared.has_gradients});
  }
  if (!options_.there) return;
  options_.there->add_pieces(name, pieces);
  for (const SharedPtr& shared : shared_ | std::views::drop(before))
    if (is_there(*shared)) shared->piece.reset();
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
  const bool is_moving = options_.stage == 3 && is_alone && first.numel() >= options_.small;
  if (is_moving) {
    check(host::fills_its_storage(first),
          "a weight that ranks share out must have its memory for itself: ", first.sizes(), " of region \"",
          region, "\" is a view");
    shared->piece = stretch(memory_of(first), mine).clone();
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
  // Matrices stay matrices: an optimizer may have rules for these.
  if (mine.count > 0) shared->trained = first.dim() >= 2 ? shared->piece.view({1, -1}) : shared->piece;
  if (shared->trained.defined() && shared->has_gradients) shared->trained.set_grad_dtype(first.grad_dtype());
  if (!is_moving) return shared;
  shared->moving = std::make_unique<host::MovingTensor>(
      first,
      std::make_unique<OnRanks>(*group_, options_.there.get(), first, shared->trained, shared->pieces,
                                region),
      /*is_sent=*/true,
      host::MovingTensorOptions{
          .why_away = concat("this weight is shared out over the ranks: it is whole while region \"", region,
                             "\" runs. Elsewhere read it with Sharding::read(), on all ranks."),
          .came = hooks::announce_parameter});
  shared->moving->drop();
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

std::vector<std::int64_t> Sharding::largest_pieces() const {
  std::vector<std::int64_t> largest;
  for (const SharedPtr& shared : shared_) {
    if (!shared->has_gradients) continue;
    if (options_.stage == 0)
      for (const Member& member : shared->members) largest.push_back(member.parameter.numel());
    else if (shared->trained.defined())
      largest.push_back(shared->pieces[0].count);
  }
  return largest;
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
      stretch.weights = shared->moving ? piece_of(*shared).narrow(0, first - mine.begin, stretch.count)
                                       : shared->whole.narrow(0, first, stretch.count);
      stretches.push_back(std::move(stretch));
    }
    if (is_by_piece) ++trained;
  }
  return stretches;
}

std::vector<Sharding::Traffic> Sharding::traffic() const {
  std::vector<Traffic> traffic;
  for (std::size_t place = 0; place < regions_.size(); ++place)
    for (const SharedPtr& shared : shared_) {
      const at::Tensor& first = shared->members[0].parameter;
      const auto bytes = static_cast<std::uint64_t>(shared->elements) * first.element_size();
      const std::string name(hooks::region_name(regions_[place]));
      const bool is_home = shared->place == place;
      const bool is_read =
          is_home || std::ranges::find(shared->other_places, place) != shared->other_places.end();
      if (shared->moving && is_read) traffic.push_back({name, true, true, bytes});
      if (!is_home || !shared->has_gradients) continue;
      if (!shared->moving && options_.stage > 0) traffic.push_back({name, true, false, bytes});
      const bool is_in_each_pass = options_.stage >= 2;
      const auto of_gradients = static_cast<std::uint64_t>(shared->elements) *
                                c10::elementSize(first.grad_dtype().value_or(first.scalar_type()));
      traffic.push_back({name, false, is_in_each_pass, of_gradients});
      if (options_.stage == 0) traffic.push_back({name, false, false, of_gradients, /*is_second=*/true});
    }
  return traffic;
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

bool Sharding::is_there(const Shared& shared) const {
  return options_.there && options_.there->has_weight(shared.trained);
}

at::Tensor Sharding::piece_of(const Shared& shared) const {
  return is_there(shared) ? options_.there->weight(shared.trained).view(-1) : shared.piece;
}

void Sharding::throw_failed() {
  if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
}

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
  group_->together([&] {
    for (const SharedPtr& shared : shared_)
      if (is_meant(shared)) {
        shared->has_changed = false;
        shared->gathered = group_->all_gather(shared->whole, shared->pieces, shared->name);
      }
  });
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
  if (const CollectivePtr gathered = group_->all_gather(all.view(-1), rows, what))
    gathered->finish();  // the host is going to look at it: not at what a failure left there
  at::Tensor sum = all.select(0, 0).clone();
  for (std::int64_t rank = 1; rank < ranks; ++rank) sum.add_(all.select(0, rank));
  return sum;
}

Sharding::Home Sharding::home_of(const at::Tensor& parameter) const {
  const Shared* const shared = find(parameter);
  if (!shared || !shared->moving) return {parameter, 0};
  return {piece_of(*shared), shared->pieces[static_cast<std::size_t>(group_->rank())].begin};
}

void Sharding::write(const at::Tensor& parameter, const std::function<void()>& fill) {
  const std::lock_guard lock(mutex_);
  const Shared* const shared = find(parameter);
  if (!shared || !shared->moving) return fill();
  tell_before_gather(shared->place);
  shared->moving->write(fill);
}

void Sharding::read(const at::Tensor& parameter, const std::function<void(const at::Tensor&)>& look) {
  const std::lock_guard lock(mutex_);
  finish();
  const Shared* const shared = find(parameter);
  if (!shared || !shared->moving) return look(parameter);
  const hooks::AsideScope aside;
  tell_before_gather(shared->place);
  shared->moving->use();
  look(parameter);
  shared->moving->drop();
}

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
  group_->together([&] { weights_.begin_forward(place); });
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
  if (place > 0) group_->together([&] { weights_.fetch(place - 1); });
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
