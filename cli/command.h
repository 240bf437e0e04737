// The whole command as a function: for main(), and for tests that run it often in few processes.
#pragma once

namespace snug::cli {

int run_command(int argc, char** argv);  // returns the exit status

}  // namespace snug::cli
