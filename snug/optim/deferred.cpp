#include "snug/optim/deferred.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <utility>

#include "snug/base/error.h"
#include "snug/optim/streams.h"

namespace snug::optim {

// Note [Copies are asked for in the order in which they are needed]
// There is one queue per direction (host/link.h). So the host asks for updates one region ahead, for a
// region's weights right after its update, and for a loss before all of them. Where only the last regions
// have states on the host, they are asked for evenly from the first region on.

void Deferred::begin(std::shared_ptr<std::vector<Update>> updates, std::vector<hooks::RegionId> regions,
                     Work work) {
  ensure(stretches_.empty(), "updates were deferred while others wait");
  updates_ = std::move(updates);
  regions_ = std::move(regions);
  work_ = std::move(work);
  for (const Update& update : *updates_) {
    if (stretches_.empty() || stretches_.back().region != update.region) {
      ensure(std::ranges::count(stretches_, update.region, &Stretch::region) == 0,
             "the updates of a region do not follow one another");
      stretches_.push_back({update.region, stretches_.empty() ? 0 : stretches_.back().end, nullptr});
    }
    ++stretches_.back().end;
  }
  asked_ = waited_ = 0;
  if (stream_) {  // what the backward was given comes first
    stepped_on_ = current_stream(stream_->device());
    run_after(*stepped_on_, *stream_);
  }
  ask_for(1);
}

// Of the stretches, how many are asked for when this region begins: the next one's with them.
std::size_t Deferred::due(hooks::RegionId region) const {
  const auto place = static_cast<std::size_t>(std::ranges::find(regions_, region) - regions_.begin());
  if (place == regions_.size() || is_told_(region)) return asked_;
  return (stretches_.size() * (place + 2) + regions_.size() - 1) / regions_.size();
}

void Deferred::before_forward(hooks::RegionId region) {
  if (stretches_.empty()) return;
  const auto found = std::ranges::find(stretches_, region, &Stretch::region);
  const auto stretch = static_cast<std::size_t>(found - stretches_.begin());
  const bool is_here = found != stretches_.end();
  ask_for(std::max(is_here ? stretch + 1 : 0, due(region)));
  if (!is_here) return;
  if (stretch >= waited_) return wait_for(stretch);
  if (!stream_) return;
  found->done->block(current_stream(stream_->device()));  // it was another stream that waited
  for (std::size_t i = begin_of(stretch); i < found->end; ++i) work_.wait(i);
}

bool Deferred::ask_for_region(hooks::RegionId region, bool wait) {
  const auto found = std::ranges::find(stretches_, region, &Stretch::region);
  if (found == stretches_.end()) return true;
  const auto stretch = static_cast<std::size_t>(found - stretches_.begin());
  ask_for(stretch + 1);
  for (std::size_t i = begin_of(stretch); i < found->end; ++i) {
    if (wait) work_.wait(i);
    if (!work_.is_done(i)) return false;
  }
  return true;
}

std::size_t Deferred::begin_of(std::size_t stretch) const {
  return stretch == 0 ? 0 : stretches_[stretch - 1].end;
}

void Deferred::finish() {
  if (stretches_.empty()) return;
  ask_for(stretches_.size());
  wait_for(stretches_.size() - 1);
}

void Deferred::ask_for(std::size_t stretches) {
  constexpr std::size_t kHostAhead = 1;  // so that it is never without work
  const hooks::AsideScope aside;
  const at::NoGradGuard no_grad;
  std::optional<c10::StreamGuard> guard;
  if (stream_) guard.emplace(*stream_);
  for (; asked_ < std::min(stretches, stretches_.size()); ++asked_) {
    Stretch& stretch = stretches_[asked_];
    work_.ask_host(stretches_[std::min(asked_ + kHostAhead, stretches_.size() - 1)].end);
    work_.go_to(stretch.end);
    if (!stream_) continue;
    stretch.done = std::make_unique<c10::Event>(stream_->device_type());
    stretch.done->record(*stream_);
  }
}

// With it those before it.
void Deferred::wait_for(std::size_t number) {
  const Stretch& stretch = stretches_[number];
  if (stream_) {
    stretch.done->block(current_stream(stream_->device()));
    stretch.done->block(*stepped_on_);
  }
  for (std::size_t i = begin_of(waited_); i < stretch.end; ++i) {
    work_.wait(i);
    (*updates_)[i].gradient.reset();
  }
  waited_ = number + 1;
  if (waited_ < stretches_.size()) return;
  updates_ = nullptr;
  stretches_.clear();
  work_ = {};
}

void Deferred::check_unused() const {
  if (!updates_) return;
  for (const Update& update : *updates_)
    if (update.gradient.defined() && update.parameter.grad().defined())
      fail("parameter ", update.number, " has a new gradient and its last update still waits for region \"",
           hooks::region_name(update.region),
           "\": bind the parameter to the first region that reads it, run that on the thread that made the "
           "optimizer, or call finish() before the parameter is read");
}

}  // namespace snug::optim
