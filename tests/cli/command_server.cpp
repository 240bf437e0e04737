// Runs the command many times in a process that has LibTorch loaded: each line of standard input is a JSON
// object
// {"arguments", "folder", "environment", "stdout", "stderr"} for one run, in a child of its own; the answer
// is a line with its exit status, negative for a signal.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command.h"

namespace {

using Json = nlohmann::json;

void redirect(int descriptor, const std::string& path, int flags) {
  const int file = open(path.c_str(), flags, 0600);
  if (file < 0 || dup2(file, descriptor) < 0) _exit(127);
  close(file);
}

[[noreturn]] void run(const Json& request) {
  redirect(STDIN_FILENO, "/dev/null", O_RDONLY);
  redirect(STDOUT_FILENO, request["stdout"], O_WRONLY | O_CREAT | O_TRUNC);
  redirect(STDERR_FILENO, request["stderr"], O_WRONLY | O_CREAT | O_TRUNC);
  std::filesystem::current_path(request["folder"].get<std::string>());
  for (const auto& [name, value] : request["environment"].items())
    setenv(name.c_str(), value.get<std::string>().c_str(), /*overwrite=*/1);
  auto arguments = request["arguments"].get<std::vector<std::string>>();
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const int status = snug::cli::run_command(static_cast<int>(arguments.size()), argv.data());
  std::fflush(nullptr);
  _exit(status);  // LibTorch's way out takes as long as its way in
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const Json request = Json::parse(line);
    const pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) run(request);
    int status = 0;
    if (waitpid(child, &status, 0) != child) return 1;
    std::cout << (WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status)) << std::endl;
  }
  return 0;
}
