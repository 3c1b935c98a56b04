// The `neuron` backend of torch.distributed: what PyTorch calls, turned into `Call`s.
#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "distributed/collective.h"
#include "distributed/hosts.h"
#include "distributed/issue.h"
#include "distributed/local.h"
#include "distributed/mailbox.h"
#include "distributed/observer.h"
#include "distributed/operation.h"
#include "distributed/segment.h"

namespace torch_neuronx::distributed {

using Tensors = std::vector<at::Tensor>;

struct NeuronOptions final : c10d::Backend::Options {
  explicit NeuronOptions(std::chrono::milliseconds timeout) : Options("neuron", timeout) {}
};

// Has all groups of the process leave; called before the interpreter ends.
void close_process_groups();

class NeuronBackend final : public c10d::Backend {
 public:
  // Joins the group: called by all its ranks.
  NeuronBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::string name,
                std::chrono::milliseconds timeout);
  ~NeuronBackend() override;

  const std::string getBackendName() const override { return "neuron"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  const c10::intrusive_ptr<NeuronOptions>& options() const { return options_; }
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& opts) override;
  c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                    const c10::intrusive_ptr<Options>& opts, const int& rank,
                                    const int& size) override;
  void waitForPendingWorks() override;
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  void enableCollectivesTiming() override {}  // durations are always known
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;
  // At the end of the process, whatever is under way: no thread is left that needs the interpreter.
  void leave();

 private:
  WorkPtr issue(Request request);
  using Done = std::function<void(const std::exception_ptr&, int)>;
  struct TwoWays;
  std::shared_ptr<Transfer> receive_from_all_hosts(const Parcel& parcel, const Done& done);
  WorkPtr transfer(c10d::OpType type, const Tensors& tensors, int peer, int tag);
  void begin_transfer(Parcel parcel, bool is_send, Operation& operation, const Done& done);
  // `init_process_group()` without a name makes gloo the default of a group that has no gloo, and
  // clients (DDP's logger) then ask for it; "cpu:gloo,neuron:neuron" leaves a group without a
  // default, so that hooks can't be found. The first collective sets that right: before, PyTorch
  // doesn't tell a backend its group.
  void become_default();
  // Has the completion hook told of an operation, if there is one. Before it is queued.
  void report(const std::shared_ptr<Operation>& operation, c10d::OpType type, uint64_t sequence);
  void execute(const Call& call);
  void run(const Call& call);
  void connect_hosts();

  const c10::intrusive_ptr<NeuronOptions> options_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::shared_ptr<Segment> shared_segment_;
  Segment& segment_;
  const std::shared_ptr<Mailbox> mailbox_;
  Local local_;
  std::unique_ptr<Hosts> hosts_;  // null if all ranks are on one
  uint64_t sequence_ = 0;
  std::once_flag became_default_;
  std::mutex issue_mutex_;
  bool coalescing_ = false;
  std::vector<std::shared_ptr<Operation>> coalesced_;
  std::shared_ptr<Observer> observer_;  // null without a completion hook
  std::atomic<bool> closed_{false};
  Queue queue_;  // last: its thread uses the rest
};

}  // namespace torch_neuronx::distributed
