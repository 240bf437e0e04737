// Tokens that are hard on the backward of embedding, and what it must be.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "snug/ops/embedding.h"

namespace snug::testing {

struct EmbeddingCase {
  std::string name;
  std::int64_t rows;
  at::Tensor tokens;
};

// Lengths are next to and across the chunks that the CUDA kernel cuts tokens into.
inline std::vector<EmbeddingCase> embedding_cases() {
  at::manual_seed(3);
  std::vector<EmbeddingCase> cases;
  for (const std::int64_t count : {1, 31, 32, 33, 64, 65, 3000}) {
    const std::string name = " of " + std::to_string(count);
    cases.push_back({"one token" + name, 9, at::full({count}, 4, at::kLong)});
    cases.push_back({"one row" + name, 1, at::zeros({count}, at::kLong)});
    cases.push_back({"all distinct" + name, count, at::randperm(count, at::kLong)});
    cases.push_back({"descending" + name, count + 5, at::arange(count, at::kLong).flip(0)});
    cases.push_back({"few" + name, 7, at::randint(7, {count}, at::kInt)});
    cases.push_back({"many" + name, 2 * count, at::randint(2 * count, {count}, at::kLong)});
    cases.push_back({"runs" + name, count / 32 + 2, at::arange(16, 16 + count, at::kLong).floor_divide(32)});
  }
  return cases;
}

// Gradients are small integers, so that no rounding but the last can show.
inline void expect_exact_gradients(at::Device device, at::ScalarType dtype, std::int64_t hidden) {
  for (const EmbeddingCase& one : embedding_cases()) {
    const std::int64_t count = one.tokens.numel();
    const at::Tensor grad = at::randint(-2, 3, {count, hidden}, at::kDouble);
    const at::Tensor exact =
        at::zeros({one.rows, hidden}, at::kDouble).index_add_(0, one.tokens.to(at::kLong), grad);
    const at::Tensor ours =
        ops::embedding_backward(grad.to(dtype).to(device), one.tokens.to(device), one.rows);
    EXPECT_EQ(ours.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(ours.cpu(), exact.to(dtype))) << one.name << " " << dtype << ", hidden " << hidden;
  }
}

}  // namespace snug::testing
