#include "cli/exit_status.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <new>
#include <regex>
#include <string>
#include <string_view>

#include "snug/base/error.h"
#include "snug/memory/out_of_budget.h"

namespace snug::cli {
namespace {

constexpr std::string_view kWhatHelps =
    "to fit: --budget, which plans the step for the memory there is; fewer sequences per forward "
    "(--micro-batch; "
    "the batch stays, in more parts; for eval --batch-size), a shorter --seq-len, or more memory";

std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  return text;
}

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

// Not by fmt::print, which throws where standard error cannot be written.
int say(int status, std::string_view message) {
  std::fputs(with_flags(fmt::format("snug: {}\n", message)).c_str(), stderr);
  return status;
}

int say_what_was_alive(std::string_view report) {
  while (report.ends_with('\n')) report.remove_suffix(1);
  return say(kRunFailed, fmt::format("{}\n\n{}", report, kWhatHelps));
}

}  // namespace

std::string with_flags(const std::string& text) {
  static const std::regex setting("`([a-z_0-9]+)`");
  std::string words;
  std::size_t end = 0;
  for (std::sregex_iterator found(text.begin(), text.end(), setting), none; found != none; ++found) {
    std::string name = (*found)[1];
    std::ranges::replace(name, '_', '-');
    words += text.substr(end, static_cast<std::size_t>(found->position()) - end) + "--" + name;
    end = static_cast<std::size_t>(found->position() + found->length());
  }
  return words + text.substr(end);
}

int exit_status(const std::function<void()>& run) {
  try {
    run();
    return kDone;
  } catch (const Stopped& stopped) {
    constexpr int kBySignal = 128;
    return stopped.why.empty() ? kBySignal + stopped.signal : say(kBySignal + stopped.signal, stopped.why);
  } catch (const AnswerIsNo& answer) {
    return say(kNo, answer.what());
  } catch (const RunError& error) {
    return say(kRunFailed, one_line(error.what()));
  } catch (const Error& error) {
    return say(kBadInput, one_line(error.what()));
  } catch (const memory::OutOfBudget& error) {
    return say_what_was_alive(error.what());
  } catch (const c10::OutOfMemoryError& error) {
    return say_what_was_alive(error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return say(kRunFailed, first_line(error.what_without_backtrace()));
  } catch (const std::filesystem::filesystem_error& error) {
    return say(kBadInput, fmt::format("{}: {}", error.path1().string(), error.code().message()));
  } catch (const std::bad_alloc&) {
    return say(kRunFailed, "out of host memory");
  } catch (const std::exception& error) {
    return say(kRunFailed, one_line(error.what()));
  }
}

}  // namespace snug::cli
