#include "snug/zero/meeting.h"

#include <arpa/inet.h>
#include <c10/util/Logging.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "snug/base/error.h"
#include "snug/zero/failure.h"
#include "snug/zero/group.h"

namespace snug::zero {

namespace {

constexpr const char* kPrefix = "snug/";

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Addresses resolve(const std::string& address, int port, int kind) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = kind;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &wanted, &found);
  check(error == 0, "no machine is called \"", address, "\": ", gai_strerror(error));
  return {found, freeaddrinfo};
}

std::string text_of(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST];
  const int error = getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  check(error == 0, "an address that has no text: ", gai_strerror(error));
  return text;
}

int port_of(int descriptor) {
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&bound), &length);
  const auto port = bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                                : reinterpret_cast<const sockaddr_in&>(bound).sin_port;
  return ntohs(port);
}

// Torch writes a stack for every connection that breaks or is not there yet; what we throw says the same in a
// line. Who wants it sets TORCH_CPP_LOG_LEVEL.
void quieten_torch() {
  constexpr int kFatal = 3;
  if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = std::max(FLAGS_caffe2_log_level, kFatal);
}

// Torch's text without its stack.
std::string first_line(const std::exception& error) {
  const auto* const torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch ? torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

Listener::Listener(const std::string& address, int port) : descriptor_(-1) {
  const Addresses found = resolve(address, port, SOCK_STREAM);
  descriptor_ = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  check(descriptor_ >= 0, "no socket: ", std::strerror(errno));
  const int yes = 1;
  setsockopt(descriptor_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(descriptor_, found->ai_addr, found->ai_addrlen) == 0 && listen(descriptor_, SOMAXCONN) == 0) {
    port_ = port_of(descriptor_);
    return;
  }
  const int error = errno;
  close(descriptor_);
  check(error != EADDRINUSE, "port ", port, " of ", address,
        " is in use: give another one (MASTER_PORT), or end what listens there");
  check(error != EADDRNOTAVAIL, address,
        " is no address of this machine, where rank 0 runs: MASTER_ADDR must be rank 0's");
  fail("cannot listen at ", address, ":", port, ": ", std::strerror(error));
}

Listener::~Listener() {
  if (descriptor_ >= 0) close(descriptor_);
}

int Listener::take() {
  return std::exchange(descriptor_, -1);
}

StorePtr hold_store(Listener& listener, const std::string& address, std::chrono::milliseconds timeout) {
  quieten_torch();
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(listener.port());
  options.isServer = true;
  options.waitWorkers = false;
  options.timeout = timeout;
  options.masterListenFd = listener.take();
  return c10::make_intrusive<c10d::TCPStore>(address, options);
}

void end_ranks(c10d::Store& held, const std::string& why, int speaker) {
  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      std::string(kPrefix) + "/", c10::intrusive_ptr<c10d::Store>::reclaim_copy(&held));
  note_failure(*store, -1, why, speaker);
}

StorePtr meet(const Place& place, std::chrono::milliseconds timeout) {
  quieten_torch();
  const auto named = [&](StorePtr store) {
    return c10::make_intrusive<c10d::PrefixStore>(kPrefix + place.meeting, std::move(store));
  };
  if (place.rank == 0 && !place.is_met_elsewhere) {
    Listener listener(place.address, place.port);
    return named(hold_store(listener, place.address, timeout));
  }
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(place.port);
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    return named(c10::make_intrusive<c10d::TCPStore>(place.address, options));
  } catch (const std::exception& error) {
    throw RankFailure(concat("rank 0 does not answer at ", place.address, ":", place.port, " (rank ",
                             place.rank, " of ", place.size, " asked): ", first_line(error)));
  }
}

// A datagram socket finds the way and sends nothing.
std::string address_towards(const std::string& address, int port) {
  const Addresses found = resolve(address, port, SOCK_DGRAM);
  const int descriptor = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  check(descriptor >= 0, "no socket: ", std::strerror(errno));
  sockaddr_storage mine{};
  socklen_t length = sizeof mine;
  const bool is_found = connect(descriptor, found->ai_addr, found->ai_addrlen) == 0 &&
                        getsockname(descriptor, reinterpret_cast<sockaddr*>(&mine), &length) == 0;
  const int error = errno;
  close(descriptor);
  check(is_found, "there is no way to ", address, ": ", std::strerror(error));
  return text_of(reinterpret_cast<const sockaddr*>(&mine), length);
}

}  // namespace snug::zero
