#include "snug/hooks/region.h"

#include <c10/util/intrusive_ptr.h>

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

RegionScope::RegionScope(RegionId id)
    : id_((end_left_overs(), id)),
      place_(current_place()),
      outer_(current_region()),
      outer_range_(begin_range(id)) {
  set_region(place_, id_);
  int told = 0;
  try {
    tell_listeners([&](RegionListener& listener) {
      listener.before_forward(id_);
      ++told;
    });
  } catch (...) {  // those that entered it leave it
    tell_listeners([&](RegionListener& listener) {
      if (told-- > 0) listener.after_forward(id_);
    });
    leave();
    throw;
  }
}

RegionScope::~RegionScope() {
  tell_listeners([&](RegionListener& listener) { listener.after_forward(id_); });
  leave();
}

void RegionScope::leave() {
  set_region(place_, outer_);
  begin_range(outer_range_);
}

void announce_replay(RegionId region, at::TensorList parameters) {
  tell_listeners([&](RegionListener& listener) { listener.before_replay(region, parameters); });
}

RegionListenerGuard::RegionListenerGuard(RegionListener& listener) : frame_(frame_of(listener)) {
  watch_nodes();
}
RegionListenerGuard::~RegionListenerGuard() {
  unwatch_nodes();
}

}  // namespace snug::hooks
