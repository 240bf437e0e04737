// What a session begins with, of what it was given. Internal to session.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "snug/host/store.h"
#include "snug/session/session.h"

namespace snug::session {

// With what is not said filled in, and the device made ready. Throws Error for what does not go together.
SessionOptions completed(SessionOptions options, at::TensorList parameters);

// For what is offloaded; null if nothing will be. Made before the first step, so that none has to wait for
// it.
std::shared_ptr<host::Store> make_store(const SessionOptions& options);

// With which the plan was made; 0: it does not say.
int threads_of(const std::optional<plan::Plan>& plan);

}  // namespace snug::session
