#include "snug/io/stored_tensors.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "snug/base/error.h"

namespace snug::io {

namespace {

constexpr char kAt = '@';

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t length : shape) elements *= length;
  return elements;
}

// Of "NAME@BEGIN"; none: a whole tensor's name.
std::optional<std::pair<std::string, std::int64_t>> piece_of(const std::string& name) {
  const std::size_t at = name.rfind(kAt);
  if (at == name.npos) return std::nullopt;
  std::int64_t begin = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + at + 1, end, begin);
  if (error != std::errc() || stop != end || begin < 0) return std::nullopt;
  return std::pair(name.substr(0, at), begin);
}

}  // namespace

std::int64_t StoredTensor::elements() const {
  return product(shape);
}

std::string StoredTensor::where() const {
  return concat(pieces_.front().file->path().string(), ": '", name, "'");
}

at::Tensor StoredTensor::whole() const {
  if (pieces_.size() == 1) return pieces_[0].file->tensor(*pieces_[0].entry).view(shape);
  const at::Tensor whole = at::empty(shape, dtype);
  copy_to(whole, 0);
  return whole;
}

void StoredTensor::copy_to(at::Tensor to, std::int64_t begin) const {
  const at::Tensor flat = to.view(-1);
  const std::int64_t end = begin + flat.numel();
  for (const Piece& piece : pieces_) {
    const std::int64_t first = std::max(begin, piece.begin);
    const std::int64_t last = std::min(end, piece.begin + product(piece.entry->shape));
    if (first >= last) continue;
    flat.narrow(0, first - begin, last - first)
        .copy_(piece.file->tensor(*piece.entry).view(-1).narrow(0, first - piece.begin, last - first));
  }
}

void StoredTensor::release() const {
  for (const Piece& piece : pieces_) piece.file->release(*piece.entry);
}

StoredTensors::StoredTensors(const std::vector<std::filesystem::path>& files) : StoredTensors(files, {}) {}

StoredTensors::StoredTensors(const std::vector<std::filesystem::path>& files, const Shapes& shapes) {
  for (const auto& path : files) files_.push_back(std::make_unique<SafetensorsFile>(path));
  for (const auto& file : files_)
    for (const TensorEntry& entry : file->entries()) {
      auto piece = shapes.empty() ? std::nullopt : piece_of(entry.name);
      const bool is_whole = !piece;
      if (is_whole) piece.emplace(entry.name, 0);
      const std::string where = concat(file->path().string(), ": '", entry.name, "'");
      const auto [place, is_new] = places_.emplace(piece->first, all_.size());
      if (is_new) {
        StoredTensor& tensor = all_.emplace_back();
        tensor.name = piece->first;
        tensor.dtype = entry.dtype;
        const auto shape = shapes.find(piece->first);
        check(is_whole || shape != shapes.end(), where, " is a piece of a tensor that nobody has named");
        tensor.shape = is_whole ? entry.shape : shape->second;
      }
      StoredTensor& tensor = all_[place->second];
      check(is_new || !is_whole, where, " is there twice");
      check(entry.dtype == tensor.dtype, where, " is ", safetensors_name(entry.dtype), ", other pieces are ",
            safetensors_name(tensor.dtype));
      tensor.pieces_.push_back({file.get(), &entry, piece->second});
    }
  for (StoredTensor& tensor : all_) {
    std::ranges::sort(tensor.pieces_, {}, &StoredTensor::Piece::begin);
    std::int64_t end = 0;
    for (const StoredTensor::Piece& piece : tensor.pieces_) {
      check(piece.begin == end, tensor.where(), piece.begin > end ? " lacks" : " has twice",
            " the elements from ", std::min(piece.begin, end), " on");
      end += product(piece.entry->shape);
    }
    check(end == tensor.elements(), tensor.where(), " ends at element ", end, " of ", tensor.elements());
  }
  for (const auto& [name, shape] : shapes)
    check(places_.contains(name), files_.front()->path().parent_path().string(), ": '", name,
          "' is in no file");
}

const StoredTensor* StoredTensors::find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &all_[found->second];
}

std::string StoredTensors::piece_name(const std::string& name, std::int64_t begin) {
  return concat(name, kAt, begin);
}

}  // namespace snug::io
