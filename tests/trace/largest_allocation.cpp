// Replaces the global operator new and delete of the test program.
#include "tests/trace/largest_allocation.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace snug::testing {
namespace {

std::atomic<std::size_t> largest = 0;

}  // namespace

std::size_t take_largest_allocation() {
  return largest.exchange(0);
}

static void* allocate(std::size_t size) {
  if (size > largest) largest = size;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}

}  // namespace snug::testing

void* operator new(std::size_t size) {
  return snug::testing::allocate(size);
}
void* operator new[](std::size_t size) {
  return snug::testing::allocate(size);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
