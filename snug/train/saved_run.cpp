#include "snug/train/saved_run.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/aminmax.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/io/checksum.h"
#include "snug/machine/products.h"
#include "snug/plan/plan.h"

namespace snug::train {
namespace {

constexpr const char* kCpuGenerator = "generator.cpu";
constexpr const char* kDeviceGenerator = "generator.device";

constexpr const char* kMustAgree[] = {"architecture", "shuffle",   "seed",           "batch_size",
                                      "seq_len",      "precision", "optimizer",      "master",
                                      "lr",           "beta1",     "beta2",          "eps",
                                      "weight_decay", "decay",     "momentum",       "clip",
                                      "warmup",       "schedule",  "allow_quadratic"};

// Which plan ran last: for whoever wonders.
Json plan_hash(const TrainConfig& config) {
  return config.plan ? Json(io::checksum_of(plan::to_json(*config.plan).dump())) : Json(nullptr);
}

// As published, where it was: with the tokens that begin and end a text, which others need.
Json model_config(const TrainConfig& config) {
  const std::filesystem::path published = config.weights / "config.json";
  std::error_code missing;
  Json json = !config.weights.empty() && std::filesystem::exists(published, missing) ? read_json(published)
                                                                                     : Json::object();
  json.update(models::to_json(config.model));
  json.erase("torch_dtype");
  json["dtype"] = io::config_name(dtype(config.precision));
  return json;
}

// With what else last bits depend on: in which order ranks add up gradients.
Json split_json(const TrainConfig& config) {
  Json split = {{"micro_batch", config.micro_batch},
                {"accumulation", config.accumulation()},
                {"head_chunks", config.head_chunks}};
  if (config.ranks == 1) return split;
  split["ranks"] = config.ranks;
  split["sums"] = *config.zero_stage >= 2 && config.accumulation() > 1 ? "in every pass" : "once a step";
  return split;
}

std::string split_text(const Json& split, const std::string& where) {
  const JsonReader json(split, where);
  const auto chunks = json.required<std::int64_t>("head_chunks");
  std::string text =
      concat(json.required<std::int64_t>("micro_batch"), " x ", json.required<std::int64_t>("accumulation"),
             chunks > 0 ? concat(" with the head in ", chunks) : "");
  if (!json.has("ranks")) return text;
  return concat(text, " on ", json.required<std::int64_t>("ranks"), " ranks that add up gradients ",
                json.required<std::string>("sums"));
}

// NaN is both the least and the most.
bool is_finite(const at::Tensor& tensor) {
  const auto [least, most] = at::aminmax(tensor);
  return std::isfinite(least.item<double>()) && std::isfinite(most.item<double>());
}

bool has_finite_weights_on_all(zero::Sharding& sharding) {
  bool mine = true;
  for (const auto& stretch : sharding.own()) mine = mine && is_finite(stretch.weights);
  const auto all = sharding.group().exchange(mine ? "finite" : "", "looking for weights that are not finite");
  return std::ranges::none_of(all, &std::string::empty);
}

bool has_finite_weights(const TrainingSetup& setup) {
  at::NoGradGuard no_grad;
  if (setup.sharding) return has_finite_weights_on_all(*setup.sharding);
  for (std::size_t i = 0; i < setup.optimizer->parameters().size(); ++i)
    if (!is_finite(setup.optimizer->weight(i))) return false;
  return true;
}

// The last state whose weights are finite. One that cannot be read is none.
std::optional<std::int64_t> last_finite(const std::filesystem::path& run) {
  const auto steps = io::saved_steps(run);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    try {
      const std::filesystem::path folder = io::state_folder(run, *step);
      if (JsonReader(io::facts_of(folder), folder.string()).optional<bool>("finite", true)) return *step;
    } catch (const Error&) {
    }
  }
  return std::nullopt;
}

at::Generator device_generator(c10::Device device) {
  return at::globalContext().defaultGenerator(device);
}

at::Tensor generator_state(at::Generator generator) {
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

void set_generator(at::Generator generator, const at::Tensor& state, const std::string& where) {
  const at::Tensor now = generator_state(generator);
  check(state.sizes() == now.sizes() && state.scalar_type() == now.scalar_type(), where,
        ": a generator's state is ", state.scalar_type(), " ", state.sizes(), ", expected ",
        now.scalar_type(), " ", now.sizes());
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state.clone());
}

c10::Device device_of(const TrainingSetup& setup) {
  return setup.optimizer->parameters()[0].device();
}

struct Content {
  std::string name;
  at::Tensor tensor;
  // Of a tensor that waits on the host: the parameter that is told of before it is written to.
  std::optional<std::size_t> parameter;
};

std::vector<Content> weights(const TrainingSetup& setup) {
  const auto names = setup.model->named_parameters().keys();
  std::vector<Content> contents;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool is_there = setup.there && setup.there->has_weight(setup.optimizer->parameters()[i]);
    contents.push_back({names[i], setup.optimizer->weight(i), is_there ? std::optional(i) : std::nullopt});
  }
  return contents;
}

