// Collectives of a group whose ranks are on several hosts. Within a host, ranks read each other's
// memory; between hosts they send bytes. What a host needs from another travels once, split over
// its ranks, and what is summed is summed over the ranks of each host first, in order of rank, then
// over the hosts, in order of their lowest ranks. So every rank gets the same bits, whatever
// arrives when.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "distributed/network.h"
#include "distributed/partials.h"
#include "distributed/topology.h"

namespace torch_neuronx::distributed {

/// Memory of a rank.
struct Span {
  char* data = nullptr;
  size_t bytes = 0;
};

/// The ranks of this host, numbered as in Topology::local_of.
class Neighbours {
 public:
  virtual ~Neighbours() = default;
  /// Publishes memory of this rank and waits until all ranks of the host have called it. From then
  /// until close(), source() gives what they published.
  virtual void open(const Errand& errand, const std::vector<Span>& views) = 0;
  /// Memory `view` of a rank of this host. Throws unless it has `bytes` bytes.
  virtual const char* source(int local, size_t view, size_t bytes) = 0;
  /// Waits until all ranks of the host have called it.
  virtual void barrier(const Errand& errand) = 0;
  /// The same, and ends what open() began.
  virtual void close(const Errand& errand) = 0;
};

/// One block per rank of the group: pieces of one array, in order of rank and without gaps, or
/// arrays of their own.
struct Blocks {
  std::vector<char*> data;
  bool contiguous = true;

  static Blocks of(char* array, const std::vector<int64_t>& bytes);
};

/// Every rank calls the same function in the same order, from one thread. `what` is what all ranks
/// must agree upon in words ("all_reduce of 12 float32, sum"): the first ranks of the hosts
/// compare. All sizes are positive or 0; memory must not overlap unless it is the same. All throw
/// c10::DistBackendError, after which the group is of no use.
class TwoLevel {
 public:
  TwoLevel(Network& network, Neighbours& neighbours)
      : network_(network), topology_(network.topology()), neighbours_(neighbours) {}

  /// `out` may be `in`.
  void all_reduce(const Errand& errand, const Folding& folding, char* in, char* out, int64_t count);
  /// Rank r gets the sum of all ranks' blocks r, `counts[r]` elements; those of count 0 nothing.
  /// With one count that isn't 0 this is "reduce". `out` may be the own block of `in`.
  void reduce_scatter(const Errand& errand, const Folding& folding,
                      const std::vector<int64_t>& counts, const Blocks& in, char* out);
  /// All ranks get the blocks of all, `bytes[r]` of rank r. With one that isn't 0 this is
  /// "broadcast". `in` may be the own block of `out`.
  void all_gather(const Errand& errand, const std::vector<int64_t>& bytes, char* in,
                  const Blocks& out);
  /// Sends `to[r]` to rank r and receives `from[r]` from it, for every r (all_to_all), or for pairs
  /// of which one is `root` (gather, scatter). Lengths that don't fit together are an error.
  void exchange(const Errand& errand, const std::vector<Span>& to, const std::vector<Span>& from,
                int root = -1);
  void barrier(const Errand& errand);

 private:
  class Operation;
  struct Partials;

  template <class Error>
  void abandon(const Error& reason);
  template <class Body>
  void run(const Errand& errand, const Body& body);
  const char* block(int local, size_t view, const Blocks& like, const std::vector<int64_t>& offsets,
                    const std::vector<int64_t>& bytes, int rank);
  void all_reduce_small(Operation& operation, const Folding& folding, char* in, char* out,
                        int64_t count);
  Partials post_partials(Operation& operation, const Folding& folding,
                         const std::vector<int64_t>& counts);
  template <class Finished>
  void reduce_blocks(Operation& operation, Partials& partials, const Folding& folding,
                     const std::vector<int64_t>& counts, const Blocks& in, char* out,
                     const Finished& finished);

  Network& network_;
  const Topology& topology_;
  Neighbours& neighbours_;
  std::vector<at::Tensor> spare_;  // memory for partial results, from one operation to the next
};

}  // namespace torch_neuronx::distributed
