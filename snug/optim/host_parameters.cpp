#include "snug/optim/host_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "snug/base/error.h"
#include "snug/hooks/device.h"
#include "snug/host/host_tensor.h"
#include "snug/host/moving_tensor.h"
#include "snug/host/store.h"
#include "snug/optim/host_gradient.h"

namespace snug::optim {

namespace {

// Whether the region at this place is among those that make up the share.
bool is_chosen(double share, std::size_t place) {
  const auto before = static_cast<double>(place);
  return std::floor((before + 1) * share + 1e-9) > std::floor(before * share + 1e-9);
}

std::string why_away(const std::string& region) {
  return concat("this weight is on the host: it is on the device while region \"", region,
                "\" runs. Between steps read and write it through the optimizer's weight().");
}

std::string why_piece_away(const std::string& region) {
  return concat("this rank's piece of a weight of region \"", region,
                "\" is on the host: between steps read and write it through the optimizer's weight().");
}

template <class Map>
auto* find(const Map& map, const at::Tensor& parameter) {
  const auto found = map.find(parameter.unsafeGetTensorImpl());
  return found == map.end() ? nullptr : found->second;
}

}  // namespace

HostParameters::HostParameters(c10::Device device, std::shared_ptr<host::Store> store,
                               const HostShares& shares, MovedBy moved_by)
    : device_(hooks::with_index(device)), store_(std::move(store)), shares_(shares) {
  host::check_share_on_host(shares.weights, "weights");
  host::check_share_on_host(shares.gradients, "gradients");
  host::check_store(store_, device_);
  hooks::RegionListener& listener = *this;
  if (moved_by == MovedBy::Regions) guard_.emplace(listener);
}

HostParameters::~HostParameters() {
  for (Region& region : regions_) {
    for (const auto& gradient : region.gradients) try {
        gradient->forget();
      } catch (const std::exception& error) {
        TORCH_WARN("a copy of a gradient failed: ", error.what());
      }
    if (!guard_) continue;
    for (const auto& weight : region.weights) weight->bring_back();
  }
}

void HostParameters::add(std::string_view name, at::TensorList parameters) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  const hooks::RegionId id = hooks::region_id(name);
  hooks::bind_parameters(id, parameters);
  check(moved_by() == MovedBy::Regions, "parameters of region \"", name,
        "\" were given to somebody who leaves it to another when they come and go: make it with "
        "MovedBy::Regions");
  if (regions_.empty() || regions_.back().id != id) {
    check(place_of(id) == kNowhere, "region \"", name, "\" was added before, and others since");
    regions_.push_back({.id = id, .load = {.region = std::string(name)}});
    moving_.add_region();
  }
  const std::size_t place = regions_.size() - 1;
  for (const at::Tensor& parameter : parameters) {
    check(parameter.device() == device_, "parameters of region \"", name, "\" are on ", parameter.device(),
          ", expected ", device_);
    check(!has_weight(parameter) && !has_gradient(parameter), "a parameter of region \"", name,
          "\" was given twice");
    if (parameter.numel() < host::kFewElements) continue;
    if (is_chosen(shares_.gradients, place) && parameter.requires_grad())
      take_gradient(regions_.back(), parameter);
    if (is_chosen(shares_.weights, place)) take_weight(regions_.back(), parameter);
  }
}

void HostParameters::add_pieces(std::string_view name, const std::vector<Piece>& pieces) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  const hooks::RegionId id = hooks::region_id(name);
  if (place_of(id) == kNowhere) regions_.push_back({.id = id, .load = {.region = std::string(name)}});
  const std::size_t place = place_of(id);
  for (const auto& [piece, largest, may_leave, has_gradient] : pieces) {
    check(piece.device() == device_, "pieces of region \"", name, "\" are on ", piece.device(), ", expected ",
          device_);
    if (largest < host::kFewElements) continue;
    if (has_gradient && is_chosen(shares_.gradients, place)) take_gradient(regions_[place], piece);
    if (may_leave && is_chosen(shares_.weights, place)) take_weight(regions_[place], piece);
  }
}

