// Who of several ranks has which elements of a model's parameters. Arithmetic, without torch.
//
//   const auto buckets = buckets_of({{.elements = 4096 * 4096}, {.elements = 4096}}, {.ranks = 4});
//   const Piece mine = buckets[0].pieces[rank];
//
// Note [Buckets]
// A bucket is what one collective carries: one large parameter, or the small ones of a kind laid end to end.
// Every rank has a piece of every bucket, so all have the same work, whatever the sizes; a parameter that an
// optimizer wants whole (a matrix that it factors) is one rank's instead. Pieces need not be of equal size,
// and nothing is padded but the distance between small parameters: what ranks have adds up to the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "snug/base/export.h"

namespace snug::zero {

// Every piece, and every parameter in a bucket, begins at a multiple of this: 16 bytes at the least.
inline constexpr std::int64_t kAlignment = 8;

struct Piece {
  std::int64_t begin = 0, count = 0;
  bool operator==(const Piece&) const = default;
};

using Pieces = std::vector<Piece>;  // by rank: one after the other, all of it, some perhaps empty

SNUG_API Pieces divide(std::int64_t elements, int ranks);

struct Parameter {
  std::int64_t elements = 0;
  int kind = 0;           // parameters of different kinds (types, frozen or not) share no bucket
  bool is_whole = false;  // one rank has it
};

struct Bucket {
  struct Member {
    std::size_t parameter;
    std::int64_t begin, elements;
  };
  int kind = 0;
  std::vector<Member> members;
  std::int64_t elements = 0;  // with the distances
  Pieces pieces;
};

struct PartitionOptions {
  int ranks = 1;
  std::int64_t small = 16 * 1024;  // elements: parameters below share a bucket
  // Of elements that each rank has whole so far, in and out, so that several calls balance; may be null.
  std::vector<std::int64_t>* whole_elements = nullptr;
};

// In the order of their first members. Throws Error for a number of ranks below 1 and for parameters of fewer
// than one element.
SNUG_API std::vector<Bucket> buckets_of(const std::vector<Parameter>& parameters,
                                        const PartitionOptions& options);

}  // namespace snug::zero
