// The table of names.
#include "snug/trace/event.h"

#include "snug/base/error.h"

namespace snug::trace {

NameId NameTable::intern(std::string_view text) {
  if (text.empty()) return 0;
  if (const auto found = ids_.find(text); found != ids_.end()) return found->second;
  const auto id = static_cast<NameId>(names_.size());
  names_.emplace_back(text);
  ids_.emplace(text, id);
  return id;
}

const std::string& NameTable::operator[](NameId id) const {
  ensure(id < names_.size(), "no name has the number ", id, ", the table holds ", names_.size());
  return names_[id];
}

}  // namespace snug::trace
