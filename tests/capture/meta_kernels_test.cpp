// Every kernel that snug adds to Meta, against the CPU kernel it stands for: geometry of the results, and the
// allocations.
#include <gtest/gtest.h>
#include <torch/types.h>

#include "snug/capture/meta_kernels.h"
#include "tests/support/allocation_log.h"

namespace snug::capture {
namespace {

// Makes inputs on a device, and returns what computes results from them.
struct Case {
  const char* name;
  std::function<std::function<std::vector<at::Tensor>()>(at::Device)> make;
  bool same_allocations = true;
};

at::Tensor ones(at::IntArrayRef sizes, at::Device device) {
  return at::ones(sizes, device);
}
at::Tensor indices(at::IntArrayRef sizes, at::Device device) {
  return at::ones(sizes, at::dtype(at::kLong).device(device));
}

template <class... Tensors>
std::vector<at::Tensor> list(const std::tuple<Tensors...>& results) {
  return std::apply([](const auto&... tensor) { return std::vector<at::Tensor>{tensor...}; }, results);
}

Case layer_norm(const char* name, bool transposed, std::array<bool, 3> wanted) {
  return {name, [=](at::Device device) {
            auto x = transposed ? ones({7, 4, 16}, device).transpose(0, 1) : ones({4, 7, 16}, device);
            auto weight = ones({16}, device), bias = ones({16}, device);
            return [=] {
              auto [out, mean, rstd] = at::native_layer_norm(x, {16}, weight, bias, 1e-5);
              auto results =
                  list(at::native_layer_norm_backward(x, x, {16}, mean, rstd, weight, bias, wanted));
              results.insert(results.end(), {out, mean, rstd});
              return results;
            };
          }};
}

Case batch_norm(const char* name, std::vector<std::int64_t> sizes, at::MemoryFormat format, bool training,
                std::array<bool, 3> wanted = {true, true, true}) {
  return {name, [=](at::Device device) {
            auto x = ones(sizes, device).contiguous(format), weight = ones({8}, device),
                 bias = ones({8}, device);
            auto mean = ones({8}, device), variance = ones({8}, device);
            return [=] {
              auto [out, save_mean, save_rstd] =
                  at::native_batch_norm(x, weight, bias, mean, variance, training, 0.1, 1e-5);
              auto results = list(at::native_batch_norm_backward(x, x, weight, mean, variance, save_mean,
                                                                 save_rstd, training, 1e-5, wanted));
              results.insert(results.end(), {out, save_mean, save_rstd});
              return results;
            };
          }};
}

Case convolution(const char* name, bool transposed, std::int64_t groups, at::MemoryFormat format) {
  return {
      name,
      [=](at::Device device) {
        auto x = ones({2, 8, 9, 9}, device).contiguous(format), weight = ones({8, 8 / groups, 3, 3}, device);
        auto bias = ones({8}, device);
        return [=] {
          std::vector<std::int64_t> stride{2, 2}, padding{1, 1}, dilation{1, 1}, extra{0, 0}, bias_sizes{8};
          auto out = at::convolution(x, weight, bias, stride, padding, dilation, transposed, extra, groups);
          auto results = list(at::convolution_backward(out, x, weight, bias_sizes, stride, padding, dilation,
                                                       transposed, extra, groups, {true, true, true}));
          results.push_back(out);
          return results;
        };
      },
      /*same_allocations=*/false};
}

const Case kCases[] = {
    {"index_select",
     [](at::Device device) {
       auto x = ones({5, 6, 7}, device), index = indices({8}, device).slice(0, 0, 8, 2);
       return [=] {
         return std::vector{at::index_select(x, 1, index), at::index_select(x.transpose(0, 2), -1, index)};
       };
     }},
    {"embedding",
     [](at::Device device) {
       auto weight = ones({50, 16}, device), tokens = indices({7, 4}, device).t();
       auto grad = ones({7, 4, 16}, device).transpose(0, 1);
       return [=] {
         return std::vector{at::embedding(weight, tokens),
                            at::embedding_dense_backward(grad, tokens, 50, -1, false)};
       };
     }},
    layer_norm("layer_norm", false, {true, true, true}),
    layer_norm("layer_norm, transposed", true, {true, true, true}),
    layer_norm("layer_norm, input gradient alone", false, {true, false, false}),
    layer_norm("layer_norm, bias gradient alone", false, {false, false, true}),
    batch_norm("batch_norm", {2, 8, 4, 4}, at::MemoryFormat::Contiguous, true),
    batch_norm("batch_norm, no input gradient", {2, 8, 4, 4}, at::MemoryFormat::Contiguous, true,
               {false, true, true}),
    batch_norm("batch_norm, evaluation", {2, 8, 4, 4}, at::MemoryFormat::Contiguous, false),
    batch_norm("batch_norm, channels last", {2, 8, 4, 4}, at::MemoryFormat::ChannelsLast, true),
    batch_norm("batch_norm, channels last, evaluation", {2, 8, 4, 4}, at::MemoryFormat::ChannelsLast, false),
    batch_norm("batch_norm, two dimensions", {32, 8}, at::MemoryFormat::Contiguous, true),
    convolution("convolution", false, 1, at::MemoryFormat::Contiguous),
    convolution("convolution, groups", false, 4, at::MemoryFormat::Contiguous),
    convolution("convolution, transposed", true, 1, at::MemoryFormat::Contiguous),
    convolution("convolution, channels last", false, 1, at::MemoryFormat::ChannelsLast),
    {"where",
     [](at::Device device) {
       auto x = ones({4, 1, 6}, device), y = ones({6, 5}, device).t(),
            condition = at::ones({4, 5, 1}, at::dtype(at::kBool).device(device));
       return [=] {
         return std::vector{at::where(condition, x, y),
                            at::where(x.transpose(0, 2) > 0, x.transpose(0, 2), 2.0)};
       };
     }},
    {"relu",
     [](at::Device device) {
       auto x = ones({4, 6}, device).t();
       return [=] {
         return std::vector{at::relu(x), at::empty_like(x).relu_(), at::threshold_backward(x, x, 0)};
       };
     }},
    {"flip",
     [](at::Device device) {
       auto x = ones({4, 6}, device).t();
       return [=] { return std::vector{at::flip(x, {0, 1})}; };
     }},
    {"mse_loss_backward",
     [](at::Device device) {
       auto x = ones({4, 6}, device).t(), loss = ones({}, device);
       return [=] { return std::vector{at::mse_loss_backward(loss, x, x, at::Reduction::Mean)}; };
     }},
    {"var and std",
     [](at::Device device) {
       auto x = ones({4, 6, 5}, device);
       return [=] {
         auto results = list(at::var_mean(x, at::IntArrayRef{1}, at::Scalar(1), true));
         results.push_back(at::var(x, at::IntArrayRef{-1}, at::Scalar(0), false));
         results.push_back(at::std(x, at::IntArrayRef{0, 2}, at::Scalar(1), false));
         return results;
       };
     }},
    {"native_dropout",
     [](at::Device device) {
       auto x = ones({4, 6}, device);
       return [=] {
         auto results = list(at::native_dropout(x, 0.5, true));
         results.push_back(at::native_dropout_backward(x, results[1], 2.0));
         return results;
       };
     }},
};

TEST(MetaKernels, ResultsHaveTheGeometryOfTheCpu) {
  register_meta_kernels();
  for (const auto& each : kCases) {
    SCOPED_TRACE(each.name);
    auto cpu = each.make(at::kCPU)(), meta = each.make(at::kMeta)();
    ASSERT_EQ(cpu.size(), meta.size());
    for (std::size_t i = 0; i < cpu.size(); ++i) {
      SCOPED_TRACE(i);
      ASSERT_EQ(cpu[i].defined(), meta[i].defined());
      if (!cpu[i].defined()) continue;
      EXPECT_TRUE(meta[i].is_meta());
      EXPECT_EQ(cpu[i].sizes(), meta[i].sizes());
      EXPECT_EQ(cpu[i].strides(), meta[i].strides());
      EXPECT_EQ(cpu[i].scalar_type(), meta[i].scalar_type());
    }
  }
}

TEST(MetaKernels, AllocationsAreThoseOfTheCpu) {
  register_meta_kernels();
  for (const auto& each : kCases) {
    if (!each.same_allocations) continue;
    SCOPED_TRACE(each.name);
    snug::testing::expect_same_allocations([&](at::Device device) -> std::function<void()> {
      auto compute = each.make(device);
      return [=] { compute(); };
    });
  }
}

TEST(MetaKernels, FusedOptimizersTakeNothing) {
  register_meta_kernels();
  std::vector<at::Tensor> p{ones({4, 6}, at::kMeta)}, g{ones({4, 6}, at::kMeta)}, m{ones({4, 6}, at::kMeta)},
      v{ones({4, 6}, at::kMeta)}, steps{ones({}, at::kMeta)};
  auto rate = ones({}, at::kMeta);
  auto lines = snug::testing::allocations_during(at::kMeta, [&] {
    at::_fused_adamw_(p, g, m, v, {}, steps, 1e-3, 0.9, 0.99, 0.1, 1e-8, false, false);
    at::_fused_adamw_(p, g, m, v, {}, steps, rate, 0.9, 0.99, 0.1, 1e-8, false, false);
    at::_fused_sgd_(p, g, m, 0.0, 0.9, 1e-3, 0.0, false, false, false);
  });
  EXPECT_TRUE(lines.empty());
}

TEST(MetaKernels, ReadingAValueStaysAnErrorThatNamesItself) {
  register_meta_kernels();
  try {
    ones({}, at::kMeta).item();
    FAIL() << "item() of a Meta tensor must throw";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("_local_scalar_dense"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace snug::capture
