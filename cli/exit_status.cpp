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

Ended with_what_was_alive(std::string_view report) {
  while (report.ends_with('\n')) report.remove_suffix(1);
  return {kRunFailed, fmt::format("{}\n\n{}", report, kWhatHelps)};
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

Ended outcome_of(const std::function<void()>& run) {
  try {
    run();
    return {kDone};
  } catch (const Ended& ended) {
    return ended;
  } catch (const Stopped& stopped) {
    constexpr int kBySignal = 128;
    return {kBySignal + stopped.signal, stopped.why};
  } catch (const AnswerIsNo& answer) {
    return {kNo, answer.what()};
  } catch (const RunError& error) {
    return {kRunFailed, one_line(error.what())};
  } catch (const Error& error) {
    return {kBadInput, one_line(error.what())};
  } catch (const memory::OutOfBudget& error) {
    return with_what_was_alive(error.what());
  } catch (const c10::OutOfMemoryError& error) {
    return with_what_was_alive(error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return {kRunFailed, first_line(error.what_without_backtrace())};
  } catch (const std::filesystem::filesystem_error& error) {
    return {kBadInput, fmt::format("{}: {}", error.path1().string(), error.code().message())};
  } catch (const std::bad_alloc&) {
    return {kRunFailed, "out of host memory"};
  } catch (const std::exception& error) {
    return {kRunFailed, one_line(error.what())};
  }
}

// Not by fmt::print, which throws where standard error cannot be written.
int exit_status(const std::function<void()>& run) {
  const Ended ended = outcome_of(run);
  if (!ended.text.empty()) std::fputs(with_flags(fmt::format("snug: {}\n", ended.text)).c_str(), stderr);
  return ended.status;
}

}  // namespace snug::cli
