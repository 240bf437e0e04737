// Products on a GPU: as exact as torch's however their factors lie, with one algorithm from the first time
// on.
#include "snug/ops/product.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <string>

#include "snug/ops/product_choices.h"
#include "snug/ops/project.h"
#include "tests/ops/fused_cases.h"

namespace snug::ops {
namespace {

using namespace snug::testing;

class ProductCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: products were not tested";
    at::manual_seed(3);
  }
  void TearDown() override { let_products_race(false); }
};

at::Tensor random_matrix(std::int64_t rows, std::int64_t columns, at::ScalarType dtype) {
  return at::randn({rows, columns}, at::kCUDA).to(dtype);
}

// The same numbers, lying otherwise.
const std::vector<std::pair<const char*, std::function<at::Tensor(const at::Tensor&)>>> kLayouts{
    {"dense", [](const at::Tensor& matrix) { return matrix; }},
    {"columns first", [](const at::Tensor& matrix) { return matrix.t().contiguous().t(); }},
    {"among other columns",
     [](const at::Tensor& matrix) {
       at::Tensor room = at::zeros({matrix.size(0), matrix.size(1) + 8}, matrix.options());
       return room.narrow(1, 8, matrix.size(1)).copy_(matrix);
     }},
    {"off by one",
     [](const at::Tensor& matrix) {
       at::Tensor room = at::zeros({matrix.numel() + 1}, matrix.options());
       return room.narrow(0, 1, matrix.numel()).view(matrix.sizes()).copy_(matrix);
     }},
    {"every other", [](const at::Tensor& matrix) {
       at::Tensor room = at::zeros({2 * matrix.size(0), 2 * matrix.size(1)}, matrix.options());
       return room.slice(0, 0, c10::nullopt, 2).slice(1, 0, c10::nullopt, 2).copy_(matrix);
     }}};

TEST_F(ProductCuda, IsAsExactAsTorchHoweverItsFactorsLie) {
  struct Sizes {
    std::int64_t rows, inner, columns;
  };
  for (const Sizes& sizes :
       {Sizes{1, 1, 1}, Sizes{1, 64, 256}, Sizes{300, 1, 8}, Sizes{257, 40, 33}, Sizes{512, 768, 2304}})
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      const at::Tensor left = random_matrix(sizes.rows, sizes.inner, dtype),
                       right = random_matrix(sizes.inner, sizes.columns, dtype),
                       bias = random_matrix(1, sizes.columns, dtype)[0];
      const at::Tensor exact = left.to(at::kDouble).mm(right.to(at::kDouble));
      const double torchs = relative_error(left.mm(right).to(at::kDouble), exact);
      for (const auto& [how_left, left_as] : kLayouts)
        for (const auto& [how_right, right_as] : kLayouts) {
          const std::string which = concat(sizes.rows, " x ", sizes.inner, " x ", sizes.columns, ", ", dtype,
                                           ", ", how_left, " and ", how_right);
          const at::Tensor a = left_as(left), b = right_as(right);
          EXPECT_LE(relative_error(product(a, b).to(at::kDouble), exact), 2 * torchs + 1e-6) << which;
          EXPECT_LE(relative_error(product(a, b, bias).to(at::kDouble), exact + bias.to(at::kDouble)),
                    2 * torchs + 1e-3)
              << which << ", with a bias";
          EXPECT_LE(relative_error(product_as(at::kFloat, a, b).to(at::kDouble), exact), 1e-5)
              << which << " as fp32";
          for (const auto result : {dtype, at::kFloat})
            for (const auto& [how, as] : kLayouts) {
              at::Tensor out = as(at::ones({sizes.rows, sizes.columns}, left.options().dtype(result)));
              add_product(out, a, b);
              EXPECT_LE(relative_error(out.to(at::kDouble), exact + 1), 2 * torchs + 1e-3)
                  << which << " added, " << how;
              product_into(out, a, b);
              EXPECT_LE(relative_error(out.to(at::kDouble), exact), 2 * torchs + 1e-6)
                  << which << " into, " << how;
            }
        }
    }
}

TEST_F(ProductCuda, KeepsTheAlgorithmThatWonItsRace) {
  const at::Tensor left = random_matrix(2048, 1536, at::kBFloat16),
                   right = random_matrix(1536, 2560, at::kBFloat16);
  const std::size_t before = chosen_products().size();
  let_products_race(true);
  const at::Tensor first = product(left, right);
  const ProductChoices chosen = chosen_products();
  EXPECT_EQ(chosen.size(), before + 1);
  for (int again = 0; again < 5; ++again) EXPECT_TRUE(at::equal(product(left, right), first));
  at::Tensor added = at::zeros_like(first);
  add_product(added, left, right);
  EXPECT_TRUE(at::equal(added, first)) << "added to nothing";
  EXPECT_EQ(chosen_products(), chosen);
}

TEST_F(ProductCuda, TakesTheAlgorithmThatItIsGivenAndNoDamagedOne) {
  // What one size chose is text; a size that is new takes it from there.
  const auto run = [](std::int64_t rows) {
    return product(random_matrix(rows, 512, at::kBFloat16), random_matrix(512, 512, at::kBFloat16));
  };
  run(640);
  const ProductChoices known = chosen_products();
  const auto one = std::ranges::find_if(known, [](const auto& choice) {
    return choice.first.find("512x640/512 BFloat16") != std::string::npos;
  });
  ASSERT_NE(one, known.end());
  std::string product = one->first;
  for (std::size_t at = product.find("640"); at != std::string::npos; at = product.find("640", at))
    product.replace(at, 3, "704");
  choose_products({{product, one->second}});
  run(704);
  EXPECT_EQ(chosen_products().at(product), one->second);

  std::string other = one->first;
  for (std::size_t at = other.find("640"); at != std::string::npos; at = other.find("640", at))
    other.replace(at, 3, "768");
  for (const std::string& damaged :
       {std::string("zz"), std::string(one->second.size(), 'f'), std::string()}) {
    choose_products({{other, damaged}});
    const at::Tensor left = random_matrix(768, 512, at::kBFloat16),
                     right = random_matrix(512, 512, at::kBFloat16);
    EXPECT_LE(relative_error(ops::product(left, right).to(at::kDouble),
                             left.to(at::kDouble).mm(right.to(at::kDouble))),
              1e-2);
  }
}

TEST_F(ProductCuda, DeterministicModeRacesNothing) {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  let_products_race(true);
  const at::Tensor left = random_matrix(1024, 2048, at::kBFloat16),
                   right = random_matrix(2048, 4096, at::kBFloat16);
  const at::Tensor raced = product(left, right);
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_TRUE(at::equal(raced, product(left, right))) << "what it took first is kept";
}

}  // namespace
}  // namespace snug::ops
