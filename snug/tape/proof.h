// Note [Proof]
// What is re-made has no write in it that no operator made: through a pointer, by a kernel of someone's own,
// on another thread. Versions and the ends of Python's autograd Functions tell of many. No rule sees all, so
// the first call of a region with a new structure (operators and what they read, not sizes) is proven,
// whatever the fates. A checksum of each value is taken when it is made, when it is first read or saved, and
// last: when an operator is about to overwrite it, or the forward of the region ends. All of them are read
// with one wait, and until then nothing of the region is released. Then,
//
//   if a value was changed before its first read   it is kept: whoever read it read what is there now
//   if it was changed after that                   so is all that operators made of it
//   if others still hold it when the forward ends  it is kept this once, and compared when the backward
//   begins
//
// What was found is known for the place in the program (a Site) from then on. A call that leaves the
// structures that are known is proven from there on, and so are the next calls; what is alive at that point
// counts as having come in.
//
// With `verify` the same checksums are taken in every call, and differences are counted or thrown; nothing is
// held for that.
//
// Internal to tape; under the tape's lock.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "snug/tape/checksum.h"
#include "snug/tape/proven.h"
#include "snug/tape/value.h"

namespace snug::tape {

class Tape;

class Proof {
 public:
  static constexpr const char* kChanged = "changed by a write that no operator made";

  Proof(Tape& tape, std::shared_ptr<Site> site, bool prove, bool verify);

  bool is_on() const { return proves_ || verify_; }
  bool holds(const Value& value) const {
    return !has_ended_ && value.proof && entries_[*value.proof].held_value;
  }
  std::uint64_t name(std::uint32_t output) const;  // of a value that is made now, whatever comes after
  bool is_suspect(const Value& value) const { return known_->suspects.contains(value.name); }

  // The structure, as it goes on. True: this call leaves what is known.
  [[nodiscard]] bool goes_on(std::uint64_t what);

  void made(const ValuePtr& value, const c10::Storage& storage);
  void read(const ValuePtr& value, const c10::Storage& storage);
  void made_of(const ValuePtr& read, std::span<const ValuePtr> results);
  void last(const ValuePtr& value);  // it is about to be overwritten, or forgotten
  void judge();                      // compares all that was taken so far, and keeps what it must
  void end();                        // of the forward
  // Before the first one, compares what others held. Throws if what is to be re-made needs what changed.
  void before_unpack(bool is_in_backward);

  // A node of someone's own may write its gradients over what it is given, as kernels do to spare memory. Who
  // saved the same tensor sees that in plain autograd too; a replay must not. Is it to get a copy?
  bool is_to_get_a_copy(const Value& value) const;
  void gave(const Value& value, const c10::Storage& copy);
  void look_at_given();  // by nodes that are done

 private:
  struct Result {
    std::weak_ptr<Value> value;
    std::uint64_t name;
  };
  struct Entry {
    std::weak_ptr<Value> value;
    ValuePtr held_value;  // while it proves: other fates may need what these do not
    c10::Storage held;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    Checksums::Ticket made, read, last;
    bool has_made = false, has_read = false, has_last = false;
    bool is_overwritten = false, is_suspect = false;
    std::vector<Result> results;  // of operators that read it
  };

  Entry& entry(const ValuePtr& value, const c10::Storage& storage);
  void take_last(Entry& entry);
  void look_at(Entry& entry);
  void keep(const ValuePtr& value);
  void keep_what_was_made_of(const Entry& entry);
  bool is_made_again_of(const Entry& entry) const;
  bool lend(Entry& entry);
  void conclude();

  Tape& tape_;
  const std::shared_ptr<Site> site_;
  std::shared_ptr<const Site::Known> known_;
  bool proves_;
  const bool verify_;
  const bool from_the_start_;
  bool has_ended_ = false;
  bool is_new_ = false;  // what it runs
  std::uint64_t structure_ = 0;
  Site::Prefixes prefixes_;
  Checksums sums_;
  std::vector<Entry> entries_;  // from the end of the forward on, those that others hold
  struct Given {
    const torch::autograd::Node* node;
    std::uint64_t name;
    c10::Storage copy;
    std::uint64_t before;
  };
  std::vector<Given> given_;
};

}  // namespace snug::tape
