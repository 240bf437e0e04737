// The dozen headers that a user calls, in the order in which a step passes through them. Everything else has
// a header of its own.
#pragma once

#include "snug/base/bytes.h"             // 12_GiB, format_bytes()
#include "snug/tape/region.h"            // names a part of the forward
#include "snug/tape/checkpoint.h"        // recomputes one
#include "snug/tape/save_on_host.h"      // keeps its values on the host
#include "snug/memory/tracker.h"         // names every byte
#include "snug/session/plan_step.h"      // how a step fits a budget
#include "snug/session/session.h"        // runs any loop within one
#include "snug/session/verify.h"         // did that change a bit?
#include "snug/precision/grad_scaler.h"  // fp16
#include "snug/optim/adamw.h"            // exact masters in two bytes
#include "snug/report/text.h"            // tables
#include "snug/train/trainer.h"          // our own loop
