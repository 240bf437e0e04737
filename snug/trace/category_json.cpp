// One key per category.
#include "snug/trace/category_json.h"

namespace snug::trace {

Json to_json(const CategoryBytes& bytes) {
  Json json = Json::object();
  for (const Category category : kAllCategories) {
    json[std::string(name(category))] = bytes[static_cast<std::size_t>(category)];
  }
  return json;
}

}  // namespace snug::trace
