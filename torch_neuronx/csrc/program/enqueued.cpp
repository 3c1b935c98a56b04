#include "program/enqueued.h"

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "device/profiler.h"
#include "device/state.h"
#include "dispatch/deferred.h"
#include "dispatch/op_table.h"
#include "memory/allocator.h"
#include "queue/issue.h"
#include "queue/queue.h"
#include "registry/registry.h"

namespace torch_neuronx::program {
namespace {

// References of calls that are done. The thread of a core must not ask for Python's lock, so the
// next call, which has it, gives them back.
std::mutex g_done_mutex;
std::vector<PyObject*> g_done;
void give_back_owners() {
  std::vector<PyObject*> done;
  {
    const std::lock_guard<std::mutex> lock(g_done_mutex);
    done.swap(g_done);
  }
  for (PyObject* owner : done) Py_DECREF(owner);
}

class ProgramCall final : public queue::Work {
 public:
  ProgramCall(std::shared_ptr<const Program> program, PyObject* owner)
      : owner_(Py_NewRef(owner)), program_(std::move(program)) {}

  ~ProgramCall() override {
    const std::lock_guard<std::mutex> lock(g_done_mutex);
    g_done.push_back(owner_);
  }

  void run() override {
    registry::Execution execution;
    execution.on(program_->device);
    memory.run(*program_);
  }
  std::string name() const override { return "program " + program_->name; }

  LentMemory memory;

 private:
  PyObject* const owner_;
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
  Promises promises(scratch);
  ActivityScope activity(program.name, ActivityKind::kProgram);
  activity.on(program.device);
  Frame frame(program, arguments, lent(targets_));
  frame.run({});
  if (const double value = activity.spoilt_by(); C10_UNLIKELY(value != 0)) frame.spoil(value);
}

bool is_to_be_enqueued(const Program& program, const Tensors& inputs) {
  if (!queue::asynchronous() || !program.on_neuron() || !program.may_wait) return false;
  // The handler of portability reports wants the caller's line.
  if (g_portability.load(std::memory_order_relaxed) != 0) return false;
  int64_t elements = 0;
  for (const at::Tensor& input : inputs) {
    if (!is_block_of(input, program.device)) return false;
    elements += input.numel();
  }
  return queue::busy() || elements >= queue::direct_elements();
}

Tensors enqueue(std::shared_ptr<const Program> program, PyObject* owner, const Tensors& inputs) {
  ensure_initialized();  // refuses a forked child
  give_back_owners();
  order_deferred();
  const c10::DeviceIndex core = program->device;
  auto call = std::make_unique<ProgramCall>(program, owner);
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
  queue::push(core, std::move(call));
  return results;
}

}  // namespace torch_neuronx::program
