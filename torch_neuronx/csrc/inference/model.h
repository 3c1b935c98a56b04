// A traced model: `torch.classes.neuron.Model`, which TorchScript holds, saves and loads.
//
// What is saved is data: a manifest (JSON), a NEFF, and tensors. Loading goes through Python
// (torch_neuronx/inference/entry.py and loading.py), which checks all of it; calls do not.
#pragma once

#include <torch/custom_class.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "program/program.h"

namespace torch_neuronx::inference {

using TensorVector = std::vector<at::Tensor>;

// Where an argument of the program, or what the model returns, comes from.
enum class Kind : uint8_t { kInput, kWeight, kState, kResult };

struct Source {
  Kind kind = Kind::kInput;
  int32_t index = 0;
};

struct Output {
  Source source;
  // Of the source, with these sizes, strides and offset from where it begins (elements).
  bool is_view = false;
  program::Extents sizes, strides;
  int64_t offset = 0;
};

// The model on one core.
struct Replica {
  c10::DeviceIndex core = 0;
  std::shared_ptr<const program::Program> program;
  std::shared_ptr<PyObject> keep;  // the Python object that the machine code belongs to
  TensorVector weights, states;
};

struct Loaded {
  std::vector<std::string> names;  // of the inputs
  std::vector<int32_t> arguments;  // of the program, by input; -1: the program does not read it
  std::vector<Source> sources;     // of the program's arguments
  std::vector<Output> outputs;
  std::vector<std::vector<int64_t>> sizes;  // of the inputs, as traced
  std::vector<at::ScalarType> dtypes;
  size_t separate_weights = 0;  // weights that every call brings
  std::vector<Replica> replicas;
  std::atomic<uint32_t> next{0};
};

// What of a model can be switched, by place in its saved form.
enum Option : uint8_t { kDynamicBatch, kLazyLoad, kAsyncLoad, kOptions };

class Model : public torch::CustomClassHolder {
 public:
  // Manifest; NEFF, weights and states; the options and the number of weights.
  using State = std::tuple<std::string, TensorVector, std::vector<int64_t>>;

  Model(std::string manifest, at::Tensor neff, TensorVector weights, TensorVector states);

  // Makes a model of what get_state() gave, and loads it as its options say.
  static c10::intrusive_ptr<Model> from_state(State state);
  State get_state();

  // One call. `weights`: those that are not in the model. `lent`: so many of the inputs, the last
  // ones, are states of somebody else's; where they lie does not say where outputs go.
  TensorVector forward(at::TensorList inputs, at::TensorList weights, size_t lent = 0);

  void load();  // now, unless it is
  // Puts a replica on each of these cores; in the background if the model is loaded so.
  void set_cores(std::vector<int64_t> cores);
  std::vector<int64_t> cores();  // none: not loaded

  const std::string& manifest() const { return manifest_; }
  at::Tensor neff() const { return neff_; }
  TensorVector weights();
  TensorVector states();
  bool option(int64_t option) const;
  void set_option(int64_t option, bool value);

 private:
  std::shared_ptr<Loaded> ready();
  void load_locked();
  void start();  // loads now or in the background
  TensorVector forward_in_batches(Loaded& loaded, at::TensorList inputs, at::TensorList weights);

  const std::string manifest_;
  const at::Tensor neff_;
  std::mutex mutex_;  // of what follows; never waited for with Python's lock
  TensorVector weights_, states_;
  std::vector<int64_t> cores_;      // wanted; empty: the next one in turn
  std::string failure_;             // of loading in the background
  std::shared_ptr<Loaded> loaded_;  // by atomic_load and atomic_store
  std::atomic<bool> options_[kOptions] = {};
};

// One call on one core; `lent` as for Model::forward.
TensorVector run(const Loaded& loaded, const Replica& replica, at::TensorList inputs,
                 at::TensorList weights, size_t lent = 0);

// "input 'mask' must be int64[1, 128] as traced, got int64[1, 64]" unless it is. `dynamic`: the
// first size may be any.
void check_inputs(const Loaded& loaded, at::TensorList inputs, bool dynamic);

}  // namespace torch_neuronx::inference
