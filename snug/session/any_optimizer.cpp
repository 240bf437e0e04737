#include "snug/session/any_optimizer.h"

#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <typeinfo>

#include "snug/base/error.h"

namespace snug {

namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

template <class Torchs>
bool is_exactly(const Optimizer& optimizer) {
  return typeid(optimizer) == typeid(Torchs);
}

template <class... Torchs>
bool is_one_of(const Optimizer& optimizer) {
  return (... || (dynamic_cast<const Torchs*>(&optimizer) != nullptr));
}

void check_is_known(const Optimizer& optimizer) {
  using namespace torch::optim;
  check(!is_one_of<LBFGS>(optimizer), "the states of LBFGS cannot be parked: its step runs forward and ",
        "backward between uses of them. Call its own step()");
  check(is_one_of<Adagrad, Adam, AdamW, RMSprop, SGD>(optimizer), "the states of ",
        c10::demangle(typeid(optimizer).name()),
        " are not known: give them as an AnyOptimizer, or call its own step()");
}

template <class State, class List>
bool list_if(const OptimizerParamState& state, const List& list) {
  const auto* const known = dynamic_cast<const State*>(&state);
  if (known) list(*known);
  return known != nullptr;
}

std::vector<OptimizerState> states_of(const OptimizerParamState& state) {
  using namespace torch::optim;
  std::vector<OptimizerState> all;
  const auto list_moments = [&](const auto& adam) {
    all = {{"exp_avg", adam.exp_avg()},
           {"exp_avg_sq", adam.exp_avg_sq()},
           {"max_exp_avg_sq", adam.max_exp_avg_sq()}};
  };
  list_if<AdamWParamState>(state, list_moments) || list_if<AdamParamState>(state, list_moments) ||
      list_if<SGDParamState>(state,
                             [&](const auto& sgd) {
                               all = {{"momentum_buffer", sgd.momentum_buffer()}};
                             }) ||
      list_if<RMSpropParamState>(state,
                                 [&](const auto& rms) {
                                   all = {{"square_avg", rms.square_avg()},
                                          {"momentum_buffer", rms.momentum_buffer()},
                                          {"grad_avg", rms.grad_avg()}};
                                 }) ||
      list_if<AdagradParamState>(state, [&](const auto& adagrad) {
        all = {{"sum", adagrad.sum()}};
      });
  return all;
}

}  // namespace

AnyOptimizer::AnyOptimizer(Optimizer& optimizer)
    : states([&optimizer](const at::Tensor& parameter) {
        const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
        return found == optimizer.state().end() ? std::vector<OptimizerState>{} : states_of(*found->second);
      }),
      step([&optimizer] { optimizer.step(); }) {
  using namespace torch::optim;
  check_is_known(optimizer);
  is_by_parameter = is_exactly<Adagrad>(optimizer) || is_exactly<Adam>(optimizer) ||
                    is_exactly<AdamW>(optimizer) || is_exactly<RMSprop>(optimizer) ||
                    is_exactly<SGD>(optimizer);
  for (const auto& group : optimizer.param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
}

std::vector<at::Tensor> AnyOptimizer::gradients() const {
  std::vector<at::Tensor> defined;
  for (const at::Tensor& parameter : parameters)
    if (parameter.grad().defined()) defined.push_back(parameter.grad());
  return defined;
}

}  // namespace snug
