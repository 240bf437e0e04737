// The preset of the device that is here.
#pragma once

#include <c10/core/Device.h>

#include "snug/base/export.h"
#include "snug/plan/hardware.h"

namespace snug::session {

SNUG_API plan::Hardware hardware_of(c10::Device device);

}  // namespace snug::session
