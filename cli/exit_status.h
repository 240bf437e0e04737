// What a process says and returns when something goes wrong: never a stack trace.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

namespace snug::cli {

// The contract of every verb. 1 is for answers that are no: does not fit, gradients differ.
enum ExitStatus : int { kDone = 0, kNo = 1, kBadInput = 2, kRunFailed = 3 };

// Thrown where the answer is no; the text says why.
class AnswerIsNo : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Thrown when a signal has ended a run early, after what there was to save was saved. The status is the
// shell's for a process that the signal killed: 130 for Ctrl-C.
struct Stopped {
  int signal;
  std::string why = "";  // if that is not yet said
};

// Thrown where all is known: the status, and what to say if nobody has said it.
struct Ended {
  int status;
  std::string text = "";
};

// Runs, and what came of it.
Ended outcome_of(const std::function<void()>& run);

// What the library says, in words of the command line: --batch-size for `batch_size`.
std::string with_flags(const std::string& text);

// Runs and turns what it throws into a message on standard error and a status.
int exit_status(const std::function<void()>& run);

}  // namespace snug::cli
