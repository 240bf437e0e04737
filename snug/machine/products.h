// The algorithms that products have on this machine, from one run to the next: so that a run here has the
// same bits as the last, and races for nothing that is known. See Note [One algorithm per product].
#pragma once

#include <filesystem>

#include "snug/base/export.h"
#include "snug/base/json.h"

namespace snug::machine {

// Where they are kept: beside what 'snug probe' measured. Empty if this user has no folder for caches.
SNUG_API std::filesystem::path products_file();

// Takes those that are kept, once per process, and lets others race.
SNUG_API void use_kept_products();
// Keeps what was chosen since. What cannot be written is not kept.
SNUG_API void keep_products();

// As saved states have them: null if there are none.
SNUG_API Json products_to_json();
SNUG_API void products_from_json(const Json& json, const std::string& where);

}  // namespace snug::machine
