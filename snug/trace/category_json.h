// Bytes by category as JSON, the form every report shares.
#pragma once

#include "snug/base/export.h"
#include "snug/base/json.h"
#include "snug/trace/ledger.h"

namespace snug::trace {

// {"parameters": 1, "gradients": 2, ...}: every category, by its name.
SNUG_API Json to_json(const CategoryBytes& bytes);

}  // namespace snug::trace