// "exp_avg.model.norm.weight", ...
std::vector<Content> optimizer_states(const TrainingSetup& setup) {
  const auto names = setup.model->named_parameters().keys();
  std::vector<Content> contents;
  for (const optim::StateTensor& state : setup.optimizer->state())
    contents.push_back({concat(state.name, ".", names[state.parameter]), state.tensor,
                        state.is_on_host ? std::optional(state.parameter) : std::nullopt});
  return contents;
}

std::vector<Content> generators(const TrainingSetup& setup) {
  std::vector<Content> contents{{kCpuGenerator, generator_state(device_generator(at::kCPU)), std::nullopt}};
  if (!device_of(setup).is_cpu())
    contents.push_back({kDeviceGenerator, generator_state(device_generator(device_of(setup))), std::nullopt});
  return contents;
}

std::string file_of(const io::StoredTensors& stored) {
  return stored.files().front()->path().string();
}

const io::StoredTensor& find(const io::StoredTensors& stored, const std::string& name) {
  const io::StoredTensor* const found = stored.find(name);
  check(found, file_of(stored), ": '", name, "' is missing");
  return *found;
}

// `to`: all of a tensor of these sizes, or its elements from `begin` on.
void copy_into(const at::Tensor& to, std::int64_t begin, at::IntArrayRef sizes,
               const io::StoredTensor& saved) {
  check(sizes == at::IntArrayRef(saved.shape) && saved.dtype == to.scalar_type(), saved.where(), " is ",
        saved.dtype, " ", at::IntArrayRef(saved.shape), ", expected ", to.scalar_type(), " ", sizes);
  saved.copy_to(to, begin);
  saved.release();
}

// By parameter.
std::unordered_map<const c10::TensorImpl*, std::string> names_of(const TrainingSetup& setup) {
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  for (const auto& item : setup.model->named_parameters())
    names[item.value().unsafeGetTensorImpl()] = item.key();
  return names;
}

// What one of several ranks writes, and the shapes of all that they write together.
void describe_part(const TrainingSetup& setup, io::TrainingState& state, io::WritingRanks& together) {
  const auto names = names_of(setup);
  const auto name_of = [&](const at::Tensor& parameter) { return names.at(parameter.unsafeGetTensorImpl()); };
  const std::vector<optim::StateTensor> states = setup.optimizer->state();
  for (const auto& [parameter, begin, count, weights, trained, offset] : setup.sharding->own()) {
    const std::string name = name_of(parameter);
    state.model.push_back(io::source_of(io::StoredTensors::piece_name(name, begin), weights));
    for (const optim::StateTensor& one : states) {
      if (trained != one.parameter || (one.tensor.dim() == 0 && begin > 0)) continue;
      const std::string full = concat(one.name, ".", name);
      state.optimizer.push_back(one.tensor.dim() == 0
                                    ? io::source_of(full, one.tensor)
                                    : io::source_of(io::StoredTensors::piece_name(full, begin),
                                                    one.tensor.view(-1).narrow(0, offset, count)));
    }
  }
  for (const auto& item : setup.model->named_parameters())
    together.model[item.key()] = item.value().sizes().vec();
  for (const optim::StateTensor& one : states)
    for (const at::Tensor& parameter : setup.sharding->like(one.parameter))
      together.optimizer[concat(one.name, ".", name_of(parameter))] =
          one.tensor.dim() == 0 ? std::vector<std::int64_t>() : parameter.sizes().vec();
  if (together.rank != 0) return;
  for (const Content& content : generators(setup))
    state.optimizer.push_back(io::source_of(content.name, content.tensor));
}

// The same way back.
void restore_part(const TrainingSetup& setup, const io::StoredTensors& stored) {
  const auto names = names_of(setup);
  const std::vector<optim::StateTensor> states = setup.optimizer->state();
  for (const auto& [parameter, begin, count, weights, trained, offset] : setup.sharding->updated())
    for (const optim::StateTensor& one : states) {
      if (trained != one.parameter) continue;
      const std::string name = concat(one.name, ".", names.at(parameter.unsafeGetTensorImpl()));
      const io::StoredTensor& saved = find(stored, name);
      if (one.tensor.dim() == 0)
        copy_into(one.tensor, 0, one.tensor.sizes(), saved);
      else
        copy_into(one.tensor.view(-1).narrow(0, offset, count), begin, parameter.sizes(), saved);
    }
}

