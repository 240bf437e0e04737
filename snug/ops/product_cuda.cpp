// Products of 16-bit factors by cuBLASLt: see Note [One algorithm per product].
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "snug/base/error.h"
#include "snug/ops/product.h"
#include "snug/ops/product_by_aten.h"
#include "snug/ops/product_choices.h"

namespace snug::ops {
namespace {

void check_cublas(cublasStatus_t status, const char* what) {
  check(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: ", what, ": ", cublasLtGetStatusString(status));
}

template <class T, cublasStatus_t (*kDestroy)(T)>
struct Destroy {
  using pointer = T;
  void operator()(T handle) const { kDestroy(handle); }
};
template <class T, cublasStatus_t (*kDestroy)(T)>
using Owned = std::unique_ptr<void, Destroy<T, kDestroy>>;

// A matrix as cuBLAS sees it: columns first.
struct Matrix {
  std::int64_t rows = 0, columns = 0, leading = 0;
  bool transposed = false;

  auto operator<=>(const Matrix&) const = default;
};

// `tensor`, transposed: rows first is columns first of the transposed. False if it has gaps in both.
bool as_transposed(const at::Tensor& tensor, Matrix& matrix) {
  const std::int64_t rows = tensor.size(0), columns = tensor.size(1);
  if (tensor.stride(1) == 1 || columns == 1)
    matrix = {columns, rows, rows == 1 ? columns : tensor.stride(0), false};
  else if (tensor.stride(0) == 1 || rows == 1)
    matrix = {rows, columns, columns == 1 ? rows : tensor.stride(1), true};
  else
    return false;
  return matrix.leading >= matrix.rows;
}

int alignment_of(const void* address) {
  int alignment = kProductAlignment;
  while (reinterpret_cast<std::uintptr_t>(address) % alignment != 0) alignment /= 2;
  return alignment;
}

// out' = right' @ left', where ' is transposed: what is in rows to us is in columns to cuBLAS.
struct Shape {
  int device = 0;
  at::ScalarType factors{}, result{};
  Matrix left, right, out;
  bool has_bias = false;
  std::array<int, 4> alignments{};

  auto operator<=>(const Shape&) const = default;

  double flops() const {
    return 2.0 * static_cast<double>(out.rows) * static_cast<double>(out.columns) *
           static_cast<double>(right.transposed ? right.rows : right.columns);
  }
};

std::string text_of(const Shape& shape, std::size_t workspace_bytes) {
  const auto matrix = [](const Matrix& one) {
    return concat(one.rows, "x", one.columns, "/", one.leading, one.transposed ? "t" : "");
  };
  const cudaDeviceProp* const gpu = at::cuda::getDeviceProperties(shape.device);
  return concat(gpu->name, ", cublasLt ", cublasLtGetVersion(), ", ", workspace_bytes,
                " bytes: ", shape.factors, " ", matrix(shape.right), " ", matrix(shape.left), " ",
                shape.result, " ", matrix(shape.out), shape.has_bias ? " bias" : "", " aligned ",
                shape.alignments[0], " ", shape.alignments[1], " ", shape.alignments[2], " ",
                shape.alignments[3]);
}

cudaDataType_t type_of(at::ScalarType dtype) {
  return dtype == at::kFloat ? CUDA_R_32F : dtype == at::kHalf ? CUDA_R_16F : CUDA_R_16BF;
}

using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

Layout make_layout(const Matrix& matrix, at::ScalarType dtype) {
  cublasLtMatrixLayout_t layout = nullptr;
  check_cublas(cublasLtMatrixLayoutCreate(&layout, type_of(dtype), static_cast<std::uint64_t>(matrix.rows),
                                          static_cast<std::uint64_t>(matrix.columns), matrix.leading),
               "a matrix");
  return Layout(layout);
}

// cuBLAS's own of this thread and stream, which it takes when it is first asked: not one more.
struct Workspace {
  void* begin = nullptr;
  std::size_t bytes = 0;
};

Workspace workspace_here() {
  void* const handle = at::cuda::getCurrentCUDABlasHandle();
  void* const stream = c10::cuda::getCurrentCUDAStream().stream();
  auto& all = at::cuda::cublas_handle_stream_to_workspace();
  const std::shared_lock lock(all.mutex);
  const auto found = all.map.find(std::tuple(handle, stream));
  if (found == all.map.end()) return {};
  return {found->second.get(), at::cuda::getChosenWorkspaceSize()};
}

// Made once for a shape; what differs from call to call is where things are.
class Product {
 public:
  explicit Product(const Shape& shape)
      : shape_(shape),
        right_(make_layout(shape.right, shape.factors)),
        left_(make_layout(shape.left, shape.factors)),
        out_(make_layout(shape.out, shape.result)) {
    cublasLtMatmulDesc_t operation = nullptr;
    check_cublas(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a product");
    operation_.reset(operation);
    set(CUBLASLT_MATMUL_DESC_TRANSA, shape.right.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, shape.left.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (shape.has_bias) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  }

  struct Places {
    const void* right = nullptr;
    const void* left = nullptr;
    const void* bias = nullptr;
    void* out = nullptr;
    Workspace workspace;
  };

  // False if cuBLASLt has nothing for this product.
  bool run(const Places& places, bool adds) {
    if (shape_.has_bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, places.bias);
    if (!is_chosen_) choose(places, adds);
    return algorithm_ && compute(*algorithm_, places, adds);
  }

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    check_cublas(cublasLtMatmulDescSetAttribute(operation_.get(), attribute, &value, sizeof value),
                 "a product");
  }

  bool compute(const cublasLtMatmulAlgo_t& algorithm, const Places& places, bool adds) const {
    const float one = 1, kept = adds ? 1 : 0;
    return cublasLtMatmul(at::cuda::getCurrentCUDABlasLtHandle(), operation_.get(), &one, places.right,
                          right_.get(), places.left, left_.get(), &kept, places.out, out_.get(), places.out,
                          out_.get(), &algorithm, places.workspace.begin, places.workspace.bytes,
                          c10::cuda::getCurrentCUDAStream()) == CUBLAS_STATUS_SUCCESS;
  }

  std::vector<cublasLtMatmulAlgo_t> candidates(std::size_t workspace_bytes) const {
    constexpr int kMost = 8;
    cublasLtMatmulPreference_t preference = nullptr;
    check_cublas(cublasLtMatmulPreferenceCreate(&preference), "a preference");
    const Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> owned(preference);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check_cublas(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
                   "a preference");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_bytes));
    // Partial sums stay in fp32.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(shape_.alignments[0]));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(shape_.alignments[1]));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(shape_.alignments[2]));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(shape_.alignments[2]));
    std::array<cublasLtMatmulHeuristicResult_t, kMost> found{};
    int count = 0;
    const auto status = cublasLtMatmulAlgoGetHeuristic(
        at::cuda::getCurrentCUDABlasLtHandle(), operation_.get(), right_.get(), left_.get(), out_.get(),
        out_.get(), preference, kMost, found.data(), &count);
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    if (status == CUBLAS_STATUS_SUCCESS)
      for (int i = 0; i < count; ++i)
        if (found[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(found[i].algo);
    return algorithms;
  }

  void choose(const Places& places, bool adds) {
    is_chosen_ = true;
    const std::vector<cublasLtMatmulAlgo_t> all = candidates(places.workspace.bytes);
    if (all.empty()) return;
    // What takes no time needs no race, nor a note of what is the first anyway.
    constexpr double kLeastFlops = 4e9;
    if (shape_.flops() < kLeastFlops) {
      algorithm_ = all[0];
      return;
    }
    const std::string text = text_of(shape_, places.workspace.bytes);
    const ProductChoice choice = choice_for(text, at::globalContext().deterministicAlgorithms());
    const auto count = static_cast<std::int64_t>(all.size());
    const bool is_known = choice.number && *choice.number >= 0 && *choice.number < count;
    if (choice.is_wanted && !is_known) note_not_as_chosen();
    // What adds would add at every try.
    const bool races = !is_known && choice.races && !adds &&
                       c10::cuda::currentStreamCaptureStatusMayInitCtx() == c10::cuda::CaptureStatus::None;
    const std::int64_t number = is_known ? *choice.number : races ? fastest(all, places) : 0;
    algorithm_ = all[static_cast<std::size_t>(number)];
    note_choice(text, number, races);
  }

  // Each in turn, several times, since a GPU's clock wanders; the first one unless another is 1 % faster.
  std::int64_t fastest(const std::vector<cublasLtMatmulAlgo_t>& all, const Places& places) const {
    constexpr int kTurns = 5;
    constexpr float kNever = 1e30F, kClearly = 0.99F;
    constexpr double kSecondsOfATry = 2e-4, kFlopsPerSecond = 6e14;
    const int times = std::max(1, static_cast<int>(kSecondsOfATry * kFlopsPerSecond / shape_.flops()));
    at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
    std::vector<float> least(all.size(), kNever);
    for (int turn = 0; turn < kTurns; ++turn)
      for (std::size_t i = 0; i < all.size(); ++i) {
        begin.record();
        bool works = true;
        for (int k = 0; works && k < times; ++k) works = compute(all[i], places, /*adds=*/false);
        end.record();
        end.synchronize();
        const float milliseconds = begin.elapsed_time(end);
        if (works && turn > 0) least[i] = std::min(least[i], milliseconds);  // the first turn loads kernels
      }
    const auto best = std::ranges::min_element(least) - least.begin();
    return least[static_cast<std::size_t>(best)] < kClearly * least[0] ? best : 0;
  }

  const Shape shape_;
  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation_;
  const Layout right_, left_, out_;
  std::optional<cublasLtMatmulAlgo_t> algorithm_;
  bool is_chosen_ = false;
};

// False if this is nothing for cuBLASLt.
bool compute(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right, const at::Tensor& bias,
             bool adds) {
  const auto dtype = left.scalar_type();
  Shape shape{.device = left.device().index(),
              .factors = dtype,
              .result = out.scalar_type(),
              .has_bias = bias.defined()};
  const bool takes_bias = !shape.has_bias || (shape.result == dtype && bias.scalar_type() == dtype &&
                                              bias.dim() == 1 && bias.size(0) == out.size(1) &&
                                              bias.is_contiguous() && bias.device() == left.device());
  const bool suits =
      at::isReducedFloatingType(dtype) && right.scalar_type() == dtype &&
      (shape.result == dtype || shape.result == at::kFloat) && takes_bias &&
      right.device() == left.device() && out.device() == left.device() && left.size(1) == right.size(0) &&
      out.size(0) == left.size(0) && out.size(1) == right.size(1) && out.numel() > 0 && left.numel() > 0 &&
      as_transposed(left, shape.left) && as_transposed(right, shape.right) && as_transposed(out, shape.out);
  if (!suits) return false;
  if (shape.out.transposed)  // then so is the product
    return !shape.has_bias && compute(out.t(), right.t(), left.t(), {}, adds);
  const c10::cuda::CUDAGuard guard(left.device());
  const Product::Places places{.right = right.const_data_ptr(),
                               .left = left.const_data_ptr(),
                               .bias = bias.defined() ? bias.const_data_ptr() : nullptr,
                               .out = out.mutable_data_ptr(),
                               .workspace = workspace_here()};
  shape.alignments = {alignment_of(places.right), alignment_of(places.left), alignment_of(places.out),
                      shape.has_bias ? alignment_of(places.bias) : 0};
  static std::mutex mutex;
  static std::map<Shape, std::unique_ptr<Product>>& products = *new std::map<Shape, std::unique_ptr<Product>>;
  const std::lock_guard lock(mutex);           // a product's description holds where its bias is
  constexpr std::size_t kMostProducts = 5000;  // batches may be of any length
  if (products.size() >= kMostProducts) products.clear();
  auto& product = products[shape];
  if (!product) product = std::make_unique<Product>(shape);
  return product->run(places, adds);
}

at::Tensor product_cuda(const at::Tensor& left, const at::Tensor& right,
                        const std::optional<at::Tensor>& bias, at::ScalarType dtype) {
  if (!at::isReducedFloatingType(left.scalar_type())) return product_by_aten(left, right, bias, dtype);
  at::Tensor out = at::empty({left.size(0), right.size(1)}, left.options().dtype(dtype));
  if (!compute(out, left, right, bias.value_or(at::Tensor()), /*adds=*/false)) {
    if (bias)
      at::addmm_out(out, *bias, left, right);
    else
      product_by_aten_(out, left, right, /*adds=*/false);
  }
  return out;
}

void product_cuda_(at::Tensor& out, const at::Tensor& left, const at::Tensor& right, bool adds) {
  if (!compute(out, left, right, {}, adds)) product_by_aten_(out, left, right, adds);
}

TORCH_LIBRARY_IMPL(snug, CUDA, library) {
  library.impl("product", TORCH_FN(product_cuda));
  library.impl("product_", TORCH_FN(product_cuda_));
}

}  // namespace
}  // namespace snug::ops
