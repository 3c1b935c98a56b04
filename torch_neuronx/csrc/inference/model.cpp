#include "inference/model.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include "device/python_lock.h"
#include "device/state.h"
#include "inference/refuse.h"
#include "program/parse.h"
#include "program/python_program.h"

namespace torch_neuronx::inference {
namespace {

constexpr const char* kLoading = "torch_neuronx.inference.entry";
constexpr const char* kPlacement = "torch_neuronx.inference.placement";

std::shared_ptr<PyObject> hold(const py::object& object) {
  return {Py_NewRef(object.ptr()), [](PyObject* held) {
            if (!Py_IsInitialized()) return;
            const py::gil_scoped_acquire gil;
            Py_DECREF(held);
          }};
}

Source source_of(py::handle item) {
  const auto [kind, index] = item.cast<std::tuple<std::string, int32_t>>();
  const Kind found = kind == "input"    ? Kind::kInput
                     : kind == "weight" ? Kind::kWeight
                     : kind == "state"  ? Kind::kState
                                        : Kind::kResult;
  return {found, index};
}

TensorVector moved(const TensorVector& tensors, c10::Device device, bool copy) {
  TensorVector result;
  result.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    result.push_back(tensor.to(device, tensor.scalar_type(), /*non_blocking=*/false, copy));
  }
  return result;
}

}  // namespace

Model::Model(std::string manifest, at::Tensor neff, TensorVector weights, TensorVector states)
    : manifest_(std::move(manifest)),
      neff_(std::move(neff)),
      weights_(std::move(weights)),
      states_(std::move(states)) {}

c10::intrusive_ptr<Model> Model::from_state(State state) {
  auto& [manifest, tensors, numbers] = state;
  TORCH_CHECK_VALUE(numbers.size() == kOptions + 1 && !tensors.empty() && numbers[kOptions] >= 0 &&
                        numbers[kOptions] < static_cast<int64_t>(tensors.size()),
                    "a saved neuron::Model is damaged: it has ", tensors.size(), " tensors and ",
                    numbers.size(), " numbers");
  const auto first = tensors.begin() + 1, middle = first + numbers[kOptions];
  auto model =
      c10::make_intrusive<Model>(std::move(manifest), tensors[0], TensorVector(first, middle),
                                 TensorVector(middle, tensors.end()));
  for (size_t i = 0; i < kOptions; ++i) model->options_[i] = numbers[i] != 0;
  {
    // A context around torch.jit.load counts, also if the model is loaded after its end.
    const py::gil_scoped_acquire gil;
    const py::object requested = py::module_::import(kPlacement).attr("requested_cores");
    model->cores_ = requested().cast<std::vector<int64_t>>();
  }
  if (!model->option(kLazyLoad)) model->start();
  return model;
}

Model::State Model::get_state() {
  const TensorVector weights = moved(this->weights(), c10::DeviceType::CPU, /*copy=*/false);
  const TensorVector states = moved(this->states(), c10::DeviceType::CPU, /*copy=*/true);
  TensorVector tensors{neff_};
  tensors.insert(tensors.end(), weights.begin(), weights.end());
  tensors.insert(tensors.end(), states.begin(), states.end());
  std::vector<int64_t> numbers;
  for (const auto& option : options_) numbers.push_back(option ? 1 : 0);
  numbers.push_back(static_cast<int64_t>(weights.size()));
  return {manifest_, std::move(tensors), std::move(numbers)};
}

void Model::load_locked() {
  if (std::atomic_load(&loaded_) != nullptr) return;
  if (!failure_.empty()) {
    const std::string failure = std::exchange(failure_, "");
    TORCH_CHECK(false, failure);
  }
  ensure_initialized();
  auto loaded = std::make_shared<Loaded>();
  const py::gil_scoped_acquire gil;
  try {
    const py::object load = py::module_::import(kLoading).attr("load");
    const py::dict facts = load(manifest_, neff_, weights_, states_, cores_, option(kDynamicBatch));
    loaded->names = facts["names"].cast<std::vector<std::string>>();
    loaded->sizes = facts["sizes"].cast<std::vector<std::vector<int64_t>>>();
    for (const py::handle item : facts["dtypes"]) {
      loaded->dtypes.push_back(program::dtype_of(item, "an input"));
    }
    for (const py::handle item : facts["sources"]) loaded->sources.push_back(source_of(item));
    for (const py::handle item : facts["outputs"]) {
      const auto parts = item.cast<std::tuple<py::object, py::object>>();
      Output output;
      output.source = source_of(std::get<0>(parts));
      output.is_view = !std::get<1>(parts).is_none();
      if (output.is_view) {
        const auto [sizes, strides, offset] =
            std::get<1>(parts)
                .cast<std::tuple<std::vector<int64_t>, std::vector<int64_t>, int64_t>>();
        output.sizes.assign(sizes.begin(), sizes.end());
        output.strides.assign(strides.begin(), strides.end());
        output.offset = offset;
      }
      loaded->outputs.push_back(std::move(output));
    }
    loaded->separate_weights = facts["separate_weights"].cast<size_t>();
    for (const py::handle item : facts["programs"]) {
      Replica replica;
      replica.keep = hold(py::reinterpret_borrow<py::object>(item));
      replica.program = program::program_of(item);
      replica.core = replica.program->device;
      loaded->replicas.push_back(std::move(replica));
    }
  } catch (py::error_already_set& error) {
    // TorchScript knows no Python exceptions.
    const std::string name = py::str(error.type().attr("__name__"));
    const std::string text = py::str(error.value());
    TORCH_CHECK(false, name, ": ", text);
  }
  const py::gil_scoped_release nogil;
  for (Replica& replica : loaded->replicas) {
    const c10::Device core(kNeuron, replica.core);
    replica.weights = moved(weights_, core, /*copy=*/false);
    replica.states = moved(states_, core, /*copy=*/true);
  }
  // The core's memory is now where the weights are; the host's is given back.
  weights_ = loaded->replicas.front().weights;
  std::atomic_store(&loaded_, std::move(loaded));
}

