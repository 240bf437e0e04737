// Moves what is elsewhere between two uses: see Note [One region ahead] in trace/moves.h.
//
//   Schedule schedule;                                    // of one pass: a forward and its backward
//   const std::size_t region = schedule.begin_forward();
//   const std::string why_not = schedule.send(region, item);
//   schedule.end_forward(region);                         // what the region before sent leaves
//   ...
//   schedule.begin_backward(region);                      // what this region and the one before sent is
//   fetched
//
// An item is anything whose contents can be in two places; the schedule knows nothing else of it. Items are
// told in the order in which they were sent, in the backward the other way round. Nobody asks whether a copy
// is done by now, so the same program always has the same memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "snug/base/export.h"

namespace snug::host {

class SNUG_API Item {
 public:
  virtual ~Item() = default;
  virtual std::uint64_t bytes() const = 0;
  virtual std::string send() = 0;  // why it stays; empty if it is on its way
  virtual void leave() = 0;        // its memory goes, after the copy
  // Memory is taken and the copy back asked for, unless that happened, or nobody needs it any more. Who uses
  // it waits for the copy.
  virtual void fetch() = 0;
};

// Thread-safe. Calls items without its lock, so they may have locks of their own.
class SNUG_API Schedule {
 public:
  std::size_t begin_forward();  // the region's number, in the order of the forward
  std::string send(std::size_t region, std::shared_ptr<Item> item);  // as Item::send()
  void end_forward(std::size_t region);
  void begin_backward(std::size_t region);  // once more for each backward through a graph that is kept

  void forget(std::size_t region);  // no backward will come to it

  std::uint64_t sent_bytes() const;  // by all regions so far

 private:
  using Items = std::vector<std::shared_ptr<Item>>;
  Items items_of(std::size_t region) const;

  mutable std::mutex mutex_;
  std::vector<Items> regions_;  // what each sent
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace snug::host
