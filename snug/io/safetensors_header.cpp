#include "snug/io/safetensors_header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "snug/base/error.h"
#include "snug/base/json.h"

namespace snug::io {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are read in place");

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::string_view kLargeFilePointer = "version https://git-lfs";

struct DtypeName {
  c10::ScalarType dtype;
  std::string_view name;
};

constexpr DtypeName kDtypes[] = {
    {c10::kFloat, "F32"},
    {c10::kBFloat16, "BF16"},
    {c10::kHalf, "F16"},
    {c10::kDouble, "F64"},
    {c10::kLong, "I64"},
    {c10::kInt, "I32"},
    {c10::kShort, "I16"},
    {c10::kChar, "I8"},
    {c10::kByte, "U8"},
    {c10::kBool, "BOOL"},
    {c10::kUInt16, "U16"},
    {c10::kUInt32, "U32"},
    {c10::kUInt64, "U64"},
    {c10::kComplexFloat, "C64"},
    {c10::kFloat8_e5m2, "F8_E5M2"},
    {c10::kFloat8_e4m3fn, "F8_E4M3"},
    {c10::kFloat8_e8m0fnu, "F8_E8M0"},
    {c10::kFloat8_e5m2fnuz, "F8_E5M2FNUZ"},
    {c10::kFloat8_e4m3fnuz, "F8_E4M3FNUZ"},
};

c10::ScalarType parse_dtype(const std::string& name, const std::string& where) {
  for (const DtypeName& known : kDtypes)
    if (known.name == name) return known.dtype;
  fail(where, ": dtype '", name, "' is not supported");
}

// Bytes of the tensor; more than 2^63 is an error, not a wrapped number.
std::uint64_t size_in_bytes(const TensorEntry& entry, const std::string& where) {
  std::int64_t size = static_cast<std::int64_t>(c10::elementSize(entry.dtype));
  bool is_empty = false, overflows = false;
  for (const std::int64_t length : entry.shape) {
    if (length == 0) is_empty = true;
    overflows |= __builtin_mul_overflow(size, std::max<std::int64_t>(length, 1), &size);
  }
  check(!overflows, where, ": the shape holds more than 2^63 bytes");
  return is_empty ? 0 : static_cast<std::uint64_t>(size);
}

std::vector<std::int64_t> read_shape(const Json& json, const std::string& where) {
  check(json.is_array() && json.size() <= 64, where, ": shape must be a list of at most 64 lengths");
  std::vector<std::int64_t> shape;
  for (const Json& length : json) {
    check(length.is_number_unsigned() && length.get<std::uint64_t>() <= INT64_MAX, where,
          ": shape must be a list of integers from 0, got ", json.dump());
    shape.push_back(length.get<std::int64_t>());
  }
  return shape;
}

TensorEntry read_entry(const std::string& name, const Json& object, std::uint64_t data_begin,
                       std::uint64_t data_bytes, const std::string& file) {
  const std::string where = concat(file, ": tensor '", name, "'");
  check(object.is_object(), where, ": expected an object, got ", object.type_name());
  const JsonReader json(object, where);
  TensorEntry entry{.name = name};
  entry.dtype = parse_dtype(json.required<std::string>("dtype"), where);
  entry.shape = read_shape(json.required<Json>("shape"), where);
  const Json offsets = json.required<Json>("data_offsets");
  json.refuse_unread();
  check(offsets.is_array() && offsets.size() == 2 && offsets[0].is_number_unsigned() &&
            offsets[1].is_number_unsigned(),
        where, ": data_offsets must be [begin, end], got ", offsets.dump());
  const auto begin = offsets[0].get<std::uint64_t>(), end = offsets[1].get<std::uint64_t>();
  check(begin <= end && end <= data_bytes, where, ": data_offsets [", begin, ", ", end,
        "] do not lie in the file's ", data_bytes, " bytes of data");
  entry.begin = data_begin + begin;
  entry.end = data_begin + end;
  const std::uint64_t needed = size_in_bytes(entry, where);
  check(entry.bytes() == needed, where, ": data_offsets [", begin, ", ", end, "] hold ", entry.bytes(),
        " bytes, shape and dtype need ", needed);
  return entry;
}

void read_metadata(const Json& json, const std::string& where, std::map<std::string, std::string>& metadata) {
  check(json.is_object(), where, ": __metadata__ must be an object, got ", json.type_name());
  for (const auto& [key, value] : json.items()) {
    check(value.is_string(), where, ": __metadata__ must hold strings, got ", value.dump(), " for '", key,
          "'");
    metadata[key] = value.get<std::string>();
  }
}

void check_every_byte_is_used(const std::vector<TensorEntry>& entries, std::uint64_t begin, std::uint64_t end,
                              const std::string& where) {
  std::uint64_t used = begin;
  for (const TensorEntry& entry : entries) {
    check(entry.begin == used, where, ": tensor '", entry.name, "' ",
          entry.begin < used ? "overlaps the one before" : "leaves a hole before it", ": it begins at byte ",
          entry.begin, ", expected ", used);
    used = entry.end;
  }
  check(used == end, where, ": the tensors end at byte ", used, ", the file at ", end);
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, const std::string& where) {
  check(file.size() >= kLengthBytes, where, ": expected a safetensors file, got a file of ", file.size(),
        " bytes");
  const std::string_view whole(reinterpret_cast<const char*>(file.data()), file.size());
  check(!whole.starts_with(kLargeFilePointer), where,
        ": is the pointer that Git LFS leaves in place of a file: fetch the file itself with 'git lfs pull'");
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  check(length <= kLongestHeader, where,
        ": expected a safetensors file, but its first 8 bytes announce a header of ", length,
        " bytes; at most ", kLongestHeader, " are allowed");
  check(length <= file.size() - kLengthBytes, where, ": announces a header of ", length,
        " bytes, but the file has ", file.size(), "; it was cut short or is no safetensors file");
  const std::string_view text = whole.substr(kLengthBytes, length);
  check(text.starts_with('{'), where, ": the header must begin with '{'");

  const std::uint64_t data_begin = kLengthBytes + length, data_bytes = file.size() - data_begin;
  SafetensorsHeader header;
  const Json json = parse_json(text, where + ": header");
  for (const auto& [name, object] : json.items()) {
    if (name == "__metadata__") {
      read_metadata(object, where, header.metadata);
    } else {
      header.entries.push_back(read_entry(name, object, data_begin, data_bytes, where));
    }
  }
  std::ranges::sort(header.entries, {},
                    [](const TensorEntry& entry) { return std::pair(entry.begin, entry.end); });
  check_every_byte_is_used(header.entries, data_begin, file.size(), where);
  return header;
}

std::string safetensors_name(c10::ScalarType dtype) {
  for (const DtypeName& known : kDtypes)
    if (known.dtype == dtype) return std::string(known.name);
  fail("safetensors have no name for ", c10::toString(dtype));
}

std::string config_name(c10::ScalarType dtype) {
  if (dtype == c10::kFloat) return "float32";
  if (dtype == c10::kBFloat16) return "bfloat16";
  check(dtype == c10::kHalf, "a config.json has no name for ", c10::toString(dtype));
  return "float16";
}

}  // namespace snug::io
