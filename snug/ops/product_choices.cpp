#include "snug/ops/product_choices.h"

#include <atomic>
#include <mutex>

namespace snug::ops {
namespace {

struct Known {
  std::mutex mutex;
  ProductChoices choices;
  std::atomic<bool> may_race = false;
};

Known& known() {
  static Known all;
  return all;
}

}  // namespace

void let_products_race(bool may) {
  known().may_race = may;
}

bool products_may_race() {
  return known().may_race;
}

ProductChoices chosen_products() {
  const std::lock_guard lock(known().mutex);
  return known().choices;
}

void choose_products(const ProductChoices& choices) {
  const std::lock_guard lock(known().mutex);
  for (const auto& [product, algorithm] : choices) known().choices.insert_or_assign(product, algorithm);
}

std::string choice_for(const std::string& product) {
  const std::lock_guard lock(known().mutex);
  const auto found = known().choices.find(product);
  return found == known().choices.end() ? "" : found->second;
}

void note_choice(const std::string& product, const std::string& algorithm) {
  const std::lock_guard lock(known().mutex);
  known().choices.insert_or_assign(product, algorithm);
}

}  // namespace snug::ops
