// One forward and backward of a published model, for reference_test.py:
//   reference_step MODEL_FOLDER TOKENS.bin TOKENS_PER_SEQUENCE OUT.safetensors
// Leaves the mean loss under "loss" and every gradient under its parameter's name.
#include <ATen/ops/scalar_tensor.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "snug/io/safetensors_writer.h"
#include "snug/io/token_dataset.h"
#include "snug/models/language_model.h"
#include "snug/models/weights.h"

int main(int count, char** arguments) try {
  using namespace snug;
  if (count != 5)
    throw Error("usage: reference_step MODEL_FOLDER TOKENS.bin TOKENS_PER_SEQUENCE OUT.safetensors");
  const std::string folder = arguments[1];
  const models::ModelConfig config = models::load_config(folder);
  const auto model = models::make_model(config, {.fresh = false});
  models::load_weights(*model, folder);

  const auto data = io::TokenDataset::open(
      arguments[2], {.vocab_size = config.vocab_size, .seq_len = std::atoll(arguments[3])});
  const io::Batch batch = data.batch(0, static_cast<std::int64_t>(data.windows()));
  const at::Tensor loss =
      model->loss_sum(batch.tokens, batch.targets, 1.0 / static_cast<double>(batch.targets.numel()));
  loss.backward();

  std::vector<io::TensorSource> results{io::source_of("loss", loss.detach())};
  for (const auto& parameter : model->named_parameters())
    results.push_back(io::source_of(parameter.key(), parameter.value().grad()));
  io::write_safetensors(arguments[4], std::move(results));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "reference_step: %s\n", error.what());
  return 2;
}
