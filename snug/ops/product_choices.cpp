#include "snug/ops/product_choices.h"

#include <mutex>

namespace snug::ops {
namespace {

struct Known {
  std::mutex mutex;
  ProductChoices used;    // by this process
  ProductChoices wanted;  // by a state or a plan
  std::int64_t not_as_wanted = 0;
  ProductChoices winners;  // of races here before
  ProductChoices won;      // of races of this process
  bool may_race = false;
};

Known& known() {
  static Known all;
  return all;
}

std::optional<std::int64_t> find(const ProductChoices& choices, const std::string& product) {
  const auto found = choices.find(product);
  return found == choices.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

void let_products_race(const ProductChoices& winners) {
  const std::lock_guard lock(known().mutex);
  known().winners = winners;
  known().may_race = true;
}

void stop_races() {
  const std::lock_guard lock(known().mutex);
  known().winners.clear();
  known().may_race = false;
}

ProductChoices chosen_products() {
  const std::lock_guard lock(known().mutex);
  return known().used;
}

std::size_t products_so_far() {
  const std::lock_guard lock(known().mutex);
  return known().used.size();
}

void choose_products(const ProductChoices& choices) {
  const std::lock_guard lock(known().mutex);
  known().wanted = choices;
  known().not_as_wanted = 0;
}

std::int64_t products_not_as_chosen() {
  const std::lock_guard lock(known().mutex);
  return known().not_as_wanted;
}

void note_not_as_chosen() {
  const std::lock_guard lock(known().mutex);
  ++known().not_as_wanted;
}

ProductChoices race_winners() {
  const std::lock_guard lock(known().mutex);
  return known().won;
}

std::uint64_t races_so_far() {
  const std::lock_guard lock(known().mutex);
  return known().won.size();
}

ProductChoice choice_for(const std::string& product, bool deterministic) {
  constexpr std::size_t kMostRaces = 500;  // where every batch has another length they would never end
  const std::lock_guard lock(known().mutex);
  if (const auto used = find(known().used, product)) return {used};
  if (const auto wanted = find(known().wanted, product)) return {.number = wanted, .is_wanted = true};
  known().not_as_wanted += !known().wanted.empty();
  if (deterministic) return {};
  if (const auto winner = find(known().winners, product)) return {winner};
  return {.races = known().may_race && known().won.size() < kMostRaces};
}

void note_choice(const std::string& product, std::int64_t number, bool won) {
  const std::lock_guard lock(known().mutex);
  known().used.insert_or_assign(product, number);
  if (won) known().won.insert_or_assign(product, number);
}

}  // namespace snug::ops
