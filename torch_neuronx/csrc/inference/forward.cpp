// One call of a traced model: checks, devices, the program, and what is returned.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "device/state.h"
#include "inference/model.h"
#include "inference/refuse.h"
#include "inference/together.h"
#include "program/call.h"
#include "program/enqueued.h"

namespace torch_neuronx::inference {
namespace {

using program::describe;

c10::Device core_device(c10::DeviceIndex core) { return {kNeuron, core}; }

std::string title(const Loaded& loaded, size_t i) {
  return c10::str("input '", loaded.names[i], "' (number ", i, ")");
}

// Where all inputs lie, if that is one core; else the CPU.
c10::Device place_of(const Loaded& loaded, at::TensorList inputs) {
  c10::Device place(c10::DeviceType::CPU);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const c10::Device device = inputs[i].device();
    if (device.is_cpu()) return {c10::DeviceType::CPU};
    require(device.is_privateuseone(), title(loaded, i),
            " must be on the CPU or on a neuron device, got one on ", device);
    require(i == 0 || device == place,
            "all inputs must be on one neuron device: ", title(loaded, 0), " is on ", place, ", ",
            title(loaded, i), " on ", device);
    place = device;
  }
  return place;
}

// A tensor with memory of its own, which programs can read.
void require_plain(const Loaded& loaded, size_t i, const at::Tensor& given) {
  const bool plain = given.layout() == at::kStrided && given.has_storage() &&
                     !given.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python);
  require(plain, title(loaded, i), " must be a plain dense tensor, got ", given.toString());
}

// The tensor as the program reads it: dense, in row-major order, on the host or on its core.
at::Tensor readable(const at::Tensor& tensor, c10::DeviceIndex core) {
  at::Tensor result = tensor;
  if (result.layout() == at::kStrided) {
    if (result.is_conj()) result = result.resolve_conj();
    if (result.is_neg()) result = result.resolve_neg();
    if (!result.is_contiguous()) result = result.contiguous();
  }
  if (result.is_privateuseone() && result.device().index() != core) {
    result = result.to(core_device(core));
  }
  return result;
}

}  // namespace

void check_inputs(const Loaded& loaded, at::TensorList inputs, bool dynamic) {
  require(inputs.size() == loaded.names.size(), "the model was traced with ", loaded.names.size(),
          " inputs, got ", inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& given = inputs[i];
    require(given.defined(), title(loaded, i), " is missing");
    require_plain(loaded, i, given);
    at::IntArrayRef sizes = given.sizes();
    const at::IntArrayRef wanted(loaded.sizes[i]);
    bool fits = given.scalar_type() == loaded.dtypes[i] && sizes.size() == wanted.size();
    if (fits && dynamic) {
      fits = !sizes.empty() && sizes.slice(1) == wanted.slice(1);
    } else if (fits) {
      fits = sizes == wanted;
    }
    if (C10_LIKELY(fits)) continue;
    refuse(c10::str(title(loaded, i), " must be ", describe(loaded.dtypes[i], wanted),
                    dynamic ? " as traced, with any first size" : " as traced", ", got ",
                    describe(given.scalar_type(), sizes),
                    dynamic ? "" : "; a traced model has fixed shapes and types"));
  }
}

