// One function per verb: adds its options and, when the verb was given, runs it.
#pragma once

namespace CLI {
class App;
}  // namespace CLI

namespace snug::cli {

void add_estimate(CLI::App& snug);
void add_plan(CLI::App& snug);
void add_train(CLI::App& snug);
void add_eval(CLI::App& snug);
void add_convert(CLI::App& snug);
void add_tune(CLI::App& snug);
void add_verify(CLI::App& snug);
void add_profile(CLI::App& snug);
void add_report(CLI::App& snug);
void add_probe(CLI::App& snug);

}  // namespace snug::cli
