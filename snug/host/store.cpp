#include "snug/host/store.h"

#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace snug::host {

namespace {

ArenaOptions arena_options(c10::Device device, std::uint64_t budget) {
  return {.pinned = device.is_cuda(), .budget_bytes = budget > 0 ? budget : default_budget_bytes()};
}

}  // namespace

std::uint64_t default_budget_bytes() {
  constexpr double kShareOfFree = 0.8;
  return static_cast<std::uint64_t>(kShareOfFree * static_cast<double>(free_host_bytes()));
}

Store::Store(c10::Device device, const StoreOptions& options) : Store(Link::open(device), options) {}

Store::Store(std::shared_ptr<Link> link, const StoreOptions& options)
    : arena_(arena_options(link->device(), options.budget_bytes)), link_(std::move(link)) {
  if (options.reserve_bytes > 0) arena_.reserve(options.reserve_bytes);
}

std::shared_ptr<Store> Store::shared(c10::Device given) {
  const c10::Device device = Link::open(given)->device();  // with its index
  static std::mutex mutex;
  static auto* const stores =
      new std::map<std::string, std::shared_ptr<Store>>;  // a graph may outlive main()
  std::lock_guard lock(mutex);
  std::shared_ptr<Store>& store = (*stores)[device.str()];
  if (!store) store = std::make_shared<Store>(device);
  return store;
}

}  // namespace snug::host
