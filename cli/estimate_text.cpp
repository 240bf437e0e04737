#include "cli/estimate_text.h"

#include <fmt/format.h>

#include <string_view>

#include "snug/train/progress.h"

namespace snug::cli {

namespace {

std::string_view master_note(const train::EstimateRequest& request) {
  if (request.precision != train::Precision::Bf16) return "";
  return request.master == train::Master::Fp32
             ? ", 2 less with --master split, the default"
             : " with --master split, the default; 2 more with --master fp32";
}

}  // namespace

std::string table(const train::EstimateRequest& request, const train::StateBytes& states,
                  const std::optional<Activations>& step) {
  const auto each = train::bytes_per_parameter(request.precision, request.master, request.optimizer);
  const std::uint64_t total = states.total() + (step ? step->saved + step->temporaries : 0);
  const bool giga = total >= 1'000'000'000;
  const auto row = [&](std::string_view name, std::uint64_t bytes, const std::string& note) {
    return fmt::format("{:<12} {:>9.1f} {:>9.2f}  {}\n", name,
                       static_cast<double>(bytes) / (giga ? 1e9 : 1e6),
                       static_cast<double>(bytes) / (giga ? 0x1p30 : 0x1p20), note);
  };
  const auto per_parameter = [](std::uint64_t bytes) { return fmt::format("{} bytes per parameter", bytes); };

  std::string text = fmt::format("{} parameters, {}, {}", train::grouped(request.parameters),
                                 name(request.precision), name(request.optimizer));
  if (request.zero_stage > 0)
    text += fmt::format("; one of {} ranks, ZeRO stage {}", request.ranks, request.zero_stage);
  text += fmt::format("\n{:<12} {:>9} {:>9}\n", "category", giga ? "GB" : "MB", giga ? "GiB" : "MiB");
  text += row("parameters", states.parameters, per_parameter(each.parameters));
  text += row("gradients", states.gradients, per_parameter(each.gradients));
  text += row("optimizer", states.optimizer,
              fmt::format("{}{}", per_parameter(each.optimizer), master_note(request)));
  if (step) {
    text += row("activations", step->saved, "at most, in a step that keeps everything");
    text += row("temporaries", step->temporaries, "at most");
  }
  return text +
         row("total", total, step ? "an upper bound of the peak" : "before activations: --model adds them");
}

Json document(const train::EstimateRequest& request, const train::StateBytes& states,
              const std::optional<Activations>& step) {
  const Activations extra = step.value_or(Activations{});
  return {{"parameters", request.parameters},
          {"precision", name(request.precision)},
          {"optimizer", name(request.optimizer)},
          {"zero_stage", request.zero_stage},
          {"ranks", request.ranks},
          {"activations_included", step.has_value()},
          {"bytes",
           {{"parameters", states.parameters},
            {"gradients", states.gradients},
            {"optimizer", states.optimizer},
            {"activations", extra.saved},
            {"temporaries", extra.temporaries},
            {"total", states.total() + extra.saved + extra.temporaries}}}};
}

}  // namespace snug::cli
