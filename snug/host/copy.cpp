#include "snug/host/copy.h"

#include <exception>

namespace snug::host {

namespace {

template <class Wait>
void each(const std::vector<CopyPtr>& copies, const Wait& wait) {
  std::exception_ptr first;
  for (const CopyPtr& copy : copies) try {
      if (copy) wait(*copy);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  if (first) std::rethrow_exception(first);
}

}  // namespace

void wait_for_all(const std::vector<CopyPtr>& copies) {
  each(copies, [](Copy& copy) { copy.wait(); });
}

void finish_all(const std::vector<CopyPtr>& copies) {
  each(copies, [](Copy& copy) { copy.finish(); });
}

}  // namespace snug::host
