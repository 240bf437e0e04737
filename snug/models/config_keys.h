// Reading Hugging Face's keys, family by family. Internal to models.
#pragma once

#include <string>

#include "snug/models/config.h"

namespace snug::models {

// A safetensors file may have 100 MB of header: room for the states of a few times as many.
constexpr std::int64_t kMostLayers = 10'000;

// The value of a key that may have one value only.
template <class T>
void expect(const JsonReader& json, const std::string& where, const char* key, const T& only) {
  const T got = json.optional<T>(key, only);
  check(got == only, where, ": ", key, " must be ", Json(only).dump(), ", got ", Json(got).dump(),
        "; nothing else is supported");
}

// A key that may be left out, but means nothing as null.
template <class T>
T if_given(const JsonReader& json, const char* key, T fallback) {
  return json.contains(key) ? json.required<T>(key) : fallback;
}

inline void check_positive(std::int64_t value, const char* key, const std::string& where) {
  check(value >= 1, where, ": ", key, " must be at least 1, got ", value);
}

ModelConfig read_llama_keys(const JsonReader& json, const std::string& where, Family family);
void write_llama_keys(Json& json, const ModelConfig& config);

ModelConfig read_gpt2_keys(const JsonReader& json, const std::string& where);
void write_gpt2_keys(Json& json, const ModelConfig& config);

}  // namespace snug::models
