#include "snug/train/evaluate.h"

#include <algorithm>

#include "snug/base/error.h"
#include "snug/session/session.h"
#include "snug/train/step.h"

namespace snug::train {

Evaluation evaluate(const TrainConfig& config,
                    const std::function<void(std::uint64_t, std::uint64_t)>& on_batch) {
  const io::TokenDataset data = open_data(config);
  check(data.windows() != io::TokenDataset::kUnlimited,
        "synthetic tokens have no end to evaluate up to: give `data` a token file or text");
  check_weights(config);
  Session session({}, {.device = config.device, .by_hand = ByHand{}});
  at::manual_seed(config.seed);
  const auto model = session.run([&] { return load_model(config, config.device); });

  at::NoGradGuard no_grad;
  double sum = 0;
  Evaluation result;
  for (std::uint64_t first = 0; first < data.windows();) {
    const std::uint64_t count =
        std::min(static_cast<std::uint64_t>(config.batch_size), data.windows() - first);
    const io::Batch batch = data.batch(first, static_cast<std::int64_t>(count));
    sum += session.run([&] {
      return model->loss_sum(batch.tokens.to(config.device), batch.targets.to(config.device)).item<double>();
    });
    result.tokens += static_cast<std::uint64_t>(count_targets(batch.targets));
    first += count;
    if (on_batch) on_batch(first, data.windows());
  }
  result.loss = sum / static_cast<double>(result.tokens);
  return result;
}

}  // namespace snug::train
