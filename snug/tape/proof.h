// Note [Proof]
// What is recomputed has no write in it that no operator made: through a pointer, by a kernel of someone's
// own, on another thread. Versions and the ends of Python's autograd Functions tell of many. No rule sees
// all, so the first call of a region with a new structure (operators and what they read, not sizes) is
// proven, whatever the fates. A checksum of each value is taken when it is made, whenever it is read or
// saved, and last: when an operator is about to overwrite it, or the forward of the region ends. All of them
// are read with one wait, and until then nothing of the region is released. Then,
//
//   if a value was changed after it was made       it is kept
//   if it was not at its end as it was when read   so is what the operator made that read it
//   if others still hold it when the forward ends  it is kept this once, and compared when the backward
//                                                  begins; what is to leave the device is compared when it
//                                                  leaves, and does so if nobody else holds it by then
//   if an operator runs again in the backward      what it reads is compared with what it was at its end
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
  std::uint64_t name(std::uint32_t output) const;  // of a value that is made now, whatever comes after
  bool is_suspect(const Value& value) const { return known_->suspects.contains(value.origin.name); }

  // The structure, as it goes on. True: this call leaves what is known.
  [[nodiscard]] bool goes_on(std::uint64_t what);

  void made(const ValuePtr& value, const c10::Storage& storage);
  std::size_t read(const ValuePtr& value, const c10::Storage& storage);  // which of its reads
  void made_of(const ValuePtr& value, std::size_t read, std::span<const ValuePtr> results);
  void last(const ValuePtr& value);  // it is about to be overwritten, or forgotten
  void judge();                      // compares all that was taken so far, and keeps what it must
  void end(bool is_whole);           // of the forward; false: it threw
  // Before the first one, compares what others held. Throws if what is to be recomputed needs what changed.
  void before_unpack(bool is_in_backward);
  bool may_leave(const Value& value);  // the device, as far as others are concerned
  bool asks_before_it_leaves(const Value& value) { return lent(value) != entries_.end(); }

  // A node of someone's own may write its gradients over what it is given, as kernels do to spare memory. Who
  // saved the same tensor sees that, as in plain autograd; a replay must not. Once seen, it is kept.
  bool may_be_written(const Value& value) const;
  void gave(const Value& value, const c10::Storage& storage);
  void look_at_given();  // by nodes that are done

  // An operator runs again. Throws if what it reads is no longer what it was when the proven forward ended.
  void check_operand(const Operation& operation, const Value& value) const;

 private:
  struct Result {
    std::weak_ptr<Value> value;
    std::uint64_t name;
    std::size_t read;  // of the value that it was made of
  };
  struct Entry {
    std::weak_ptr<Value> value;
    ProofsValue held_value;  // while it proves: other fates may need what these do not
    c10::Storage held;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    Checksums::Ticket made, last;
    std::vector<Checksums::Ticket> reads;
    bool has_made = false, has_last = false;
    bool is_overwritten = false, is_suspect = false;
    std::vector<Result> results;  // of operators that read it
  };

  Entry& entry(const ValuePtr& value, const c10::Storage& storage);
  void take_last(Entry& entry);
  void look_at(Entry& entry);
  void keep(const ValuePtr& value);
  void keep_what_was_made_of(const Entry& entry);
  void keep(const Result& result);
  std::vector<Result> made_of_something_else(const Entry& entry) const;  // than it was at its end
  std::string needs_it_as_it_was(const Value& value, const c10::FunctionSchema* reader) const;
  bool lend(Entry& entry);
  std::vector<Entry>::iterator lent(const Value& value);  // once the forward has ended
  void conclude();

  Tape& tape_;
  const std::shared_ptr<Site> site_;
  std::shared_ptr<const Site::Known> known_;
  bool proves_;
  const bool verify_;
  const bool from_the_start_;
  bool has_ended_ = false, is_whole_ = false;
  bool is_new_ = false;  // what it runs
  std::uint64_t structure_ = 0;
  Site::Prefixes prefixes_;
  Checksums sums_;
  std::vector<Entry> entries_;  // from the end of the forward on, those that others hold
  struct Given {
    const torch::autograd::Node* node;
    std::uint64_t name;
    c10::Storage storage;
    std::uint64_t before;
  };
  std::vector<Given> given_;
};

}  // namespace snug::tape