TensorVector run(const Loaded& loaded, const Replica& replica, at::TensorList inputs,
                 at::TensorList weights, size_t lent) {
  const program::Program& program = *replica.program;
  const c10::Device place = place_of(loaded, inputs.slice(0, inputs.size() - lent));
  program::Tensors arguments;
  arguments.reserve(loaded.sources.size());
  for (size_t a = 0; a < loaded.sources.size(); ++a) {
    const Source source = loaded.sources[a];
    const auto index = static_cast<size_t>(source.index);
    switch (source.kind) {
      case Kind::kInput:
        arguments.push_back(readable(inputs[index], replica.core));
        program::check_argument(program, a, arguments.back());
        break;
      case Kind::kWeight:
        if (loaded.separate_weights > 0) {
          arguments.push_back(readable(weights[index], replica.core));
          program::check_argument(program, a, arguments.back());
        } else {
          arguments.push_back(replica.weights[index]);
        }
        break;
      default:
        arguments.push_back(replica.states[index]);
    }
  }
  // Inputs that are updated in place, of which the program gets a copy.
  std::vector<std::pair<size_t, at::Tensor>> written;
  for (const int32_t a : program.written_arguments) {
    const Source source = loaded.sources[static_cast<size_t>(a)];
    if (source.kind != Kind::kInput) continue;
    const auto index = static_cast<size_t>(source.index);
    const at::Tensor& given = arguments[static_cast<size_t>(a)];
    if (!given.is_same(inputs[index])) written.emplace_back(index, given);
  }
  const program::Tensors results = program::is_to_be_enqueued(program, arguments)
                                       ? program::enqueue(replica.program, replica.keep, arguments)
                                       : program::call(program, arguments);
  for (const auto& [index, copy] : written) inputs[index].copy_(copy);
  TensorVector outputs;
  outputs.reserve(loaded.outputs.size());
  for (const Output& output : loaded.outputs) {
    const auto index = static_cast<size_t>(output.source.index);
    at::Tensor tensor;
    switch (output.source.kind) {
      case Kind::kResult:
        tensor = results[index];
        break;
      case Kind::kInput:
        tensor = inputs[index];
        break;
      case Kind::kWeight:  // a copy, since the model's own must not be written to
        tensor = (loaded.separate_weights > 0 ? weights[index] : replica.weights[index]).clone();
        break;
      case Kind::kState:
        tensor = replica.states[index].clone();
        break;
    }
    if (output.is_view) {
      // Traced of a dense tensor, wherever in its storage the caller's begins.
      if (output.source.kind != Kind::kResult) tensor = tensor.contiguous();
      tensor =
          tensor.as_strided(output.sizes, output.strides, tensor.storage_offset() + output.offset);
    }
    if (tensor.device() != place) tensor = tensor.to(place);
    outputs.push_back(std::move(tensor));
  }
  return outputs;
}

namespace {

// Rows `first` to `first + rows` of a tensor, followed by zeros up to `whole` rows.
at::Tensor chunk(const at::Tensor& tensor, int64_t first, int64_t rows, int64_t whole) {
  const at::Tensor part = tensor.narrow(0, first, rows);
  if (rows == whole) return part;
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[0] = whole;
  at::Tensor padded = at::empty(sizes, tensor.options());
  padded.narrow(0, 0, rows).copy_(part);
  padded.narrow(0, rows, whole - rows).zero_();
  return padded;
}

}  // namespace

TensorVector Model::forward_in_batches(Loaded& loaded, at::TensorList inputs,
                                       at::TensorList weights) {
  check_inputs(loaded, inputs, /*dynamic=*/true);
  const int64_t batch = inputs[0].size(0), whole = loaded.sizes[0][0];
  for (size_t i = 1; i < inputs.size(); ++i) {
    require(inputs[i].size(0) == batch,
            "all inputs must have the same first size: ", title(loaded, 0), " has ", batch,
            " rows, ", title(loaded, i), " has ", inputs[i].size(0));
  }
  // Once even for no rows, which tells what the outputs are.
  const int64_t count = whole == 0 ? 1 : std::max<int64_t>(1, (batch + whole - 1) / whole);
  const size_t replicas = loaded.replicas.size();
  const size_t turn = loaded.next.fetch_add(static_cast<uint32_t>(count));
  std::vector<TensorVector> results(static_cast<size_t>(count));
  run_together(count, static_cast<int64_t>(replicas), [&](int64_t i) {
    const int64_t first = i * whole, rows = std::min(whole, batch - first);
    TensorVector chunks;
    chunks.reserve(inputs.size());
    for (const at::Tensor& input : inputs) chunks.push_back(chunk(input, first, rows, whole));
    const auto number = static_cast<size_t>(i);
    const Replica& replica = loaded.replicas[(turn + number) % replicas];
    results[number] = run(loaded, replica, chunks, weights);
    if (rows == whole) return;
    for (at::Tensor& result : results[number]) result = result.narrow(0, 0, rows);
  });
  if (count == 1) return std::move(results[0]);
  TensorVector outputs, parts(results.size());
  outputs.reserve(loaded.outputs.size());
  for (size_t i = 0; i < loaded.outputs.size(); ++i) {
    for (size_t c = 0; c < results.size(); ++c) parts[c] = std::move(results[c][i]);
    outputs.push_back(at::cat(parts));
  }
  return outputs;
}

}  // namespace torch_neuronx::inference
