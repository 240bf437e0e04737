#include "snug/tape/proven.h"

#include <unordered_map>

namespace snug::tape {

namespace {

// Calls that take turns between a few ways: all of them should come by while proofs go on.
constexpr int kCallsAfterAnotherWay = 8;
// Operators that depend on the data go another way each time; what they did before is of no use.
constexpr std::size_t kMostPrefixes = 1 << 16;

struct Sites {
  std::mutex mutex;
  std::unordered_map<std::uint64_t, std::shared_ptr<Site>> by_key;
};
Sites& sites() {
  static Sites table;
  return table;
}

}  // namespace

std::shared_ptr<Site> Site::at(std::uint64_t key) {
  std::lock_guard lock(sites().mutex);
  auto& site = sites().by_key[key];
  if (!site) site = std::make_shared<Site>();
  return site;
}

void Site::forget_all() {
  std::lock_guard lock(sites().mutex);
  sites().by_key.clear();
}

std::shared_ptr<const Site::Known> Site::known() const {
  std::lock_guard lock(mutex_);
  return known_;
}

bool Site::wants_proof() const {
  std::lock_guard lock(mutex_);
  return calls_to_prove_ > 0;
}

void Site::proven(const Prefixes& call) {
  std::lock_guard lock(mutex_);
  --calls_to_prove_;
  Known known = *known_;
  const std::size_t before = known.prefixes.size();
  if (before + call.size() > kMostPrefixes) known.prefixes.clear();
  known.prefixes.insert(call.begin(), call.end());
  if (known.prefixes.size() == before) return;
  calls_to_prove_ = 0;  // the way that was not known
  known_ = std::make_shared<const Known>(std::move(known));
}

void Site::went_another_way() {
  std::lock_guard lock(mutex_);
  calls_to_prove_ = kCallsAfterAnotherWay;
}

void Site::suspect(std::uint64_t value) {
  std::lock_guard lock(mutex_);
  if (known_->suspects.contains(value)) return;
  Known known = *known_;
  known.suspects.insert(value);
  known_ = std::make_shared<const Known>(std::move(known));
}

}  // namespace snug::tape
