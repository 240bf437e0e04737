// A copy that is done when the test says so, and a link that makes such copies.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "snug/host/link.h"

namespace snug::host {

class HandCopy final : public Copy {
 public:
  explicit HandCopy(std::uint64_t number) : number_(number) {}
  void wait() override { finish(); }
  void finish() override {
    asked_ = true;
    done_.wait(false);
  }
  std::uint64_t number() const override { return number_; }
  void set_done() {
    done_ = true;
    done_.notify_all();
  }
  bool asked() const { return asked_; }

 private:
  const std::uint64_t number_;
  std::atomic<bool> done_ = false, asked_ = false;
};

// Copies nothing; notes what each copy was told to wait for.
class HandLink final : public Link {
 public:
  HandLink() : Link(c10::kCPU) {}
  struct Asked {
    std::shared_ptr<HandCopy> copy;
    CopyPtr before;
  };
  std::vector<Asked> to_host, to_device;

  CopyPtr send(Slot& slot) { return Link::to_host(slot.data(), slot, 1); }
  CopyPtr fetch(Slot& slot) { return Link::to_device(slot.data(), slot, 1); }
  void finish_all() {
    for (auto* asked : {&to_host, &to_device})
      for (const Asked& at : *asked) at.copy->set_done();
  }

 protected:
  CopyPtr copy_to_host(const void*, void*, std::uint64_t, const CopyPtr& before, const CopyPtr&) override {
    return note(to_host, before);
  }
  CopyPtr copy_to_device(void*, const void*, std::uint64_t, const CopyPtr& before, const CopyPtr&) override {
    return note(to_device, before);
  }

 private:
  static CopyPtr note(std::vector<Asked>& into, const CopyPtr& before) {
    into.push_back({std::make_shared<HandCopy>(into.size() + 1), before});
    return into.back().copy;
  }
};

}  // namespace snug::host
