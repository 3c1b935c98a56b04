#include "distributed/backend.h"

#include <c10/core/StorageImpl.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <set>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "device/faults.h"
#include "device/python_lock.h"
#include "device/state.h"
#include "device/stream.h"
#include "dispatch/deferred.h"
#include "distributed/announcer.h"
#include "distributed/error.h"
#include "distributed/fresh_store.h"
#include "distributed/predicted.h"
#include "gemm/probe.h"
#include "memory/allocator.h"
#include "memory/shared.h"

namespace torch_neuronx::distributed {
namespace {

using c10d::OpType;

void check_lists(const char* name, size_t given, size_t wanted) {
  TORCH_CHECK_VALUE(given == wanted, name, ": got a list of ", given, " tensors where ", wanted,
                    " are needed");
}

// Its bytes are one piece of memory and its pieces are in order of rows.
void check_contiguous(const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.is_contiguous(), name, ": tensors must be contiguous, but got strides ",
                    tensor.strides(), " for ", tensor.sizes(), "; call .contiguous() first");
}

// What is only read may lie in memory as it likes: it is copied.
at::Tensor packed(const at::Tensor& tensor) {
  const bool is_packed = tensor.layout() != at::kStrided || tensor.is_contiguous();
  return is_packed ? tensor : tensor.detach().contiguous();
}

size_t filled_bytes(const Call& call) {
  size_t filled = 0;
  for (const auto& memory : call.outputs) filled += memory.bytes;
  return filled;
}
size_t bytes_of(const Call& call) { return std::max(call.exposed_bytes(), filled_bytes(call)); }

// What a profile says about a collective.
Facts facts_of(const Call& call, const Segment& segment, int size) {
  return {{"Collective name", kind_name(call.kind)}, {"Bytes", std::to_string(bytes_of(call))},
          {"dtype", c10::toString(call.dtype)},      {"Process Group Name", segment.name()},
          {"Group size", std::to_string(size)},      {"Seq", std::to_string(call.sequence)}};
}

// What the dtype doesn't have is refused before other ranks are met: the group goes on.
void check_defined(const Call& call) {
  char nothing = 0;
  const void* inputs[] = {&nothing};
  void* outputs[] = {&nothing};
  reduce(call.reduction, call.dtype, inputs, 1, outputs, 1, 0, call.prescale, call.postscale);
}

std::mutex g_live_mutex;
std::set<NeuronBackend*>& g_live = *new std::set<NeuronBackend*>;  // groups outlive statics

}  // namespace

void close_process_groups() {
  {
    const WithoutPythonLock released;
    queue::wait_holding_locks();  // collectives whose results nobody waits for
  }
  {
    const std::lock_guard<std::mutex> lock(g_live_mutex);
    for (auto* backend : g_live) backend->leave();
  }
  Announcer::instance().stop();
}

void NeuronBackend::leave() {
  closed_ = true;
  if (!queue_.idle()) segment_.poison(segment_.rank_name(rank_) + " ends without waiting for it");
  queue_.stop();
  mailbox_->shutdown();
  if (hosts_ != nullptr) hosts_->shutdown();
}

NeuronBackend::NeuronBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                             std::string name, std::chrono::milliseconds timeout)
    : Backend(rank, size),
      options_(c10::make_intrusive<NeuronOptions>(timeout)),
      store_(fresh_store(store, rank, size, timeout)),
      shared_segment_(std::make_shared<Segment>(*store_, rank, size, std::move(name), timeout,
                                                Mailbox::bytes(size))),
      segment_(*shared_segment_),
      mailbox_(std::make_shared<Mailbox>(shared_segment_)),
      local_(segment_) {
  // What ranks compute each for itself from equal numbers is to have equal bits.
  std::vector<std::string> products;
  for (const auto& identity : segment_.ranks()) products.push_back(identity.products);
  if (size > 1) gemm::agree_with(products);
  // Now, while no thread writes to tensors: see share_arena.
  if (segment_.local_size() > 1) {
    flush_deferred();
    ensure_initialized();
    share_arena(current_device());
  }
  if (segment_.local_size() < size) connect_hosts();
  const std::lock_guard<std::mutex> lock(g_live_mutex);
  g_live.insert(this);
}

