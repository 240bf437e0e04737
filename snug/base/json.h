// JSON in and out, with errors that name the file, the key, what was expected and what came.
//
//   JsonReader config(read_json("config.json"), "config.json");
//   auto hidden = config.required<std::int64_t>("hidden_size");
//   auto theta = config.optional<double>("rope_theta", 10000.0);
//   config.refuse_unread();            // an unknown key is an error, never silence
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "snug/base/error.h"
#include "snug/base/export.h"

namespace snug {

using Json = nlohmann::ordered_json;

// One JSON object, from a file or from text that errors call `where`. Throws Error, in one line, for a
// missing file, a folder, invalid JSON (with line and column), a key given twice, more than 100 MB or more
// keys than 30,000 and one for every twelve bytes, and anything but an object.
SNUG_API Json read_json(const std::filesystem::path& path);
SNUG_API Json parse_json(std::string_view text, const std::string& where);

// Typed access to one JSON object. Supported: bool, std::int64_t, double, std::string, Json (any value).
class SNUG_API JsonReader {
 public:
  JsonReader(Json object, std::string where);  // where: what errors call this object, e.g. a file name

  bool has(const std::string& key) const;       // present and not null; counts as read
  bool contains(const std::string& key) const;  // present, if only as null; counts as read
  template <class T>
  T required(const std::string& key) const;  // an integer is accepted as double, never a double as an integer
  template <class T>
  T optional(const std::string& key, T fallback) const {
    return has(key) ? required<T>(key) : fallback;
  }
  void ignore(const std::string& key) const;  // known, and of no use here
  Json unread() const;                        // the keys that nobody asked for, with their values
  void refuse_unread() const;                 // throws Error naming the first of them

 private:
  Json object_;
  std::string where_;
  mutable std::set<std::string> read_;
};

}  // namespace snug
