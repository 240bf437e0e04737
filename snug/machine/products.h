// Which algorithms won the races of products on this machine, kept from one run to the next: a run here then
// has the bits of the last, and races for nothing that is known. See Note [One algorithm per product].
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "snug/base/export.h"
#include "snug/base/json.h"

namespace snug::machine {

// Where they are kept: beside what 'snug probe' measured. Empty if this user has no folder for caches.
SNUG_API std::filesystem::path products_file();

// From now on products race, but for those whose winners are kept; or none does, and what is kept plays no
// part.
SNUG_API void race_products(bool may = true);
// Keeps what was won since. What cannot be written is not kept.
SNUG_API void keep_products();

// As a plan has them: what this process computes with, whether that is news, and what it shall compute with.
SNUG_API bool write_down_products(std::map<std::string, std::int64_t>& products);
SNUG_API void take_products(const std::map<std::string, std::int64_t>& products);
// Which of them turned out to be of another GPU or another cuBLAS, in words; empty if none did.
SNUG_API std::string products_that_differ();

// What this process computes with, as saved states have it: null if that is nothing.
SNUG_API Json products_to_json();
SNUG_API void products_from_json(const Json& json, const std::string& where);

}  // namespace snug::machine
