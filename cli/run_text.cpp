#include "cli/run_text.h"

#include <fmt/format.h>

#include "cli/output.h"
#include "cli/recompute_text.h"
#include "snug/base/bytes.h"
#include "snug/io/weight_files.h"
#include "snug/report/compare.h"
#include "snug/report/text.h"
#include "snug/trace/category_json.h"
#include "snug/train/progress.h"
#include "snug/zero/group.h"

namespace snug::cli {

namespace fs = std::filesystem;
using train::TrainConfig;
using train::TrainResult;

namespace {

bool within_budget(const TrainConfig& config, const TrainResult& result) {
  return !config.budget_bytes || result.measured.budget_use <= *config.budget_bytes;
}

template <class Number>
Json or_null(const std::optional<Number>& number) {
  return number ? Json(*number) : Json(nullptr);
}

}  // namespace

std::string heading(const TrainConfig& config, const fs::path& weights, const fs::path& out_dir,
                    const zero::Group* group) {
  return fmt::format(
      "model   {}: {} parameters, {} on {}, {}\n"
      "data    {}: {} x {} tokens per step{}{}\n"
      "run     {} {} of {}, into {}\n",
      config.model_name, train::grouped(models::parameter_count(config.model)), name(config.precision),
      config.device.str(),
      weights.empty() ? fmt::format("fresh weights (seed {})", config.seed)
                      : fmt::format("weights of {}", io::file_of_weights(weights).string()),
      config.data, config.batch_size, config.seq_len,
      config.accumulation() > 1
          ? fmt::format(", in {} micro-batches of {}", config.accumulation(), config.micro_batch)
          : "",
      config.zero_stage ? fmt::format("\nranks   {}, ZeRO stage {}{}", config.ranks, *config.zero_stage,
                                      group && !group->carrier().empty() ? ", over " + group->carrier() : "")
                        : "",
      config.steps, config.steps == 1 ? "step" : "steps", name(config.optimizer.kind), out_dir.string());
}

std::string prediction(const TrainConfig& config, const trace::Snapshot& peak) {
  std::string text = fmt::format("\nPredicted peak {}", format_bytes(peak.total));
  if (config.budget_bytes) text += fmt::format(", budget {}", format_bytes(*config.budget_bytes));
  return text + "\n" + report::table(peak, {.regions = 0}) + "\n";
}

std::string summary(const TrainConfig& config, const TrainResult& result, const fs::path& out_dir) {
  std::string text;
  if (result.resumed >= config.steps)
    return fmt::format("{} of {} steps were done before: nothing to do\nRun directory: {}\n", result.steps,
                       config.steps, out_dir.string());
  if (result.first_loss) {
    text += fmt::format("\nLoss {:.4f} -> {:.4f}, {} per step, {:.0f} tokens/s\n", *result.first_loss,
                        *result.last_loss, train::format_seconds(result.measured.step_seconds),
                        result.tokens_per_second);
    if (result.loss_scale)
      text += fmt::format("Skipped {} of {} steps, whose gradients overflowed; loss scale {}\n",
                          result.skipped, result.steps, *result.loss_scale);
    if (result.graph_steps > 0)
      text += fmt::format("{} steps were one CUDA graph each: the GPU is faster than the host here\n",
                          result.graph_steps);
    text += "\nAt the peak\n" + report::compare(result.predicted.peak, result.measured.peak);
    text += "\n" + memory_lines(result.measured);
    text += recompute_text(config, result);
  }
  if (config.budget_bytes && result.first_loss) {
    const std::uint64_t used = result.measured.budget_use;
    text += fmt::format("budget    {:>12}  {}: {:.1f} % used\n", format_bytes(*config.budget_bytes),
                        within_budget(config, result) ? "held" : "NOT HELD",
                        100 * static_cast<double>(used) / static_cast<double>(*config.budget_bytes));
  }
  if (config.plan && result.first_loss) {
    text += fmt::format("planned   {:>12}  {:.2f} % from what was measured\n",
                        format_bytes(config.plan->predicted.peak_bytes),
                        100 * (static_cast<double>(result.measured.budget_use) /
                                   static_cast<double>(config.plan->predicted.peak_bytes) -
                               1));
  }
  text += fmt::format("\nRun directory: {}\n", out_dir.string());
  if (!result.state.empty()) text += fmt::format("Trained model: {}\n", result.state.string());
  if (result.interrupted)
    text += fmt::format("Stopped after {} of {} steps{}\n", result.steps, config.steps,
                        result.state.empty() && result.resumed == 0 ? "" : ": --resume goes on from there");
  return text;
}

Json document(const TrainConfig& config, const TrainResult& result, const fs::path& out_dir) {
  Json json = {{"steps", result.steps},
               {"resumed", result.resumed},
               {"interrupted", result.interrupted},
               {"first_loss", or_null(result.first_loss)},
               {"last_loss", or_null(result.last_loss)},
               {"tokens_per_second", result.tokens_per_second},
               {"budget_bytes", or_null(config.budget_bytes)},
               {"predicted",
                {{"peak_bytes", result.predicted.peak.total},
                 {"host_bytes", result.predicted.host_bytes},
                 {"bytes", trace::to_json(result.predicted.peak.bytes)}}},
               {"measured", to_json(result.measured)},
               {"recompute", recompute_json(config, result)},
               {"within_budget", within_budget(config, result)},
               {"run_directory", out_dir.string()}};
  if (config.device.is_cuda()) {
    json["predicted"]["reserved_bytes"] = result.predicted.reserved_bytes;
    json["predicted"]["process_bytes"] = result.predicted.budget_use();
    json["graph_steps"] = result.graph_steps;
  }
  if (config.zero_stage) {
    json["ranks"] = config.ranks;
    json["zero_stage"] = *config.zero_stage;
  }
  if (result.loss_scale) {
    json["skipped_steps"] = result.skipped;
    json["loss_scale"] = *result.loss_scale;
  }
  return json;
}

}  // namespace snug::cli