void NeuronBackend::connect_hosts() {
  std::vector<std::string> hosts;
  for (const auto& identity : segment_.ranks()) hosts.push_back(identity.host);
  const std::chrono::duration<double> timeout = options_->timeout;
  c10::intrusive_ptr<c10d::Backend> gloo;
  std::vector<std::string> names;
  {
    const pybind11::gil_scoped_acquire acquired;
    const auto connect =
        pybind11::module_::import("torch_neuronx.distributed.hosts").attr("connect");
    const pybind11::tuple made = connect(store_, rank_, size_, hosts, timeout.count());
    gloo = made[0].cast<c10::intrusive_ptr<c10d::Backend>>();
    names = made[1].cast<std::vector<std::string>>();
  }
  hosts_ = std::make_unique<Hosts>(segment_, local_, rank_, std::move(gloo), store_, names);
}

NeuronBackend::~NeuronBackend() {
  const WithoutPythonLock released;  // threads that use the group may need it to end
  {
    const std::lock_guard<std::mutex> lock(g_live_mutex);
    g_live.erase(this);
  }
  shutdown();
  queue_.stop();
}

void NeuronBackend::execute(const Call& call) {
  try {
    run(call);
  } catch (const c10::DistBackendError&) {
    throw;  // the group knows
  } catch (const std::exception& error) {
    segment_.poison(call.text() + " failed on " + segment_.rank_name(rank_) + ": " +
                    first_line(error));
    throw;
  }
}

void NeuronBackend::run(const Call& call) {
  if (hosts_ != nullptr) {
    hosts_->run(call);
  } else {
    local_.run(call);
  }
}

void NeuronBackend::become_default() {
  using Type = c10d::ProcessGroup::BackendType;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  try {
    group = c10d::resolve_process_group(segment_.name());
  } catch (const c10::Error&) {
    return;  // its maker didn't register it, or there is none
  }
  const bool is_first =
      group->getBackendType() == Type::UNDEFINED ||
      (group->getBackendType() == Type::GLOO && !group->hasBackendForDeviceType(c10::kCPU));
  if (is_first) group->setDefaultBackend(Type::CUSTOM);
}

