// Parsing with duplicate keys refused, and typed reads whose errors name the key.
#include "snug/base/json.h"

#include <cmath>
#include <limits>
#include <string_view>
#include <type_traits>
#include <vector>

#include "snug/base/mapped_file.h"

namespace snug {
namespace {

// Copying and printing a Json recurse; deeper input than any of ours would overflow the stack.
constexpr int kMaxDepth = 200;
constexpr std::size_t kMaxShown = 60;
// An ordered object is searched key by key.
constexpr std::size_t kMaxKeys = 30'000, kMaxKeysInAll = 200'000;
constexpr std::size_t kMaxBytes = 100'000'000;

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string quoted(const std::string& text) {
  return dump(Json(text));
}

std::string describe(const Json& value) {
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  std::string text = dump(value);
  if (text.size() > kMaxShown) {
    text.resize(kMaxShown);
    text += "...";
  }
  if (value.is_string()) return "the string " + text;
  if (value.is_number()) return "the number " + text;
  return text;
}

template <class T>
constexpr std::string_view expectation() {
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_same_v<T, std::int64_t>) return "an integer";
  if constexpr (std::is_same_v<T, double>) return "a number";
  if constexpr (std::is_same_v<T, std::string>) return "a string";
  return "any value";
}

template <class T>
bool holds(const Json& value) {
  if constexpr (std::is_same_v<T, bool>) return value.is_boolean();
  if constexpr (std::is_same_v<T, std::int64_t>) {
    if (!value.is_number_unsigned()) return value.is_number_integer();
    return value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max();
  }
  if constexpr (std::is_same_v<T, double>) return value.is_number();
  if constexpr (std::is_same_v<T, std::string>) return value.is_string();
  return true;
}

// The library's message without its "[json.exception.parse_error.101] ", in one line of bearable length; it
// quotes what it could not read.
std::string reason(const Json::exception& error) {
  std::string text = error.what();
  if (const auto end = text.find("] "); end != text.npos) text.erase(0, end + 2);
  for (char& letter : text)
    if (letter < ' ' || letter > '~') letter = '?';
  constexpr std::size_t kLongest = 300;
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  check(text.size() <= kMaxBytes, where, ": ", text.size(), " bytes of JSON; expected at most ", kMaxBytes);
  std::vector<std::set<std::string>> open;  // the keys seen in each object that has not ended
  std::size_t keys = 0;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    check(depth <= kMaxDepth, where, ": nested deeper than ", kMaxDepth, " levels");
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!open.back().insert(key).second)
        fail(where, ": the key ", quoted(key), " appears twice in one object");
      check(open.back().size() <= kMaxKeys && ++keys <= kMaxKeysInAll, where, ": more than ", kMaxKeys,
            " keys in one object, or ", kMaxKeysInAll, " in all");
    }
    return true;
  };
  Json value;
  try {
    value = Json::parse(text, watch);
  } catch (const Json::exception& error) {
    fail(where, ": not valid JSON: ", reason(error));
  }
  if (!value.is_object()) fail(where, ": expected a JSON object, got ", describe(value));
  return value;
}

Json read_json(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

JsonReader::JsonReader(Json object, std::string where)
    : object_(std::move(object)), where_(std::move(where)) {
  if (!object_.is_object()) fail(where_, ": expected a JSON object, got ", describe(object_));
}

bool JsonReader::has(const std::string& key) const {
  read_.insert(key);
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

bool JsonReader::contains(const std::string& key) const {
  read_.insert(key);
  return object_.contains(key);
}

template <class T>
T JsonReader::required(const std::string& key) const {
  read_.insert(key);
  const auto found = object_.find(key);
  if (found == object_.end()) fail(where_, ": ", quoted(key), " is missing: expected ", expectation<T>());
  if (!holds<T>(*found)) {
    fail(where_, ": ", quoted(key), " must be ", expectation<T>(), ", got ", describe(*found));
  }
  if constexpr (std::is_same_v<T, Json>) {
    return *found;
  } else {
    return found->template get<T>();
  }
}

template bool JsonReader::required<bool>(const std::string&) const;
template std::int64_t JsonReader::required<std::int64_t>(const std::string&) const;
template double JsonReader::required<double>(const std::string&) const;
template std::string JsonReader::required<std::string>(const std::string&) const;
template Json JsonReader::required<Json>(const std::string&) const;

void JsonReader::ignore(const std::string& key) const {
  read_.insert(key);
}

void JsonReader::refuse_unread() const {
  for (const auto& [key, value] : object_.items()) {
    if (!read_.contains(key))
      fail(where_, ": unknown key ", quoted(key), ": remove it or correct its spelling");
  }
}

}  // namespace snug
