// A tape written down as plain data while it is recorded and used: trace::RegionTape. A sketch lays it beside
// the memory of the step, and hears of each part at once. Internal to tape; under the tape's lock.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <string>

#include "snug/tape/figures.h"
#include "snug/tape/value.h"
#include "snug/trace/region_tape.h"

namespace snug::tape {

class Description {
 public:
  // `is_sketch`: as if all were kept, and the listener of the figures hears of it.
  Description(const std::string& region, std::shared_ptr<Figures> figures, bool is_sketch);
  ~Description();                            // leaves it with the figures
  Description(const Description&) = delete;  // it is left once
  Description& operator=(const Description&) = delete;

  void add(Value& value, const at::Tensor& tensor, bool is_parameter);
  void add(trace::TapeOperation operation);  // its results and what it wrote have been added
  void set_fate(const Value& value);
  void set_kept(const Value& value);  // nobody can recompute it
  void set_held(const Value& value);  // unless it is a parameter, which never leaves
  bool is_sketch() const { return is_sketch_; }
  void end_forward();

  std::size_t add_save(const Value& value);  // its place among the saves
  void move_save(std::size_t save, const Value& value);
  void release_save(std::size_t save);

  // The stretch in which an unpack makes what it gives.
  class Unpacking {
   public:
    Unpacking(Description* description, std::size_t save);
    ~Unpacking();
    Unpacking(const Unpacking&) = delete;  // it is a stretch of time
    Unpacking& operator=(const Unpacking&) = delete;

   private:
    SketchListener* const listener_;
  };
  void add_unpack(const Value& value);  // by the node that runs

 private:
  Fate fate_of(const Value& value) const;
  SketchListener* listener() const;

  const std::shared_ptr<Figures> figures_;
  const bool is_sketch_;
  std::uint64_t number_ = 0;  // among the described
  trace::RegionTape tape_;
  const torch::autograd::Node* last_node_ = nullptr;  // that unpacked
};

}  // namespace snug::tape
