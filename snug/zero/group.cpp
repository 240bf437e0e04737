#include "snug/zero/group.h"

namespace snug::zero {

namespace {

class Imagined final : public Group {
 public:
  Imagined(int rank, int size) : Group(rank, size) {}
  CollectivePtr all_gather(const at::Tensor& whole, const Pieces&, const std::string& what,
                           const host::CopyPtr&) override {
    return nothing(whole, what);
  }
  CollectivePtr reduce_scatter(const at::Tensor& whole, const Pieces&, const std::string& what) override {
    return nothing(whole, what);
  }
  std::vector<std::string> exchange(const std::string& mine, const std::string&) override {
    return std::vector<std::string>(static_cast<std::size_t>(size()), mine);
  }
  void abort(const std::exception_ptr& why) override { why_ = why; }
  std::string carrier() const override { return ""; }

 private:
  CollectivePtr nothing(const at::Tensor& whole, const std::string& what) const {
    if (why_) std::rethrow_exception(why_);
    ensure(size() == 1 || whole.is_meta(), "ranks that are only imagined were asked for ", what);
    return nullptr;
  }

  std::exception_ptr why_;
};

}  // namespace

bool Group::report(const std::string& cause) {
  abort(std::make_exception_ptr(RankFailure(concat("rank ", rank_, " failed: ", cause))));
  return true;
}

void Group::check_given(const at::Tensor& whole, const Pieces& pieces, const std::string& what) const {
  ensure(whole.is_contiguous(), what, " is not contiguous");
  ensure(pieces.size() == static_cast<std::size_t>(size_) && !pieces.empty() &&
             pieces.back().begin + pieces.back().count == whole.numel(),
         what, " is not divided over ", size_, " ranks");
}

std::shared_ptr<Group> imagined_group(int rank, int size) {
  check(size >= 1 && rank >= 0 && rank < size, "no rank ", rank, " among ", size);
  return std::make_shared<Imagined>(rank, size);
}

}  // namespace snug::zero
