// Which algorithm computes a product. cuBLASLt names several for one, best guess first; the fastest of eight
// takes 0.94 of the first one's time over the products of a step of GPT-2 (bench/results/h200.md).
//
// Note [One algorithm per product]
// Algorithms round in different orders, so a product keeps the one that it was first computed with: in what
// is recomputed, in later steps, in a run that goes on from a saved state, which holds the choices, and in
// later runs on this machine (machine/products.h). Where nothing is chosen yet and products_may_race(), the
// candidates are timed when the product first comes up, on its own factors; else the first is taken, as it is
// in torch's deterministic mode, where nothing may depend on a clock.
#pragma once

#include <map>
#include <string>

#include "snug/base/export.h"

namespace snug::ops {

// By what a product is: GPU, version of cuBLAS, sizes, types, how its factors lie. An algorithm is in hex, as
// cuBLASLt writes it.
using ProductChoices = std::map<std::string, std::string>;

SNUG_API void let_products_race(bool may);  // they may not at first
SNUG_API bool products_may_race();

SNUG_API ProductChoices chosen_products();                     // of this process so far
SNUG_API void choose_products(const ProductChoices& choices);  // for what was not computed yet

// Of the CUDA side: empty if nothing is chosen yet.
std::string choice_for(const std::string& product);
void note_choice(const std::string& product, const std::string& algorithm);

}  // namespace snug::ops