void HostParameters::take_weight(Region& region, const at::Tensor& parameter) {
  check(parameter.is_contiguous() && host::fills_its_storage(parameter),
        "a weight that is to leave for the host must have its memory for itself: ", parameter.sizes(),
        " of region \"", region.load.region, "\" is a view");
  const at::Tensor host = host::host_empty(store_, parameter.sizes(), parameter.scalar_type());
  host::Link* const link = store_ ? &store_->link() : nullptr;
  const auto before_send = [this](const at::Tensor& weight) {
    for (const auto& [owner, told] : told_)
      if (told.before_write) told.before_write(weight);
  };
  region.weights.push_back(std::make_unique<host::MovingTensor>(
      parameter, host, link,
      host::MovingTensorOptions{(guard_ ? why_away : why_piece_away)(region.load.region),
                                hooks::announce_parameter, before_send}));
  region.weights.back()->drop();
  if (guard_) moving_.add(place_of(region.id), region.weights.back().get());
  weights_[parameter.unsafeGetTensorImpl()] = region.weights.back().get();
  region.load.weight_bytes += parameter.nbytes();
  bytes_ += host::host_bytes(host);
}

void HostParameters::take_gradient(Region& region, const at::Tensor& parameter) {
  const at::Tensor host =
      host::host_zeros(store_, parameter.sizes(), parameter.grad_dtype().value_or(parameter.scalar_type()));
  host::Link* const link = store_ ? &store_->link() : nullptr;
  region.gradients.push_back(std::make_unique<HostGradient>(parameter, host, link, region.load.region));
  gradients_[parameter.unsafeGetTensorImpl()] = region.gradients.back().get();
  region.load.gradient_bytes += host.nbytes();
  bytes_ += host::host_bytes(host);
}

bool HostParameters::has_weight(const at::Tensor& parameter) const {
  return find(weights_, parameter) != nullptr;
}

bool HostParameters::has_gradient(const at::Tensor& parameter) const {
  return find(gradients_, parameter) != nullptr;
}

std::vector<HostParameters::Load> HostParameters::loads() const {
  std::vector<Load> loads;
  for (const Region& region : regions_) loads.push_back(region.load);
  return loads;
}

at::Tensor HostParameters::weight(const at::Tensor& parameter) const {
  const std::lock_guard lock(mutex_);
  host::MovingTensor* const weight = find(weights_, parameter);
  if (!weight) return parameter;
  weight->drop();  // it may be written to
  weight->finish();
  return weight->host();
}

void HostParameters::write(const at::Tensor& parameter, const std::function<void()>& fill) {
  const std::lock_guard lock(mutex_);
  host::MovingTensor* const weight = find(weights_, parameter);
  weight ? weight->write(fill) : fill();
}

host::CopyPtr HostParameters::fetch_weight(const at::Tensor& piece, void* memory,
                                           const host::CopyPtr& since) {
  return find(weights_, piece)->fetch_into(memory, since);
}

host::CopyPtr HostParameters::send_weight(const at::Tensor& piece, const void* memory) {
  return find(weights_, piece)->send_from(memory);
}

host::CopyPtr HostParameters::mark() const {
  return store_ ? store_->link().mark() : nullptr;
}

void HostParameters::fetch_gradient(const at::Tensor& piece) {
  const std::lock_guard lock(mutex_);
  if (HostGradient* const gradient = find(gradients_, piece)) gradient->fetch();
}

void HostParameters::use_gradient(const at::Tensor& piece) {
  const std::lock_guard lock(mutex_);
  if (HostGradient* const gradient = find(gradients_, piece)) gradient->use();
}

void HostParameters::leave_gradients() {
  const std::lock_guard lock(mutex_);
  leave_all_but(kNowhere);
}

void HostParameters::leave_all_but(std::size_t place) {
  for (std::size_t i = 0; i < regions_.size(); ++i)
    if (i != place)
      for (const auto& gradient : regions_[i].gradients) gradient->leave();
}

void HostParameters::before_update() {
  const std::lock_guard lock(mutex_);
  throw_failed();
  moving_.drop_all();
  leave_all_but(kNowhere);
}

void HostParameters::finish_gradients() {
  const std::lock_guard lock(mutex_);
  for (Region& region : regions_)
    for (const auto& gradient : region.gradients) {
      gradient->leave();
      gradient->finish();
      gradient->set_norm({});  // whoever reads them may write
    }
}

at::Tensor HostParameters::gradient_norm(const at::Tensor& parameter) const {
  return find(gradients_, parameter)->norm();
}

void HostParameters::forget_gradient(const at::Tensor& parameter) {
  const std::lock_guard lock(mutex_);
  if (HostGradient* const gradient = find(gradients_, parameter)) gradient->forget();
}

bool HostParameters::gradient_is_there(const at::Tensor& parameter) const {
  HostGradient* const gradient = find(gradients_, parameter);
  return gradient && gradient->has_sum();
}

at::Tensor HostParameters::home_of_weight(const at::Tensor& parameter) const {
  return find(weights_, parameter)->host();
}

