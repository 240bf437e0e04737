// What the C++ blocks of README.md and docs/ do not say of themselves. They are compiled, not linked.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/adamw.h>

#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "snug/snug.h"

using namespace snug::literals;

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& batch);
  at::Tensor loss(const at::Tensor& batch);
};

extern std::shared_ptr<Net> net, model, block;
extern std::vector<std::pair<std::string, std::shared_ptr<Net>>> layers_by_name;
extern std::vector<std::shared_ptr<Net>> layers;
extern std::vector<at::Tensor> batches;
extern at::Tensor batch, loss, x;
extern at::Device device;
extern double lr;
extern torch::nn::Sequential sequential;
extern torch::optim::AdamW optimizer;
extern snug::Session session;
extern snug::Step step;