c10::intrusive_ptr<c10d::Work> NeuronBackend::issue(Request request) {
  if (closed_) fail(kClosed, "group " + segment_.name() + " was destroyed");
  std::call_once(became_default_, [&] { become_default(); });
  // What was deferred runs now, in this thread: the collective may run in another. What the stream
  // has pending, and what is enqueued, is the operation's to wait for.
  run_deferred();
  queue::order_exchange(std::nullopt);
  auto& call = request.call;
  if (call.timeout < std::chrono::milliseconds(0)) call.timeout = options_->timeout;
  const auto device = static_cast<c10::DeviceIndex>(call.device);
  // Now, and not when the operation runs: what is enqueued behind it may wait for it. Lists of many
  // tensors expose a table, even if all tensors are empty.
  const bool has_tensors = !(call.exposed.empty() && call.outputs.empty());
  if (segment_.local_size() > 1 && has_tensors) share_arena(device);
  // Between hosts a rank may expose a part for each, and the whole.
  const size_t views = std::max(call.exposed.size(), hosts_ ? static_cast<size_t>(size_) + 1 : 0);
  if (views > kInlineViews && has_tensors) {
    const auto table =
        empty_on(device, {static_cast<int64_t>(views * sizeof(View))}, {}, at::kByte);
    call.table = {table.mutable_data_ptr(), table.nbytes()};
    request.kept.push_back(table);
  }

  const std::lock_guard<std::mutex> lock(issue_mutex_);
  if (call.kind == Kind::kAllReduce || call.kind == Kind::kReduce ||
      call.kind == Kind::kReduceScatter)
    check_defined(call);
  call.sequence = ++sequence_;
  std::shared_ptr<Completion> enqueued;
  if (queue::asynchronous()) {
    enqueued = queue::mark(current_stream(device));  // knows whether what is before it ran
  } else {
    queue::wait_current();
  }
  const bool asynchronous = request.asynchronous || coalescing_ || enqueued != nullptr ||
                            current_stream(device).id() != 0;
  auto results = request.results;
  auto kept = request.kept;
  const auto type = request.type;
  const uint64_t sequence = call.sequence;
  const size_t bytes = bytes_of(call);
  registry::Prediction* const prediction =
      predicting::asked()
          ? &prediction_of(call.kind, call.exposed_bytes(), filled_bytes(call), size_, *options_)
          : nullptr;
  std::unique_ptr<CommunicationActivity> activity;
  if (profiling())
    activity = CommunicationActivity::start(kind_name(call.kind), device, segment_.name(),
                                            facts_of(call, segment_, size_));
  auto body = [this, prediction, request = std::move(request)] {
    const Call& call = request.call;
    if (faults::armed())
      (void)faults::reach(faults::Point::kCommunication, kind_name(call.kind),
                          static_cast<c10::DeviceIndex>(call.device), call.exposed_bytes());
    request.stage_in();
    execute(request.call);
    request.stage_out();
    for (const auto& tensor : request.results)
      if (tensor.has_storage()) mark_written(*tensor.storage().unsafeGetStorageImpl());
    if (prediction != nullptr) prediction->count(call.device, 0);
  };
  auto operation = std::make_shared<Operation>(std::move(body), std::move(results), std::move(kept),
                                               device, std::move(enqueued));
  auto work = c10::make_intrusive<NeuronWork>(
      rank_, type, std::vector<std::shared_ptr<Operation>>{operation}, sequence);
  operation->profile(std::move(activity));
  operation->moves(bytes);
  report(operation, type, sequence);
  if (coalescing_) coalesced_.push_back(operation);
  if (asynchronous || !queue_.try_run_here(*operation)) {
    queue_.push(operation);
  } else {
    operation->wait();  // throws what went wrong
  }
  return work;
}

c10::intrusive_ptr<c10d::Work> NeuronBackend::broadcast(Tensors& tensors,
                                                        const c10d::BroadcastOptions& opts) {
  check_lists("broadcast", tensors.size(), 1);
  Request request(Kind::kBroadcast, OpType::BROADCAST, size_, opts.asyncOp, opts.timeout);
  request.root(opts.rootRank);
  if (rank_ == opts.rootRank) {
    request.expose(tensors[0]);
  } else {
    request.output(tensors[0]);
    request.call.elements = static_cast<uint64_t>(tensors[0].numel());
  }
  request.result(tensors[0]);
  return issue(std::move(request));
}

c10::intrusive_ptr<c10d::Work> NeuronBackend::allreduce(Tensors& tensors,
                                                        const c10d::AllreduceOptions& opts) {
  TORCH_CHECK_VALUE(!tensors.empty(), "all_reduce: no tensors");
  Request request(Kind::kAllReduce,
                  tensors.size() == 1 ? OpType::ALLREDUCE : OpType::ALLREDUCE_COALESCED, size_,
                  opts.asyncOp, opts.timeout);
  request.reduction(opts.reduceOp);
  for (const auto& tensor : tensors) {
    request.expose(tensor);
    request.result(tensor);
  }
  return issue(std::move(request));
}

c10::intrusive_ptr<c10d::Work> NeuronBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  return allreduce(tensors, opts);
}

c10::intrusive_ptr<c10d::Work> NeuronBackend::reduce(Tensors& tensors,
                                                     const c10d::ReduceOptions& opts) {
  check_lists("reduce", tensors.size(), 1);
  Request request(Kind::kReduce, OpType::REDUCE, size_, opts.asyncOp, opts.timeout);
  request.root(opts.rootRank);
  request.reduction(opts.reduceOp);
  request.expose(tensors[0]);
  request.result(tensors[0]);
  return issue(std::move(request));
}

