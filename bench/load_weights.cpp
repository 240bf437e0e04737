// How long loading a published model takes, against reading its files, and how much RAM it needs on the way.
//
//   load_weights MODEL_FOLDER [cuda|cpu]
//
// Files are in the page cache for both. RAM is the highest resident set while loading, less what was resident
// before; on the CPU the model itself is part of that.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <torch/cuda.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/models/weights.h"
#include "snug/machine/prepare.h"
#include "snug/train/step.h"

namespace {

namespace fs = std::filesystem;
using namespace snug;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::uint64_t status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key + ":")) return std::stoull(line.substr(key.size() + 1)) * 1024;
  return 0;
}

// By read(), into one buffer. Returns the bytes.
std::uint64_t read_files(const fs::path& folder) {
  std::vector<char> buffer(16_MiB);
  std::uint64_t total = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("model") || entry.path().extension() != ".safetensors") continue;
    const int file = ::open(entry.path().c_str(), O_RDONLY);
    for (ssize_t got; (got = ::read(file, buffer.data(), buffer.size())) > 0;)
      total += static_cast<std::uint64_t>(got);
    ::close(file);
  }
  return total;
}

}  // namespace

int main(int count, char** arguments) {
  const fs::path folder = count > 1 ? arguments[1] : ".";
  const c10::Device device(count > 2 ? arguments[2] : "cuda");
  machine::prepare(device);
  const auto synchronize = [&] {
    if (device.is_cuda()) torch::cuda::synchronize();
  };
  read_files(folder);
  auto start = std::chrono::steady_clock::now();
  const std::uint64_t bytes = read_files(folder);
  const double reading = seconds_since(start);

  const auto model =
      models::make_model(models::load_config(folder.string()),
                         {.tensors = at::TensorOptions(device).dtype(at::kBFloat16), .fresh = false});
  for (at::Tensor& parameter : model->parameters()) parameter.detach().fill_(0);  // pages and code are there
  at::ones({1}).to(device);
  synchronize();
  std::uint64_t largest = 0;
  for (const at::Tensor& parameter : model->parameters())
    largest = std::max<std::uint64_t>(largest, parameter.nbytes());

  std::ofstream("/proc/self/clear_refs") << "5";  // the highest resident set is counted from here
  const std::uint64_t before = status_bytes("VmRSS");
  start = std::chrono::steady_clock::now();
  models::load_weights(*model, folder);
  synchronize();
  const double loading = seconds_since(start);
  std::printf("%s: read in %.3f s, loaded in %.3f s (%.2fx), RAM +%s, largest tensor %s\n",
              format_bytes(bytes).c_str(), reading, loading, loading / reading,
              format_bytes(status_bytes("VmHWM") - before).c_str(), format_bytes(largest).c_str());
}
