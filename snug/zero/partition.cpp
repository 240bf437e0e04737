#include "snug/zero/partition.h"

#include <algorithm>
#include <map>

#include "snug/base/error.h"

namespace snug::zero {

namespace {

std::int64_t rounded_up(std::int64_t elements) {
  return (elements + kAlignment - 1) / kAlignment * kAlignment;
}

Pieces whole_for(int owner, std::int64_t elements, int ranks) {
  Pieces pieces(static_cast<std::size_t>(ranks), Piece{elements, 0});
  for (int rank = 0; rank <= owner; ++rank) pieces[static_cast<std::size_t>(rank)].begin = 0;
  pieces[static_cast<std::size_t>(owner)].count = elements;
  return pieces;
}

}  // namespace

Pieces divide(std::int64_t elements, int ranks) {
  check(ranks >= 1, "parameters are divided over at least 1 rank, got ", ranks);
  const std::int64_t most = rounded_up((elements + ranks - 1) / ranks);
  Pieces pieces;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::int64_t begin = std::min(elements, rank * most);
    pieces.push_back({begin, std::min(most, elements - begin)});
  }
  return pieces;
}

std::vector<Bucket> buckets_of(const std::vector<Parameter>& parameters, const PartitionOptions& options) {
  check(options.ranks >= 1, "parameters are divided over at least 1 rank, got ", options.ranks);
  std::vector<std::int64_t> fresh(static_cast<std::size_t>(options.ranks));
  std::vector<std::int64_t>& owned = options.whole_elements ? *options.whole_elements : fresh;
  owned.resize(static_cast<std::size_t>(options.ranks));
  std::vector<Bucket> buckets;
  std::map<int, std::size_t> small;  // the bucket of a kind
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    check(parameter.elements >= 1, "parameter ", i, " has ", parameter.elements, " elements");
    const bool is_alone = parameter.is_whole || parameter.elements >= options.small;
    std::size_t bucket = buckets.size();
    if (!is_alone) bucket = small.try_emplace(parameter.kind, bucket).first->second;
    if (bucket == buckets.size()) buckets.push_back({.kind = parameter.kind});
    Bucket& home = buckets[bucket];
    const std::int64_t begin = rounded_up(home.elements);
    home.members.push_back({i, begin, parameter.elements});
    home.elements = begin + parameter.elements;
    if (!parameter.is_whole) continue;
    const auto least = std::ranges::min_element(owned);
    home.pieces = whole_for(static_cast<int>(least - owned.begin()), parameter.elements, options.ranks);
    *least += parameter.elements;
  }
  for (Bucket& bucket : buckets)
    if (bucket.pieces.empty()) bucket.pieces = divide(bucket.elements, options.ranks);
  return buckets;
}

}  // namespace snug::zero