c10::intrusive_ptr<c10d::Work> NeuronBackend::allgather(std::vector<Tensors>& outputs,
                                                        Tensors& inputs,
                                                        const c10d::AllgatherOptions& opts) {
  check_lists("all_gather", outputs.size(), inputs.size());
  const auto type = inputs.size() == 1 ? OpType::ALLGATHER : OpType::ALLGATHER_COALESCED;
  Request request(Kind::kAllGather, type, size_, opts.asyncOp, opts.timeout);
  for (size_t k = 0; k < inputs.size(); ++k) {
    check_lists("all_gather", outputs[k].size(), static_cast<size_t>(size_));
    request.expose(packed(inputs[k]));
    for (const auto& output : outputs[k]) {
      check_contiguous("all_gather", output);
      request.output(output);
      request.result(output);
    }
  }
  return issue(std::move(request));
}

c10::intrusive_ptr<c10d::Work> NeuronBackend::allgather_coalesced(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  // The lists come the other way round: outputs[rank][tensor].
  check_lists("all_gather_coalesced", outputs.size(), static_cast<size_t>(size_));
  std::vector<Tensors> by_tensor(inputs.size());
  for (const auto& of_rank : outputs) {
    check_lists("all_gather_coalesced", of_rank.size(), inputs.size());
    for (size_t k = 0; k < inputs.size(); ++k) by_tensor[k].push_back(of_rank[k]);
  }
  return allgather(by_tensor, inputs, opts);
}

c10::intrusive_ptr<c10d::Work> NeuronBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  check_lists("all_gather_into_tensor", outputs.size(), inputs.size());
  Request request(Kind::kAllGather, OpType::_ALLGATHER_BASE, size_, opts.asyncOp, opts.timeout);
  for (size_t k = 0; k < inputs.size(); ++k) {
    check_contiguous("all_gather_into_tensor", outputs[k]);
    TORCH_CHECK_TYPE(inputs[k].scalar_type() == outputs[k].scalar_type(),
                     "all_gather_into_tensor: input is ", inputs[k].scalar_type(),
                     ", but output is ", outputs[k].scalar_type());
    TORCH_CHECK_VALUE(outputs[k].numel() == inputs[k].numel() * size_,
                      "all_gather_into_tensor: output must have ", size_,
                      " times the elements of the input, but got ", outputs[k].sizes(), " and ",
                      inputs[k].sizes());
    request.expose(packed(inputs[k]));
    request.output_parts(outputs[k]);
    request.result(outputs[k]);
  }
  return issue(std::move(request));
}

c10::intrusive_ptr<c10d::Work> NeuronBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                              const c10d::AllgatherOptions& opts) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, opts);
}

c10::intrusive_ptr<c10d::Work> NeuronBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                     const c10d::GatherOptions& opts) {
  check_lists("gather", inputs.size(), 1);
  Request request(Kind::kGather, OpType::GATHER, size_, opts.asyncOp, opts.timeout);
  request.root(opts.rootRank);
  request.expose(packed(inputs[0]));
  if (rank_ == opts.rootRank) {
    check_lists("gather", outputs.size(), 1);
    check_lists("gather", outputs[0].size(), static_cast<size_t>(size_));
    for (const auto& output : outputs[0]) {
      check_contiguous("gather", output);
      request.output(output);
      request.result(output);
    }
  } else {
    TORCH_CHECK_VALUE(outputs.empty() || outputs[0].empty(),
                      "gather: only the root may give output tensors");
  }
  return issue(std::move(request));
}

