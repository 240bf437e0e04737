#include "cli/model_flag.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "cli/flags.h"
#include "cli/output.h"
#include "snug/base/error.h"

namespace snug::cli {

void add_ignore_keys(CLI::App& verb, std::vector<std::string>& keys) {
  add_value(
      verb, "--ignore-keys", "A,B",
      [&keys](const std::string& text) {
        std::istringstream list(text);
        for (std::string key; std::getline(list, key, ',');) {
          check(!key.empty(), "--ignore-keys must be keys with commas between them, got \"", text, "\"");
          keys.push_back(key);
        }
        check(!keys.empty() && text.back() != ',',
              "--ignore-keys must be keys with commas between them, got \"", text, "\"");
      },
      "Keys of the model's config.json that snug does not know and shall pass over; null and false ones it "
      "passes over by itself");
}

models::ModelConfig load_model_config(const std::string& model, const std::vector<std::string>& ignore_keys,
                                      bool says) {
  models::UnknownKeys unknown{.let_pass = ignore_keys};
  const models::ModelConfig config = models::load_config(model, &unknown);
  if (says && !unknown.ignored.empty())
    print(fmt::format("snug: {}: passed over keys that are not known: {}\n", model,
                      fmt::join(unknown.ignored, ", ")),
          stderr);
  return config;
}

}  // namespace snug::cli
