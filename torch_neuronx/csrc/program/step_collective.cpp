// Collectives of a program run in the process group of their name, beside the steps that follow.
#include <cstring>
#include <exception>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "device/pending.h"
#include "program/plain_dispatch.h"
#include "program/steps.h"

namespace torch_neuronx::program {

// Belongs to the frame. Its tensors keep the memory alive if the call ends before the collective
// does, because a step in between has failed.
struct InFlight {
  std::vector<at::Tensor> inputs, outs;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
};

namespace {

using Kind = CollectiveKind;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

Group resolve(const CollectiveStep& step) {
  Group group;
  try {
    group = c10d::resolve_process_group(step.group);
  } catch (const c10::Error&) {
    TORCH_CHECK_VALUE(false, "this process has no process group '", step.group, "' of ", step.size,
                      " ranks, which the program was compiled for. Compile it after "
                      "init_process_group(), and call it before destroy_process_group()");
  }
  TORCH_CHECK_VALUE(step.size == 0 || group->getSize() == step.size, "process group '", step.group,
                    "' has ", group->getSize(), " ranks; the program was compiled for ", step.size,
                    ". Compile it again in this job");
  return group;
}

// By pairs, each a message of its own; who receives nothing has zeros.
void permute(const CollectiveStep& step, const Group& group, InFlight& flight) {
  const int64_t rank = group->getRank();
  bool receives = false;
  std::vector<at::Tensor> in{flight.inputs[0]}, out{flight.outs[0]};
  for (const auto& [source, target] : step.pairs) {
    TORCH_CHECK_VALUE(source < group->getSize() && target < group->getSize(), "process group '",
                      step.group, "' has ", group->getSize(), " ranks; the program sends from ",
                      source, " to ", target);
    receives = receives || target == rank;
    if (source == rank && target == rank) {
      std::memcpy(out[0].mutable_data_ptr(), in[0].const_data_ptr(), in[0].nbytes());
    } else if (source == rank) {
      flight.works.push_back(group->send(in, static_cast<int>(target), 0));
    } else if (target == rank) {
      flight.works.push_back(group->recv(out, static_cast<int>(source), 0));
    }
  }
  if (!receives) std::memset(out[0].mutable_data_ptr(), 0, out[0].nbytes());
}

c10::intrusive_ptr<c10d::Work> reduce_all(const Group& group, InFlight& flight,
                                          const c10d::ReduceOp& op) {
  if (flight.outs.size() == 1) {
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    return group->allreduce(flight.outs, options);
  }
  c10d::AllreduceCoalescedOptions options;
  options.reduceOp = op;
  return group->allreduce_coalesced(flight.outs, options);
}

c10::intrusive_ptr<c10d::Work> start(const CollectiveStep& step, const Group& group,
                                     InFlight& flight) {
  auto &in = flight.inputs, &out = flight.outs;
  const bool one = in.size() == 1;
  c10d::ReduceOp reduction(static_cast<c10d::ReduceOp::RedOpType>(step.reduction));
  switch (step.kind) {
    case Kind::kAllReduce:
      return reduce_all(group, flight, reduction);
    case Kind::kAllGather:
      return one ? group->all_gather_single(out[0], in[0])
                 : group->all_gather_single_coalesced(out, in);
    case Kind::kReduceScatter: {
      c10d::ReduceScatterOptions options;
      options.reduceOp = reduction;
      return one ? group->reduce_scatter_single(out[0], in[0], options)
                 : group->reduce_scatter_single_coalesced(out, in, options);
    }
    case Kind::kAllToAll: {
      std::vector<int64_t> send = step.send, receive = step.receive;
      return group->all_to_all_single(out[0], in[0], receive, send);
    }
    default: {
      c10d::BroadcastOptions options;
      options.rootRank = step.root;
      return group->broadcast(out, options);
    }
  }
}

}  // namespace

void CollectiveStep::run(Frame& frame) const {
  const Group group = resolve(*this);
  auto flight = std::make_shared<InFlight>();
  const bool on_core = frame.program().on_neuron();
  const bool in_place = kind == Kind::kAllReduce || kind == Kind::kBroadcast;
  for (size_t i = 0; i < outs.size(); ++i) {
    frame.ensure(outs[i].buffer);
    if (in_place && frame.at(inputs[i]) != frame.at(outs[i])) {
      copy_view(frame.at(outs[i]), outs[i].geometry, frame.at(inputs[i]), inputs[i].geometry);
    }
    flight->inputs.push_back(frame.tensor(inputs[i], on_core));
    flight->outs.push_back(frame.tensor(outs[i], on_core));
  }
  const c10::impl::ExcludeDispatchKeyGuard guard(excluded_inside());
  const WithoutModes modes;
  if (kind == Kind::kPermute) {
    permute(*this, group, *flight);
  } else {
    flight->works.push_back(start(*this, group, *flight));
  }
  frame.in_flight(number) = std::move(flight);
}

void WaitStep::run(Frame& frame) const {
  const std::shared_ptr<InFlight> flight = std::move(frame.in_flight(start->number));
  std::exception_ptr error;
  for (const auto& work : flight->works) {
    try {
      // A process group may have done the whole at once, and say so by giving nothing.
      if (work) work->wait();
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
  // On a stream of its own a wait may only have been noted; the next step reads the memory itself.
  wait_pending_of_thread();
}

}  // namespace torch_neuronx::program