// What a reader is told about the first thing that is not as it was.
std::string difference(const std::string& key, const Json& before, const Json& now) {
  if (key == "data") return "`data` has another content than this run's had";
  if (!before.is_object() || !now.is_object())
    return concat("this run had ", key, " ", before.dump(), ", now it is ", now.dump());
  for (const auto& [inner, value] : now.items())
    if (!before.contains(inner) || before[inner] != value)
      return difference(concat(key, ".", inner), before.value(inner, Json(nullptr)), value);
  return concat("this run had another ", key);
}

// The last one. If it is damaged, says from where else the run could go on.
io::SavedState open_state(const std::filesystem::path& run, const std::vector<std::int64_t>& steps, int rank,
                          int ranks) {
  const std::filesystem::path last = io::state_folder(run, steps.back());
  try {
    return io::SavedState(last, rank, ranks);
  } catch (const RunError&) {
    throw;
  } catch (const Error& error) {
    if (steps.size() == 1) fail(error.what(), "; this run has no other state");
    fail(error.what(), "; set ", last.string(), " aside to go on after step ", steps[steps.size() - 2]);
  }
}

}  // namespace

Json run_facts(const TrainConfig& config, const io::TokenDataset& data) {
  const Json all = to_json(config);
  Json facts = Json::object();
  for (const char* key : kMustAgree) facts[key] = all.contains(key) ? all[key] : Json(nullptr);
  facts["data"] = data.identity();
  const bool ends = config.optimizer.schedule != optim::Schedule::Kind::Constant;
  facts["steps"] =
      ends ? Json(config.steps) : Json(nullptr);  // a learning rate that falls depends on the end
  return facts;
}

RunSaver::RunSaver(std::filesystem::path run, const TrainConfig& config, Json run_facts,
                   std::size_t keep_last, Write write)
    : run_(std::move(run)),
      run_facts_(std::move(run_facts)),
      plan_(plan_hash(config)),
      model_config_(model_config(config)),
      split_(split_json(config)),
      batch_size_(config.batch_size),
      may_be_nan_(config.allow_nan),
      keep_last_(keep_last),
      write_(std::move(write)) {
  if (!config.weights.empty()) companions_ = io::read_companions(config.weights);
}

// Before the thread that writes loses what it writes with.
RunSaver::~RunSaver() {
  if (writing_) writing_->wait();
}

io::TrainingState RunSaver::describe(std::int64_t step, const TrainingSetup& setup,
                                     const GradScaler& scaler) const {
  return {.facts = {{"step", step},
                    {"windows", step * batch_size_},
                    {"torch", TORCH_VERSION},
                    {"loss_scale", scaler.is_enabled() ? scaler.state() : Json(nullptr)},
                    {"plan", plan_},
                    {"products", machine::products_to_json()},
                    {"split", split_},
                    {"finite", !may_be_nan_ || has_finite_weights(setup)},
                    {"run", run_facts_}},
          .model_config = model_config_,
          .model = {},
          .optimizer = {},
          .companions = companions_};
}

void RunSaver::save(std::int64_t step, const TrainingSetup& setup, const GradScaler& scaler) {
  finish();
  setup.optimizer->finish();
  if (setup.sharding) return save_together(step, setup, scaler);
  io::TrainingState state = describe(step, setup, scaler);
  for (const Content& content : weights(setup))
    state.model.push_back(io::source_of(content.name, content.tensor));
  for (const auto& contents : {optimizer_states(setup), generators(setup)})
    for (const Content& content : contents)
      state.optimizer.push_back(io::source_of(content.name, content.tensor));
  write(step, state);
  last_ = step;
}

void RunSaver::save_together(std::int64_t step, const TrainingSetup& setup, const GradScaler& scaler) {
  setup.sharding->finish();
  zero::Group& group = setup.sharding->group();
  io::TrainingState state = describe(step, setup, scaler);
  io::WritingRanks together{
      .rank = group.rank(), .ranks = group.size(), .exchange = [&](const std::string& mine) {
        return group.exchange(mine, "writing of a state");
      }};
  describe_part(setup, state, together);
  write(step, state, &together);
  last_ = step;
}