void Model::load() {
  const WithoutPythonLock unlocked;
  const std::lock_guard lock(mutex_);
  load_locked();
}

void Model::start() {
  if (!option(kAsyncLoad)) return load();
  const py::gil_scoped_acquire gil;
  auto self = c10::intrusive_ptr<Model>::reclaim_copy(this);
  const py::cpp_function work([self] {
    const WithoutPythonLock unlocked;
    const std::lock_guard lock(self->mutex_);
    try {
      self->load_locked();
    } catch (const std::exception& error) {
      self->failure_ = error.what();  // the next call of the model says so
    }
  });
  py::module_::import(kPlacement).attr("in_background")(work);
}

std::shared_ptr<Loaded> Model::ready() {
  std::shared_ptr<Loaded> found = std::atomic_load(&loaded_);
  if (C10_UNLIKELY(found == nullptr)) {
    load();
    found = std::atomic_load(&loaded_);
  }
  return found;
}

void Model::set_cores(std::vector<int64_t> cores) {
  for (const int64_t core : cores) check_device_index(core);
  {
    const WithoutPythonLock unlocked;
    const std::lock_guard lock(mutex_);
    if (const auto loaded = std::atomic_load(&loaded_)) states_ = loaded->replicas.front().states;
    failure_.clear();
    cores_ = std::move(cores);
    std::atomic_store(&loaded_, std::shared_ptr<Loaded>());
  }
  start();
}

std::vector<int64_t> Model::cores() {
  std::vector<int64_t> found;
  if (const auto loaded = std::atomic_load(&loaded_)) {
    for (const Replica& replica : loaded->replicas) found.push_back(replica.core);
  }
  return found;
}

TensorVector Model::weights() {
  const WithoutPythonLock unlocked;
  const std::lock_guard lock(mutex_);
  return weights_;
}

TensorVector Model::states() {
  const WithoutPythonLock unlocked;
  const std::lock_guard lock(mutex_);
  const auto loaded = std::atomic_load(&loaded_);
  return loaded ? loaded->replicas.front().states : states_;
}

bool Model::option(int64_t option) const {
  TORCH_CHECK_INDEX(option >= 0 && option < kOptions, "there is no option ", option);
  return options_[option];
}

void Model::set_option(int64_t option, bool value) {
  TORCH_CHECK_INDEX(option >= 0 && option < kOptions, "there is no option ", option);
  options_[option] = value;
}

TensorVector Model::forward(at::TensorList inputs, at::TensorList weights, size_t lent) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const std::shared_ptr<Loaded> loaded = ready();
  require(weights.size() == loaded->separate_weights, "the model has ", loaded->separate_weights,
          " separate weights, got ", weights.size());
  if (options_[kDynamicBatch]) return forward_in_batches(*loaded, inputs, weights);
  check_inputs(*loaded, inputs, /*dynamic=*/false);
  const size_t turn = loaded->replicas.size() == 1 ? 0 : loaded->next++;
  return run(*loaded, loaded->replicas[turn % loaded->replicas.size()], inputs, weights, lent);
}

namespace {

TensorVector forward_v2(at::TensorList inputs, const c10::intrusive_ptr<Model>& model) {
  return model->forward(inputs, {});
}

TensorVector forward_weights(at::TensorList inputs, at::TensorList weights,
                             const c10::intrusive_ptr<Model>& model) {
  return model->forward(inputs, weights);
}

// States that models share are the last inputs of each.
TensorVector forward_states(at::TensorList inputs, at::TensorList states,
                            const c10::intrusive_ptr<Model>& model) {
  TensorVector all(inputs.begin(), inputs.end());
  all.insert(all.end(), states.begin(), states.end());
  return model->forward(all, {}, states.size());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(neuron, m) {
  m.class_<Model>("Model")
      .def(torch::init<std::string, at::Tensor, TensorVector, TensorVector>())
      .def("manifest", [](const c10::intrusive_ptr<Model>& self) { return self->manifest(); })
      .def("neff", [](const c10::intrusive_ptr<Model>& self) { return self->neff(); })
      .def("weights", &Model::weights)
      .def("states", &Model::states)
      .def("cores", &Model::cores)
      .def("load", &Model::load)
      .def("set_cores", &Model::set_cores)
      .def("option", &Model::option)
      .def("set_option", &Model::set_option)
      .def_pickle([](const c10::intrusive_ptr<Model>& self) { return self->get_state(); },
                  [](Model::State state) { return Model::from_state(std::move(state)); });
  // The places of tensors among inputs decide nothing, so there is one kernel for all.
  m.def("forward_v2(Tensor[] inputs, __torch__.torch.classes.neuron.Model model) -> Tensor[]",
        torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, &forward_v2));
  m.def(
      "forward_weights(Tensor[] inputs, Tensor[] weights, "
      "__torch__.torch.classes.neuron.Model model) -> Tensor[]",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, &forward_weights));
  m.def(
      "forward_states(Tensor[] inputs, Tensor(a!)[] states, "
      "__torch__.torch.classes.neuron.Model model) -> Tensor[]",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, &forward_states));
  // For methods that `trace` writes: `raise` in TorchScript knows no class of ours.
  // CONSERVATIVE: the interpreter must not leave out what returns nothing.
  m.def(torch::schema("refuse(str text) -> ()", c10::AliasAnalysisKind::CONSERVATIVE),
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                        [](std::string text) { refuse(text); }));
}

}  // namespace torch_neuronx::inference
