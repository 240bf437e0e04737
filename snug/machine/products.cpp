#include "snug/machine/products.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>
#include <string>
#include <system_error>

#include "snug/base/error.h"
#include "snug/base/output_file.h"
#include "snug/machine/hardware_of.h"
#include "snug/ops/product_choices.h"

namespace snug::machine {
namespace {

namespace fs = std::filesystem;

std::atomic<std::size_t> kept = 0;  // how many of this process's choices the file has

}  // namespace

fs::path products_file() {
  const fs::path probed = probe_file(c10::kCUDA);
  return probed.empty() ? probed : probed.parent_path() / "products.json";
}

Json products_to_json() {
  Json json = nullptr;
  for (const auto& [product, algorithm] : ops::chosen_products()) json[product] = algorithm;
  return json;
}

void products_from_json(const Json& json, const std::string& where) {
  ops::ProductChoices choices;
  for (const auto& [product, algorithm] : json.items()) {
    check(algorithm.is_string(), where, ": expected the algorithm of a product in hex, got ",
          algorithm.dump());
    choices[product] = algorithm.get<std::string>();
  }
  ops::choose_products(choices);
}

void use_kept_products() {
  static std::once_flag once;
  std::call_once(once, [] {
    const fs::path file = products_file();
    std::error_code error;
    if (!file.empty() && fs::exists(file, error)) try {
        products_from_json(read_json(file), file.string());
        kept = ops::chosen_products().size();
      } catch (const Error& damaged) {
        TORCH_WARN(damaged.what(), "; products are raced again, and the file is written anew");
      }
    ops::let_products_race(true);
  });
}

void keep_products() {
  const fs::path file = products_file();
  const Json json = products_to_json();
  if (file.empty() || json.size() == kept) return;
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  try {
    replace_file(file, json.dump(1) + "\n");
    kept = json.size();
  } catch (const Error&) {
    kept = json.size();  // not tried again
  }
}

}  // namespace snug::machine