std::string RunSaver::begin_save(std::int64_t step, const TrainingSetup& setup, const GradScaler& scaler,
                                 std::uint64_t spare_host_bytes) {
  if (setup.sharding) {
    save(step, setup, scaler);
    return "";
  }
  finish();
  setup.optimizer->finish();
  const std::vector<Content> model = weights(setup), states = optimizer_states(setup),
                             others = generators(setup);
  std::uint64_t bytes = 0;
  for (const auto* contents : {&model, &states, &others})
    for (const Content& content : *contents) bytes += content.parameter ? 0 : content.tensor.nbytes();
  if (bytes > spare_host_bytes) {
    save(step, setup, scaler);
    if (std::exchange(has_said_, true)) return "";
    return concat("saving beside the steps needs ", format_bytes(bytes),
                  " of host memory for copies, and `host_budget` leaves ", format_bytes(spare_host_bytes),
                  ": the run waits while a state is written");
  }
  const auto writing = std::make_shared<BackgroundSave>(spare_host_bytes);
  const auto add = [&](const std::vector<Content>& contents, std::vector<io::TensorSource>& sources) {
    for (const auto& [name, tensor, parameter] : contents)
      sources.push_back(parameter ? writing->in_place(name, tensor, *parameter)
                                  : writing->copied(name, tensor));
  };
  io::TrainingState state = describe(step, setup, scaler);
  add(model, state.model);
  add(states, state.optimizer);
  add(others, state.optimizer);
  setup.optimizer->set_before_write([writing](std::size_t i) { writing->before_write(i); });
  writing->begin([this, step, state = std::move(state)] { write(step, state); });
  writing_ = writing;
  last_ = step;
  return "";
}

void RunSaver::check_written() {
  if (writing_ && writing_->is_over()) finish();
}

std::filesystem::path RunSaver::finish() {
  if (const auto writing = std::exchange(writing_, nullptr)) writing->finish();
  return last_ ? io::state_folder(run_, *last_) : std::filesystem::path();
}

void RunSaver::write(std::int64_t step, const io::TrainingState& state,
                     const io::WritingRanks* together) const {
  try {
    write_(io::state_folder(run_, step), state, together);
  } catch (const RunError& error) {
    const auto whole = io::saved_steps(run_);
    if (whole.empty()) throw;
    throw RunError(concat(error.what(), "; ", io::state_folder(run_, whole.back()).string(),
                          " is whole: `resume` goes on from there"));
  }
  if (together && together->rank != 0) return;
  io::remove_older_states(run_, step, keep_last_, may_be_nan_ ? last_finite(run_) : std::nullopt);
}

std::optional<io::SavedState> last_state(const std::filesystem::path& run, const Json& run_facts, int rank,
                                         int ranks) {
  const auto steps = io::saved_steps(run);
  if (steps.empty()) return std::nullopt;
  io::SavedState state = open_state(run, steps, rank, ranks);
  const std::string where = state.folder().string();
  check(step_of(state) == steps.back(), where, ": holds the state of step ", step_of(state));
  const JsonReader saved(JsonReader(state.facts(), where).required<Json>("run"), where);
  for (const auto& [key, value] : run_facts.items()) {
    const Json before = saved.has(key) ? saved.required<Json>(key) : Json(nullptr);
    check(before == value, where, ": ", difference(key, before, value),
          "; resume it as it was, or start another from its weights with `model` ", where);
  }
  return state;
}

std::int64_t step_of(const io::SavedState& state) {
  return JsonReader(state.facts(), state.folder().string()).required<std::int64_t>("step");
}

std::string other_split(const io::SavedState& state, const TrainConfig& config) {
  const std::string where = state.folder().string();
  const JsonReader facts(state.facts(), where);
  if (!facts.has("split")) return "";
  const Json before = facts.required<Json>("split"), now = split_json(config);
  if (before == now) return "";
  return concat("the batch is now split ", split_text(now, where), ", it was ", split_text(before, where),
                ": last bits may differ");
}

void restore(const io::SavedState& state, TrainingSetup& setup, GradScaler& scaler) {
  at::NoGradGuard no_grad;
  const JsonReader facts(state.facts(), state.folder().string());
  if (facts.has("products"))
    machine::products_from_json(facts.required<Json>("products"), state.folder().string());
  const io::StoredTensors& stored = state.optimizer();
  if (setup.sharding)
    restore_part(setup, stored);
  else
    for (const Content& one : optimizer_states(setup))
      copy_into(one.tensor, 0, one.tensor.sizes(), find(stored, one.name));
  set_generator(device_generator(at::kCPU), find(stored, kCpuGenerator).whole(), file_of(stored));
  const c10::Device device = device_of(setup);
  if (!device.is_cpu() && stored.find(kDeviceGenerator))
    set_generator(device_generator(device), find(stored, kDeviceGenerator).whole(), file_of(stored));
  if (scaler.is_enabled()) scaler.load_state(facts.required<Json>("loss_scale"));
}

}  // namespace snug::train
