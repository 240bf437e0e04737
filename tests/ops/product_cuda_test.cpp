// Products on a GPU: as exact as torch's however their factors lie, with one algorithm from the first time
// on.
#include "snug/ops/product.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <string>

#include "snug/ops/product_choices.h"
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
  void TearDown() override { stop_races(); }
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
  for (const Sizes& sizes : {Sizes{1, 1, 1}, Sizes{1, 64, 256}, Sizes{300, 1, 8}, Sizes{300, 64, 1},
                             Sizes{257, 40, 33}, Sizes{512, 768, 2304}})
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

// 2 * rows * 1536 * 2560 operations: enough for a race.
struct Factors {
  explicit Factors(std::int64_t rows)
      : left(random_matrix(rows, 1536, at::kBFloat16)), right(random_matrix(1536, 2560, at::kBFloat16)) {}
  at::Tensor left, right;

  void expect_exact(const at::Tensor& result) const {
    EXPECT_LE(relative_error(result.to(at::kDouble), left.to(at::kDouble).mm(right.to(at::kDouble))), 4e-3);
  }
};

std::string new_name(const ProductChoices& before) {
  for (const auto& [name, number] : chosen_products())
    if (!before.contains(name)) return name;
  return "";
}

TEST_F(ProductCuda, KeepsTheAlgorithmThatWonItsRace) {
  const Factors factors(2048);
  const ProductChoices before = chosen_products();
  const std::uint64_t races = races_so_far();
  let_products_race({});
  const at::Tensor first = product(factors.left, factors.right);
  EXPECT_EQ(races_so_far(), races + 1);
  factors.expect_exact(first);
  for (int again = 0; again < 5; ++again) EXPECT_TRUE(at::equal(product(factors.left, factors.right), first));
  at::Tensor added = at::zeros_like(first);
  add_product(added, factors.left, factors.right);
  EXPECT_TRUE(at::equal(added, first)) << "added to nothing";
  EXPECT_EQ(races_so_far(), races + 1);
  EXPECT_NE(new_name(before), "");
}

// By the names of products of 2,064 rows, which other sizes have too.
TEST_F(ProductCuda, TakesTheNumberThatItIsGivenIfThereIsSuchACandidate) {
  const ProductChoices before = chosen_products();
  product(Factors(2064).left, Factors(2064).right);
  const std::string name = new_name(before);
  ASSERT_NE(name.find("2064"), std::string::npos) << name;
  std::int64_t rows = 2064;
  for (const auto& [given, taken] :
       {std::pair{1, 1}, std::pair{2, 2}, std::pair{-1, 0}, std::pair{1000, 0}}) {
    rows += 16;
    std::string other = name;
    for (std::size_t at = other.find("2064"); at != std::string::npos; at = other.find("2064", at))
      other.replace(at, 4, std::to_string(rows));
    choose_products({{other, given}});
    const Factors factors(rows);
    factors.expect_exact(product(factors.left, factors.right));
    ASSERT_TRUE(chosen_products().contains(other)) << other;
    EXPECT_EQ(chosen_products().at(other), taken) << "of " << given;
  }
  choose_products({});
}

TEST_F(ProductCuda, DeterministicModeRacesNothing) {
  struct Deterministic {
    Deterministic() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false); }
    ~Deterministic() { at::globalContext().setDeterministicAlgorithms(false, false); }
  } mode;
  const ProductChoices before = chosen_products();
  const std::uint64_t races = races_so_far();
  let_products_race({});
  const Factors factors(4096);
  factors.expect_exact(product(factors.left, factors.right));
  EXPECT_EQ(races_so_far(), races);
  EXPECT_EQ(chosen_products().at(new_name(before)), 0);
}

TEST_F(ProductCuda, WhatItCannotTakeGoesToTorch) {
  const at::Tensor left = random_matrix(32, 64, at::kBFloat16), right = random_matrix(64, 48, at::kBFloat16);
  const at::Tensor one = random_matrix(1, 1, at::kBFloat16)[0], wide = at::ones({48}, at::kCUDA);
  EXPECT_TRUE(at::allclose(product(left, right, one), at::addmm(one, left, right)));
  EXPECT_ANY_THROW(product(left, right, wide)) << "fp32 beside bf16";
  EXPECT_ANY_THROW(product(left, right.cpu()));
  EXPECT_ANY_THROW(product(left, left));
  at::Tensor sum = at::zeros({32, 48}, left.options().dtype(at::kDouble));
  add_product(sum, left, right);
  EXPECT_LE(relative_error(sum, left.to(at::kDouble).mm(right.to(at::kDouble))), 1e-2);
}

}  // namespace
}  // namespace snug::ops
