#include "snug/tape/pure.h"

#include <mutex>
#include <set>
#include <string>

namespace snug::tape {

namespace {

struct Names {
  std::mutex mutex;
  std::set<std::string, std::less<>> names;
};
Names& pure_names() {
  static Names table;
  return table;
}

}  // namespace

void pure(std::string_view name) {
  std::lock_guard lock(pure_names().mutex);
  pure_names().names.emplace(name);
}

bool is_pure(std::string_view name) {
  std::lock_guard lock(pure_names().mutex);
  return pure_names().names.contains(name);
}

}  // namespace snug::tape