c10::intrusive_ptr<c10d::Work> NeuronBackend::scatter(Tensors& outputs,
                                                      std::vector<Tensors>& inputs,
                                                      const c10d::ScatterOptions& opts) {
  check_lists("scatter", outputs.size(), 1);
  Request request(Kind::kScatter, OpType::SCATTER, size_, opts.asyncOp, opts.timeout);
  request.root(opts.rootRank);
  check_contiguous("scatter", outputs[0]);
  request.output(outputs[0]);
  request.result(outputs[0]);
  if (rank_ == opts.rootRank) {
    check_lists("scatter", inputs.size(), 1);
    check_lists("scatter", inputs[0].size(), static_cast<size_t>(size_));
    for (const auto& input : inputs[0]) request.expose(packed(input));
  } else {
    TORCH_CHECK_VALUE(inputs.empty() || inputs[0].empty(),
                      "scatter: only the root may give input tensors");
  }
  request.call.elements = 0;
  return issue(std::move(request));
}

c10::intrusive_ptr<c10d::Work> NeuronBackend::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) {
  check_lists("reduce_scatter", inputs.size(), outputs.size());
  Request request(Kind::kReduceScatter, OpType::REDUCE_SCATTER, size_, opts.asyncOp, opts.timeout);
  request.reduction(opts.reduceOp);
  for (size_t k = 0; k < outputs.size(); ++k) {
    check_lists("reduce_scatter", inputs[k].size(), static_cast<size_t>(size_));
    check_contiguous("reduce_scatter", outputs[k]);
    for (const auto& input : inputs[k]) request.expose(packed(input));
    request.output(outputs[k]);
    request.result(outputs[k]);
  }
  return issue(std::move(request));
}

c10::intrusive_ptr<c10d::Work> NeuronBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  check_lists("reduce_scatter_tensor", inputs.size(), outputs.size());
  Request request(Kind::kReduceScatter, OpType::_REDUCE_SCATTER_BASE, size_, opts.asyncOp,
                  opts.timeout);
  request.reduction(opts.reduceOp);
  for (size_t k = 0; k < outputs.size(); ++k) {
    check_contiguous("reduce_scatter_tensor", outputs[k]);
    TORCH_CHECK_TYPE(inputs[k].scalar_type() == outputs[k].scalar_type(),
                     "reduce_scatter_tensor: input is ", inputs[k].scalar_type(),
                     ", but output is ", outputs[k].scalar_type());
    TORCH_CHECK_VALUE(inputs[k].numel() == outputs[k].numel() * size_,
                      "reduce_scatter_tensor: input must have ", size_,
                      " times the elements of the output, but got ", inputs[k].sizes(), " and ",
                      outputs[k].sizes());
    request.expose_parts(packed(inputs[k]));
    request.output(outputs[k]);
    request.result(outputs[k]);
  }
  return issue(std::move(request));
}

c10::intrusive_ptr<c10d::Work> NeuronBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

c10::intrusive_ptr<c10d::Work> NeuronBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                            std::vector<int64_t>& output_splits,
                                                            std::vector<int64_t>& input_splits,
                                                            const c10d::AllToAllOptions& opts) {
  check_contiguous("all_to_all", output);
  Request request(Kind::kAllToAll, OpType::ALLTOALL_BASE, size_, opts.asyncOp, opts.timeout);
  request.expose_split(packed(input), input_splits);
  request.output_split(output, output_splits);
  request.result(output);
  return issue(std::move(request));
}

c10::intrusive_ptr<c10d::Work> NeuronBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                       const c10d::AllToAllOptions& opts) {
  check_lists("all_to_all", inputs.size(), static_cast<size_t>(size_));
  check_lists("all_to_all", outputs.size(), static_cast<size_t>(size_));
  Request request(Kind::kAllToAll, OpType::ALLTOALL, size_, opts.asyncOp, opts.timeout);
  for (const auto& input : inputs) request.expose(packed(input));
  for (const auto& output : outputs) {
    check_contiguous("all_to_all", output);
    request.output(output);
    request.result(output);
  }
  request.call.elements = 0;
  return issue(std::move(request));
}

