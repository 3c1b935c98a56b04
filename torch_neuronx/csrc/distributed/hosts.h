// Collectives of a group over several hosts, as the backend asks for them.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "distributed/collective.h"
#include "distributed/courier.h"
#include "distributed/local.h"
#include "distributed/segment.h"
#include "distributed/two_level.h"

namespace torch_neuronx::distributed {

/// The ranks of this host, through their segment. A rank that is alone on its host shares nothing.
class SegmentNeighbours final : public Neighbours {
 public:
  SegmentNeighbours(Segment& segment, Local& local) : segment_(segment), local_(local) {}

  /// What the next calls are for.
  void begin(const Call& call) { call_ = call; }
  void open(const Errand& errand, const std::vector<Span>& views) override;
  const char* source(int local, size_t view, size_t bytes) override;
  void barrier(const Errand& errand) override;
  void close(const Errand& errand) override;

 private:
  bool alone() const { return segment_.local_size() == 1; }

  Segment& segment_;
  Local& local_;
  Call call_;
};

class Hosts {
 public:
  /// `gloo` and `names` are what connect() of torch_neuronx/distributed/hosts.py gave.
  Hosts(Segment& segment, Local& local, int rank, c10::intrusive_ptr<c10d::Backend> gloo,
        const c10::intrusive_ptr<c10d::Store>& store, const std::vector<std::string>& names);

  /// The whole collective. Throws c10::DistBackendError, and poisons the segment.
  void run(const Call& call);

  /// Sends and receives between hosts.
  Courier& courier() { return courier_; }

  /// Ends sends and receives; the last messages of this rank are delivered first.
  void shutdown();

  /// Makes the collectives of all ranks fail with `reason`. From any thread.
  void abort(const std::string& reason);

 private:
  void dispatch(const Call& call, Errand& errand);
  void broadcast(const Call& call, Errand& errand);
  void reduce(const Call& call, Errand& errand);
  void all_gather(const Call& call, Errand& errand);
  void reduce_scatter(const Call& call, Errand& errand);
  void exchange(const Call& call, Errand& errand);
  void agree_on(const Call& call, Errand& errand, const std::vector<int64_t>& bytes);

  Segment& segment_;
  Network network_;
  SegmentNeighbours neighbours_;
  TwoLevel group_;
  Courier courier_;
  uint64_t number_ = 0;
};

}  // namespace torch_neuronx::distributed
