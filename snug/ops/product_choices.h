// Which algorithm computes a product. cuBLASLt names several for one, best guess first; the fastest of eight
// takes 0.94 of the first one's time over the products of a step of GPT-2 (bench/results/h200.md).
//
// Note [One algorithm per product]
// Algorithms round in different orders, so a product keeps the one that it was first computed with, to the
// end of the process: in what is recomputed, and in later steps. A saved state and the plan of a run hold
// what it computed with, and go before everything else when that run goes on or is repeated. Where nothing is
// known and products may race, the candidates are timed when the product first comes up, on its own factors,
// and what won is kept for later runs on this machine (machine/products.h). Nothing is raced, and nothing of
// what was kept is taken, in torch's deterministic mode, where bits must not depend on a clock, and where
// several ranks train one model, each with a clock of its own: there it is the first candidate.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "snug/base/export.h"

namespace snug::ops {

// By what a product is: GPU, version of cuBLAS, workspace, sizes, types, how its factors lie. An algorithm is
// its number among the candidates.
using ProductChoices = std::map<std::string, std::int64_t>;

// From now on, with these as what won before; not at first.
SNUG_API void let_products_race(const ProductChoices& winners);
SNUG_API void stop_races();

SNUG_API ProductChoices chosen_products();                     // what this process has computed with so far
SNUG_API std::size_t products_so_far();                        // how many they are
SNUG_API void choose_products(const ProductChoices& choices);  // for what was not computed yet
// Computed since with another algorithm than the last choose_products() has, which was of another GPU or
// another cuBLAS, or knew no such product.
SNUG_API std::int64_t products_not_as_chosen();

SNUG_API ProductChoices race_winners();  // of this process
SNUG_API std::uint64_t races_so_far();   // how many they are

// Of the CUDA side, and of tests.
struct ProductChoice {
  std::optional<std::int64_t> number;  // none: to be chosen
  bool races = false;                  // by a race
  bool is_wanted = false;              // the number: by choose_products()
};
SNUG_API ProductChoice choice_for(const std::string& product, bool deterministic);
SNUG_API void note_choice(const std::string& product, std::int64_t number, bool won);
SNUG_API void note_not_as_chosen();  // cuBLASLt has no such number

}  // namespace snug::ops
