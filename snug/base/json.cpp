// Parsing with duplicate keys refused, and typed reads whose errors name the key.
#include "snug/base/json.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "snug/base/mapped_file.h"

namespace snug {
namespace {

// Copying and printing a Json recurse; deeper input than any of ours would overflow the stack.
constexpr std::size_t kMaxDepth = 200;
constexpr std::size_t kMaxShown = 60;
constexpr std::size_t kMaxBytes = 100'000'000;
// Every key costs a hundred bytes of memory. A text may have so many, or one for every twelve of its bytes,
// as the header of a safetensors file does at its densest.
constexpr std::size_t kAlwaysAllowedKeys = 30'000, kBytesPerKey = 12;

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

// Puts a document together event by event. nlohmann's own way looks through the whole object for every new
// key, which takes minutes for the tensors of a deep model; here a set of keys lies beside each open object.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(const std::string& where, std::size_t most_keys) : where_(where), most_keys_(most_keys) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(std::move(value)); }
  bool start_object(std::size_t) override { return begin(Json::object()); }
  bool start_array(std::size_t) override { return begin(Json::array()); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(string_t& value) override {
    if (!open_.back().keys.insert(value).second)
      fail(where_, ": the key ", quoted(value), " appears twice in one object");
    check(++keys_ <= most_keys_, where_, ": more than ", most_keys_, " keys");
    key_ = std::move(value);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    fail(where_, ": not valid JSON: ", reason(error));
  }

 private:
  struct Open {
    Json* place;  // stays where it is: what is around it gets nothing new before it has ended
    std::unordered_set<std::string> keys;
  };

  Json& put(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    Json& around = *open_.back().place;
    if (around.is_array()) return around.emplace_back(std::move(value));
    Json::object_t::Container& members = around.get_ref<Json::object_t&>();
    return members.emplace_back(std::move(key_), std::move(value)).second;
  }
  bool add(Json value) {
    put(std::move(value));
    return true;
  }
  bool begin(Json empty) {
    check(open_.size() < kMaxDepth, where_, ": nested deeper than ", kMaxDepth, " levels");
    Json& place = put(std::move(empty));
    open_.push_back({&place, {}});
    return true;
  }
  bool end() {
    open_.pop_back();
    return true;
  }

  const std::string& where_;
  std::size_t most_keys_, keys_ = 0;
  Json root_;
  std::vector<Open> open_;
  std::string key_;  // of the value that comes next
};

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  check(text.size() <= kMaxBytes, where, ": ", text.size(), " bytes of JSON; expected at most ", kMaxBytes);
  Builder builder(where, std::max(kAlwaysAllowedKeys, text.size() / kBytesPerKey));
  Json::sax_parse(text, &builder);
  Json value = builder.take();
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

Json JsonReader::unread() const {
  Json rest = Json::object();
  for (const auto& [key, value] : object_.items())
    if (!read_.contains(key)) rest[key] = value;
  return rest;
}

void JsonReader::refuse_unread() const {
  const Json rest = unread();
  if (!rest.empty())
    fail(where_, ": unknown key ", quoted(rest.begin().key()), ": remove it or correct its spelling");
}

}  // namespace snug