c10::intrusive_ptr<c10d::Work> NeuronBackend::barrier(const c10d::BarrierOptions& opts) {
  Request request(Kind::kBarrier, OpType::BARRIER, size_, opts.asyncOp, opts.timeout);
  request.call.device = opts.device && opts.device->has_index() ? opts.device->index()
                        : !opts.device_ids.empty() ? static_cast<int>(opts.device_ids[0])
                                                   : current_device();
  check_device_index(request.call.device);
  return issue(std::move(request));
}

void NeuronBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool) {
  // Every rank is told of all that are missing, whether that was asked for or not.
  auto here = opts;
  here.asyncOp = true;
  auto work = barrier(here);
  static_cast<NeuronWork&>(*work).join();
}

void NeuronBackend::startCoalescing() {
  const std::lock_guard<std::mutex> lock(issue_mutex_);
  coalescing_ = true;
}

c10::intrusive_ptr<c10d::Work> NeuronBackend::endCoalescing() {
  const std::lock_guard<std::mutex> lock(issue_mutex_);
  coalescing_ = false;
  std::vector<std::shared_ptr<Operation>> operations;
  operations.swap(coalesced_);
  return c10::make_intrusive<NeuronWork>(rank_, OpType::COALESCED, std::move(operations),
                                         sequence_);
}

c10::intrusive_ptr<c10d::Backend> NeuronBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                       const std::vector<int>& ranks,
                                                       const c10::intrusive_ptr<Options>& opts) {
  for (size_t i = 0; i < ranks.size(); ++i)
    if (ranks[i] == rank_)
      return c10::make_intrusive<NeuronBackend>(store, static_cast<int>(i),
                                                static_cast<int>(ranks.size()), opts->group_name,
                                                opts->timeout);
  return nullptr;  // this rank is in none of the new groups
}

c10::intrusive_ptr<c10d::Backend> NeuronBackend::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                                       const c10::intrusive_ptr<Options>& opts,
                                                       const int& rank, const int& size) {
  return c10::make_intrusive<NeuronBackend>(store, rank, size, opts->group_name, opts->timeout);
}

void NeuronBackend::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  TORCH_CHECK(observer_ == nullptr, "the group has a completion hook already");
  observer_ = std::make_shared<Observer>(std::move(hook));
  // PyTorch only asks whether there is one.
  onCompletionHook_ = [](const std::shared_ptr<c10d::WorkInfo>&) {};
}

void NeuronBackend::report(const std::shared_ptr<Operation>& operation, OpType type,
                           uint64_t sequence) {
  if (observer_ == nullptr) return;
  observer_->expect();
  operation->when_done([observer = observer_, operation = std::weak_ptr(operation), type,
                        sequence](const std::exception_ptr& error) {
    const auto ended = operation.lock();
    std::shared_ptr<c10d::WorkInfo> info;
    if (error == nullptr && ended != nullptr) {
      const std::chrono::duration<double> lasted(ended->seconds());
      const auto end = ended->finished_at();
      info = std::make_shared<c10d::WorkInfo>(
          type, sequence, end - std::chrono::duration_cast<std::chrono::nanoseconds>(lasted), end,
          lasted);
    }
    observer->ended(info);
  });
}

void NeuronBackend::waitForPendingWorks() {
  queue_.drain();
  if (observer_ != nullptr) observer_->wait();
}

c10d::ErrorType NeuronBackend::getError() {
  return segment_.poisoned() ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

void NeuronBackend::abort() {
  closed_ = true;
  const std::string reason = segment_.rank_name(rank_) + " has aborted it";
  segment_.poison(reason);
  mailbox_->abort(segment_.poison_text());
  if (hosts_ != nullptr) hosts_->abort("group " + segment_.name() + ": " + reason);
}

void NeuronBackend::shutdown() {
  {
    const WithoutPythonLock released;
    queue::wait_holding_locks();
  }
  closed_ = true;
  queue_.drain();
  mailbox_->shutdown();
  if (hosts_ != nullptr) hosts_->shutdown();
}

}  // namespace torch_neuronx::distributed
