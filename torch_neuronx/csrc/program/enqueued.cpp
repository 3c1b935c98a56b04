#include "program/enqueued.h"

#include <c10/util/ScopeExit.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "device/profiler.h"
#include "device/state.h"
#include "device/stream.h"
#include "dispatch/deferred.h"
#include "dispatch/op_table.h"
#include "memory/allocator.h"
#include "program/tallies.h"
#include "queue/issue.h"
#include "queue/queue.h"
#include "registry/registry.h"

namespace torch_neuronx::program {
namespace {

// What calls that are done kept alive. To give it up may need Python's lock, for which the thread
// of a core must not ask, so the next call does. Never destroyed: Python may be gone by then.
std::mutex g_done_mutex;
std::vector<Owner>& g_done = *new std::vector<Owner>;
void give_up_owners() {
  std::vector<Owner> done;  // destroyed after the lock is released
  const std::lock_guard<std::mutex> lock(g_done_mutex);
  done.swap(g_done);
}

class ProgramCall final : public queue::Work {
 public:
  ProgramCall(std::shared_ptr<const Program> program, Owner owner)
      : owner_(std::move(owner)), program_(std::move(program)) {}

  ~ProgramCall() override {
    const std::lock_guard<std::mutex> lock(g_done_mutex);
    g_done.push_back(std::move(owner_));
  }

  void run() override {
    registry::Execution execution;
    execution.on(program_->device);
    memory.run(*program_);
    add_tallies(*program_);
  }
  std::string name() const override { return "program " + program_->name; }
  bool waits() const override { return program_->collectives > 0; }

  LentMemory memory;

 private:
  Owner owner_;
  const std::shared_ptr<const Program> program_;
};

bool is_block_of(const at::Tensor& tensor, c10::DeviceIndex core) {
  if (!tensor.device().is_privateuseone() || tensor.device().index() != core) return false;
  return is_block(*tensor.storage().unsafeGetStorageImpl());
}

}  // namespace

void LentMemory::add_argument(const void* data, const void* start, size_t bytes, bool written) {
  const std::pair<void*, size_t> storage{const_cast<void*>(start), bytes};
  const auto known = std::find(storages_.begin(), storages_.end(), storage);
  arguments_.push_back({static_cast<char*>(const_cast<void*>(data)),
                        static_cast<size_t>(known - storages_.begin())});
  if (known == storages_.end()) storages_.push_back(storage);
  if (written && start != nullptr) written_.push_back(start);
}

void LentMemory::add_result(const void* start, size_t bytes, bool on_core) {
  storages_.emplace_back(const_cast<void*>(start), bytes);
  targets_.push_back({static_cast<char*>(const_cast<void*>(start)), storages_.size() - 1});
  if (start != nullptr && on_core) written_.push_back(start);
}

void LentMemory::run(const Program& program) {
  c10::SmallVector<c10::Storage, 8> storages;
  for (const auto& [start, bytes] : storages_)
    storages.push_back(borrow_storage(start, bytes, program.device));
  const auto lent = [&](const c10::SmallVector<Place, 8>& all) {
    c10::SmallVector<Argument, 8> given;
    for (const auto& [data, storage] : all)
      given.push_back({data, storages[storage].unsafeGetStorageImpl(), true});
    return given;
  };
  auto arguments = lent(arguments_);
  unsettle_shared_memory(program, arguments);
  // Caches that were made from what is written must notice, even if a later step failed.
  const auto mark = c10::make_scope_exit([&] {
    for (const void* block : written_) mark_written(block);
  });
  const GivenDraws given(program.draws ? &draws : nullptr);
  Promises promises(scratch);
  ActivityScope activity(program.name, ActivityKind::kProgram);
  activity.on(program.device);
  Frame frame(program, arguments, lent(targets_));
  frame.run({});
  if (const double value = activity.spoilt_by(); C10_UNLIKELY(value != 0)) frame.spoil(value);
}

bool is_to_be_enqueued(const Program& program, const Tensors& inputs) {
  if (!queue::asynchronous() || !program.on_neuron() || !program.may_wait) return false;
  if (program.draws && program.known_draws.load() < 0) return false;
  // The handler of portability reports wants the caller's line.
  if (g_portability.load(std::memory_order_relaxed) != 0) return false;
  int64_t elements = 0;
  for (const at::Tensor& input : inputs) {
    if (!is_block_of(input, program.device)) return false;
    elements += input.numel();
  }
  return queue::busy() || elements >= queue::direct_elements();
}

Owner owner_of(PyObject* object) {
  return {Py_NewRef(object), [](PyObject* kept) {
            const pybind11::gil_scoped_acquire gil;
            Py_DECREF(kept);
          }};
}

Tensors enqueue(std::shared_ptr<const Program> program, Owner owner, const Tensors& inputs) {
  ensure_initialized();  // refuses a forked child
  give_up_owners();
  order_deferred();
  const c10::DeviceIndex core = program->device;
  auto call = std::make_unique<ProgramCall>(program, std::move(owner));
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool written = program->buffers[program->arguments[i]].written;
    if (written) (void)inputs[i].mutable_data_ptr();  // makes a lazy copy real
    const auto* storage = inputs[i].storage().unsafeGetStorageImpl();
    call->memory.add_argument(inputs[i].const_data_ptr(), storage->data(), storage->nbytes(),
                              written);
  }
  std::vector<at::Tensor> outputs(program->buffers.size());
  for (const int32_t buffer : program->outputs) {
    outputs[buffer] = make_tensor(program->buffers[buffer].geometry, core);
    const auto* storage = outputs[buffer].storage().unsafeGetStorageImpl();
    call->memory.add_result(storage->data(), storage->nbytes());
  }
  if (program->draws) {
    const auto draws = static_cast<uint64_t>(program->known_draws.load());
    call->memory.draws = take_draws(default_generator(core), draws);
  }
  c10::DataPtr scratch;  // freed behind the call: the next one may have it
  if (program->scratch_bytes > 0) {
    const auto bytes = static_cast<size_t>(program->scratch_bytes);
    scratch = allocate_on(core, bytes, Category::kScratchpad);
    call->memory.scratch.push_back({scratch.get(), bytes});
  }
  Tensors results;
  for (const int32_t buffer : program->results) {
    const Buffer& facts = program->buffers[buffer];
    results.push_back(facts.kind == BufferKind::kInput ? inputs[facts.index] : outputs[buffer]);
  }
  const c10::Stream stream = current_stream(core);
  const bool exchanges = program->collectives > 0;
  if (exchanges) queue::order_exchange(stream);
  queue::push(stream, std::move(call));
  if (exchanges) queue::note_exchange(stream);
  for (const at::Tensor& input : inputs)
    use_on(stream, input.storage().unsafeGetStorageImpl()->data());
  return results;
}

}  // namespace torch_neuronx::program
