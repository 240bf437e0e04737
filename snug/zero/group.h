// Ranks: processes that train one model together, each with its part of the batch.
//
//   const auto group = join(*place_from_environment(), device);              // see join.h
//   const CollectivePtr sum = group->reduce_scatter(gradient, pieces, "layers.3");
//   ...                                                                      // beside it
//   sum->wait();
//
// Every rank asks for the same collectives in the same order. A rank that is lost, stopped or failed ends
// them on all others: see watched_group.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "snug/base/error.h"
#include "snug/base/export.h"
#include "snug/host/copy.h"
#include "snug/zero/partition.h"

namespace snug::zero {

// One of the ranks is gone, stopped or failed.
class SNUG_API RankFailure : public RunError {
 public:
  explicit RankFailure(const std::string& text, bool is_to_be_said = true)
      : RunError(text), is_to_be_said_(is_to_be_said) {}
  // All ranks know it, one says it.
  bool is_to_be_said() const { return is_to_be_said_; }

 private:
  bool is_to_be_said_;
};

class SNUG_API Collective : public host::Copy {
 public:
  virtual bool is_done() const = 0;  // or failed
};

using CollectivePtr = std::shared_ptr<Collective>;  // null: nothing to wait for

class SNUG_API Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;  // it is a set of connections
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Both begin after what the device's current stream was given so far, and nobody touches `whole`, which is
  // contiguous, until the copy that comes back was waited for. `what`: named when it fails.
  // Each rank's piece goes to all others. `piece_comes`: after this copy, too. Null comes back where there is
  // nothing else to wait for.
  virtual CollectivePtr all_gather(const at::Tensor& whole, const Pieces& pieces, const std::string& what,
                                   const host::CopyPtr& piece_comes = nullptr) = 0;
  // This rank's piece becomes the sum over all ranks. The rest of `whole` is as it was, or anything.
  virtual CollectivePtr reduce_scatter(const at::Tensor& whole, const Pieces& pieces,
                                       const std::string& what) = 0;
  // What `ask` asks for may travel as one: collectives that do not depend on one another, whose latency is
  // then there once.
  virtual void together(const std::function<void()>& ask) { ask(); }
  // Short texts, by rank. The host waits for all.
  virtual std::vector<std::string> exchange(const std::string& mine, const std::string& what) = 0;

  // What is under way, and all that is asked for from now on, throws this.
  virtual void abort(const std::exception_ptr& why) = 0;
  // This rank fails: the others end with it. Whether it is this rank's to say.
  virtual bool report(const std::string& cause);

  virtual std::string carrier() const = 0;                  // its name, for people; empty: nothing is carried
  virtual std::uint64_t device_bytes() const { return 0; }  // what it took of the device's memory to carry

 protected:
  Group(int rank, int size) : rank_(rank), size_(size) {}
  void check_given(const at::Tensor& whole, const Pieces& pieces, const std::string& what) const;

 private:
  const int rank_, size_;
};

// One that communicates with nobody: of one rank, or on Meta, where it stands for any rank of many.
SNUG_API std::shared_ptr<Group> imagined_group(int rank, int size);

}  // namespace snug::zero
