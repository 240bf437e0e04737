#include "snug/machine/products.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <system_error>

#include "snug/base/error.h"
#include "snug/base/output_file.h"
#include "snug/machine/hardware_of.h"
#include "snug/ops/product_choices.h"

namespace snug::machine {
namespace {

namespace fs = std::filesystem;

std::atomic<std::uint64_t> kept_races = 0;

ops::ProductChoices choices_of(const Json& json, const std::string& where) {
  ops::ProductChoices choices;
  for (const auto& [product, number] : json.items()) {
    check(number.is_number_integer(), where, ": expected the number of an algorithm, got ", number.dump());
    choices[product] = number.get<std::int64_t>();
  }
  return choices;
}

ops::ProductChoices kept_products() {
  const fs::path file = products_file();
  std::error_code error;
  if (file.empty() || !fs::exists(file, error)) return {};
  try {
    return choices_of(read_json(file), file.string());
  } catch (const Error& damaged) {
    TORCH_WARN(damaged.what(), "; products are raced again, and the file is written anew");
    return {};
  }
}

}  // namespace

fs::path products_file() {
  const fs::path probed = probe_file(c10::kCUDA);
  return probed.empty() ? probed : probed.parent_path() / "products.json";
}

void race_products(bool may) {
  may ? ops::let_products_race(kept_products()) : ops::stop_races();
}

void keep_products() {
  const std::uint64_t races = ops::races_so_far();
  if (kept_races.exchange(races) == races) return;  // as after nearly every step
  const fs::path file = products_file();
  if (file.empty()) return;
  ops::ProductChoices all = kept_products();  // another process may have raced meanwhile
  for (const auto& [product, number] : ops::race_winners()) all.try_emplace(product, number);
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  try {
    replace_file(file, Json(all).dump(1) + "\n");
  } catch (const Error&) {  // the next run races again
  }
}

bool write_down_products(std::map<std::string, std::int64_t>& products) {
  if (products.size() == ops::products_so_far()) return false;
  products = ops::chosen_products();
  return true;
}

void take_products(const std::map<std::string, std::int64_t>& products) {
  ops::choose_products(products);
}

std::string products_that_differ() {
  const std::int64_t count = ops::products_not_as_chosen();
  if (count == 0) return "";
  return concat(
      count, count == 1 ? " matrix product has" : " matrix products have",
      " another algorithm here than the plan or the saved state says, which are of another GPU, another "
      "cuBLAS or other sizes: last bits may differ");
}

Json products_to_json() {
  const ops::ProductChoices chosen = ops::chosen_products();
  return chosen.empty() ? Json() : Json(chosen);
}

void products_from_json(const Json& json, const std::string& where) {
  ops::choose_products(choices_of(json, where));
}

}  // namespace snug::machine