at::Tensor HostParameters::home_of_gradient(const at::Tensor& parameter) const {
  return find(gradients_, parameter)->host();
}

host::CopyPtr* HostParameters::last_written(const at::Tensor& parameter) const {
  return &find(weights_, parameter)->written();
}

std::vector<host::CopyPtr> HostParameters::copies_of(const at::Tensor& parameter) const {
  std::vector<host::CopyPtr> copies;
  if (host::MovingTensor* const weight = find(weights_, parameter)) copies = weight->copies();
  if (HostGradient* const gradient = find(gradients_, parameter))
    for (const host::CopyPtr& copy : gradient->copies()) copies.push_back(copy);
  return copies;
}

std::size_t HostParameters::place_of(hooks::RegionId id) const {
  const auto found = std::ranges::find(regions_, id, &Region::id);
  return found == regions_.end() ? kNowhere : static_cast<std::size_t>(found - regions_.begin());
}

HostParameters::Told& HostParameters::told(const void* owner) {
  const std::lock_guard lock(mutex_);
  return told_[owner];
}

void HostParameters::tell_no_more(const void* owner) {
  const std::lock_guard lock(mutex_);
  told_.erase(owner);
}

void HostParameters::note_update(const at::Tensor& parameter) {
  if (host::MovingTensor* const weight = find(weights_, parameter)) weight->note_update();
}

bool HostParameters::tell_before_fetch(std::size_t place, bool wait) const {
  bool is_ready = true;
  for (const auto& [owner, told] : told_)
    if (told.before_fetch) is_ready = told.before_fetch(regions_[place].id, wait) && is_ready;
  return is_ready;
}

void HostParameters::before_forward(hooks::RegionId id) {
  const std::lock_guard lock(mutex_);
  const std::size_t place = place_of(id);
  if (place == kNowhere) return;
  const hooks::AsideScope aside;
  throw_failed();
  moving_.begin_forward(place);
}

void HostParameters::after_forward(hooks::RegionId id) {
  const std::lock_guard lock(mutex_);
  const std::size_t place = place_of(id);
  if (place == kNowhere) return;
  const hooks::AsideScope aside;
  try {
    moving_.end_forward(place);
  } catch (...) {  // nobody may throw here
    failed_ = std::current_exception();
  }
}

void HostParameters::throw_failed() {
  if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
}

void HostParameters::before_backward(hooks::RegionId id) {
  const std::lock_guard lock(mutex_);
  const std::size_t place = place_of(id);
  if (place == kNowhere) return;
  const hooks::AsideScope aside;
  const at::NoGradGuard no_grad;
  throw_failed();
  moving_.use(place);
  for (const auto& gradient : regions_[place].gradients) gradient->use();
  if (place == 0) return;
  moving_.fetch(place - 1);
  for (const auto& gradient : regions_[place - 1].gradients) gradient->fetch();
}

void HostParameters::after_backward(hooks::RegionId id) {
  const std::lock_guard lock(mutex_);
  const std::size_t place = place_of(id);
  if (place == kNowhere) return;
  const hooks::AsideScope aside;
  const at::NoGradGuard no_grad;
  moving_.end_backward(place);
  leave_all_but(place);
  std::vector<HostGradient*> gradients;
  for (const auto& gradient : regions_[place].gradients) gradients.push_back(gradient.get());
  send(gradients);
}

void HostParameters::send_gradients(at::TensorList pieces) {
  const std::lock_guard lock(mutex_);
  std::vector<HostGradient*> gradients;
  for (const at::Tensor& piece : pieces)
    if (HostGradient* const gradient = find(gradients_, piece)) gradients.push_back(gradient);
  send(gradients);
}

void HostParameters::send(const std::vector<HostGradient*>& gradients) {
  for (const auto& [owner, told] : told_)
    if (told.before_send) told.before_send();
  std::vector<HostGradient*> sent;
  std::vector<at::Tensor> what;
  for (HostGradient* const gradient : gradients) {
    if (!gradient->send()) continue;
    sent.push_back(gradient);
    what.push_back(gradient->sent());
  }
  if (sent.empty()) return;
  std::vector<at::Tensor> norms = at::_foreach_norm(what, 2, at::kFloat);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i]->set_norm(std::move(norms[i]));
}

void HostParameters::before_replay(hooks::RegionId, at::TensorList parameters) {
  const std::lock_guard lock(mutex_);
  const hooks::AsideScope aside;
  for (const at::Tensor& parameter : parameters)
    if (host::MovingTensor* const weight = find(weights_, parameter)) weight->use();
}

}  // namespace snug::optim
