#include "snug/tape/quiet.h"

namespace snug::tape {

namespace {
thread_local int quiet = 0;
}

Quiet::Quiet() {
  ++quiet;
}
Quiet::~Quiet() {
  --quiet;
}
bool Quiet::on() noexcept {
  return quiet > 0;
}

}  // namespace snug::tape
