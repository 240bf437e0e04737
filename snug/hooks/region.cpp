#include "snug/hooks/region.h"

#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "snug/base/error.h"
#include "snug/hooks/backward_regions.h"
#include "snug/hooks/engine.h"
#include "snug/hooks/region_ranges.h"

namespace snug::hooks {

namespace {

struct RegionNames {
  std::mutex mutex;
  std::vector<std::string> names{""};
  std::unordered_map<std::string, RegionId> ids{{"", 0}};
};
RegionNames& region_names() {
  static RegionNames table;
  return table;
}

// Weak, so that a parameter's address is not mistaken for that of a later tensor.
struct ParameterHomes {
  struct Home {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> parameter;
    RegionId region;
  };
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Home> homes;
};
ParameterHomes& parameter_homes() {
  static ParameterHomes table;
  return table;
}

struct OpenRegion {
  RegionToken token;
  RegionId id;
  std::int64_t place;  // of the current region
  RegionId outer, outer_range;
};
thread_local std::vector<OpenRegion> open_regions;  // the innermost last
thread_local int aside = 0;                         // AsideScopes

void leave_innermost() {
  const OpenRegion& region = open_regions.back();
  set_region(region.place, region.outer);
  begin_range(region.outer_range);
  open_regions.pop_back();
}

template <class Call>
void tell_listeners(Call call) {
  for_each_frame([&](const Frame& frame) {
    if (frame.regions) frame.visit([&] { call(*frame.regions); });
  });
}

std::shared_ptr<Frame> frame_of(RegionListener& listener) {
  install_engine();
  auto frame = std::make_shared<Frame>();
  frame->regions = &listener;
  frame->backward = std::make_shared<BackwardState>();
  return frame;
}

}  // namespace

RegionId region_id(std::string_view name) {
  auto& table = region_names();
  std::lock_guard lock(table.mutex);
  auto [entry, fresh] = table.ids.try_emplace(std::string(name), static_cast<RegionId>(table.names.size()));
  if (fresh) table.names.emplace_back(name);
  return entry->second;
}

std::string region_name(RegionId id) {
  auto& table = region_names();
  std::lock_guard lock(table.mutex);
  ensure(id < table.names.size(), "no region has the number ", id);
  return table.names[id];
}

void bind_parameters(RegionId region, at::TensorList parameters) {
  auto& table = parameter_homes();
  std::lock_guard lock(table.mutex);
  std::erase_if(table.homes, [](const auto& entry) { return entry.second.parameter.expired(); });
  for (const at::Tensor& parameter : parameters)
    table.homes.insert_or_assign(
        parameter.unsafeGetTensorImpl(),
        ParameterHomes::Home{decltype(ParameterHomes::Home::parameter)(parameter.getIntrusivePtr()), region});
}

RegionId region_of_parameter(const at::Tensor& parameter) {
  auto& table = parameter_homes();
  std::lock_guard lock(table.mutex);
  auto entry = table.homes.find(parameter.unsafeGetTensorImpl());
  return entry == table.homes.end() ? 0 : entry->second.region;
}

AsideScope::AsideScope() {
  ++aside;
}
AsideScope::~AsideScope() {
  --aside;
}
bool AsideScope::on() noexcept {
  return aside > 0;
}

RegionToken begin_region(RegionId id) {
  static std::atomic<RegionToken> begun{0};
  end_left_overs();
  const OpenRegion region{++begun, id, current_place(), current_region(), begin_range(id)};
  open_regions.push_back(region);
  set_region(region.place, id);
  int told = 0;
  try {
    tell_listeners([&](RegionListener& listener) {
      listener.before_forward(id);
      ++told;
    });
  } catch (...) {  // those that entered it leave it
    tell_listeners([&](RegionListener& listener) {
      if (told-- > 0) listener.after_forward(id);
    });
    leave_innermost();
    throw;
  }
  return region.token;
}

void end_region(RegionToken token) {
  const auto is_open = [&] { return std::ranges::count(open_regions, token, &OpenRegion::token) > 0; };
  while (is_open()) {
    const RegionId id = open_regions.back().id;
    tell_listeners([&](RegionListener& listener) { listener.after_forward(id); });
    leave_innermost();
  }
}

void announce_replay(RegionId region, at::TensorList parameters) {
  tell_listeners([&](RegionListener& listener) { listener.before_replay(region, parameters); });
}

void announce_parameter(const at::Tensor& parameter) {
  tell_listeners([&](RegionListener& listener) { listener.parameter_came(parameter); });
}

void announce_gradient(const at::Tensor& leaf) {
  tell_listeners([&](RegionListener& listener) { listener.gradient_ready(leaf); });
}

RegionListenerGuard::RegionListenerGuard(RegionListener& listener) : frame_(frame_of(listener)) {
  watch_nodes();
}
RegionListenerGuard::~RegionListenerGuard() {
  unwatch_nodes();
}

}  // namespace snug::hooks
