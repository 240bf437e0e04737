// snug VERB [options]
#include "cli/command.h"

int main(int argc, char** argv) {
  return snug::cli::run_command(argc, argv);
}
