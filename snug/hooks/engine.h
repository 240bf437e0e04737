// Our place in autograd's engine slot: everything is delegated to the engine that was there before. Internal
// to hooks.
#pragma once

namespace snug::hooks {

// Idempotent. Installs again over whatever replaced us, such as Python's engine when torch is imported late.
void install_engine();

}  // namespace snug::hooks
