// Collectives between the ranks of one host. A rank posts where its tensors are; after a barrier
// every rank reads its peers' HBM directly and writes its own (and, in place, its slice of the
// others'); a second barrier lets them go on. What fits into a slot is posted itself and needs one
// barrier only. Reductions fold in the order of ranks, whoever computes them.
#pragma once

#include "distributed/collective.h"
#include "distributed/segment.h"

namespace torch_neuronx::distributed {

class Local {
 public:
  explicit Local(Segment& segment) : segment_(segment) {}

  // The whole collective, for groups that live on one host. Throws DistBackendError.
  void run(const Call& call);

  // The parts of it, for collectives that have more to do:
  // makes this rank's memory known and waits for the other ranks' of this host; compares what they
  // asked for. Until `leave`, `source` gives the peers' memory.
  void enter(const Call& call);
  // Exposed memory `index` of a local rank. Throws unless it has `bytes` bytes.
  const std::byte* source(const Call& call, int local_rank, size_t index, size_t bytes);
  // Lets the peers use their memory again. Every rank calls it.
  void leave(const Call& call);

  // True when the collective's bytes of every rank were posted themselves.
  bool all_inline() const { return all_inline_; }

 private:
  void post(const Call& call);
  void compare(const Call& call);
  void act(const Call& call);
  // A local rank's memory; if it has ended, so has the group.
  const std::byte* reach(const Call& call, int local_rank, const View& view);
  // Fills `out` with a peer's exposed memory.
  void pull(const Call& call, int local_rank, size_t index, const Memory& out);
  void gather_from(const Call& call, size_t tensors);
  void all_reduce(const Call& call);
  Post& post_of(int local_rank, uint64_t sequence) {
    return segment_.slot(local_rank).posts[sequence % 2];
  }
  std::string describe(int local_rank, const Descriptor& descriptor) const;

  Segment& segment_;
  bool all_inline_ = false;
};

}  // namespace torch_neuronx::distributed
