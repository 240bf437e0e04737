#include "snug/io/safetensors_writer.h"

#include <algorithm>
#include <set>
#include <span>
#include <tuple>

#include "snug/base/error.h"
#include "snug/base/json.h"
#include "snug/base/output_file.h"
#include "snug/io/checksum.h"
#include "snug/io/safetensors_header.h"

namespace snug::io {
namespace {

// With the length before it, and padded so that what follows is aligned.
std::string header_of(const std::vector<TensorSource>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  std::set<std::string> names = {"__metadata__"};
  const auto add = [&](const std::string& name, const Json& value) {
    text += concat(text.size() > 1 ? "," : "", Json(name).dump(), ":", value.dump());
  };
  if (!metadata.empty()) add("__metadata__", metadata);
  std::uint64_t end = 0;
  for (const TensorSource& tensor : tensors) {
    check(names.insert(tensor.name).second, "safetensors: the tensor name '", tensor.name, "' is taken");
    const std::uint64_t begin = end;
    end += tensor.bytes();
    add(tensor.name,
        {{"dtype", safetensors_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}});
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  check(text.size() <= kLongestHeader, "safetensors: ", tensors.size(), " tensors need a header of ",
        text.size(), " bytes; at most ", kLongestHeader, " can be read again");
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

// Runs no operator on a tensor whose bytes are there as they are: a thread that only writes calls none.
at::Tensor plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() ? tensor : tensor.detach().cpu().contiguous();
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace

std::uint64_t TensorSource::bytes() const {
  std::uint64_t size = c10::elementSize(dtype);
  for (const std::int64_t length : shape) size *= static_cast<std::uint64_t>(length);
  return size;
}

TensorSource source_of(const std::string& name, const at::Tensor& tensor) {
  return {name, tensor.scalar_type(), tensor.sizes().vec(), [tensor] { return tensor; }};
}

std::string write_safetensors(const std::filesystem::path& path, std::vector<TensorSource> tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::ranges::sort(tensors, {}, [](const TensorSource& tensor) {
    return std::tuple(-static_cast<std::int64_t>(c10::elementSize(tensor.dtype)), tensor.name);
  });
  OutputFile file(path);
  Checksum sum;
  const auto write = [&](std::span<const std::byte> bytes) {
    file.write(bytes);
    sum.add(bytes);
  };
  const std::string header = header_of(tensors, metadata);
  write(std::as_bytes(std::span(header)));
  for (const TensorSource& source : tensors) {
    const at::Tensor tensor = plain(source.make());
    ensure(tensor.scalar_type() == source.dtype && tensor.sizes() == at::IntArrayRef(source.shape), "tensor ",
           source.name, " is not what was announced");
    write(bytes_of(tensor));
    if (source.on_written) source.on_written();
  }
  file.sync();
  file.close();
  return sum.value();
}

}  // namespace snug::io
