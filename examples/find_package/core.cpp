// The torch-free part alone: no LibTorch is included or linked.
#include <iostream>

#include "snug/base/bytes.h"

int main() {
  std::cout << snug::format_bytes(snug::parse_bytes("12GiB")) << "\n";
  using namespace snug::literals;
  return snug::parse_bytes("12GiB") == 12_GiB ? 0 : 1;
}
