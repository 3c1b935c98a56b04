// Which ranks of a group are on which host, and who carries what between hosts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torch_neuronx::distributed {

/// Hosts are numbered by their lowest rank, the ranks of a host by their rank in the group.
class Topology {
 public:
  /// `host_of_rank[r]` tells the hosts apart, in any words; `name_of_rank[r]` is what errors call
  /// the host of rank r, if they should call it otherwise. Throws c10::Error for a rank that is not
  /// in the list.
  Topology(int rank, const std::vector<std::string>& host_of_rank,
           const std::vector<std::string>& name_of_rank = {});

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(host_of_.size()); }
  int hosts() const { return static_cast<int>(ranks_of_.size()); }
  int host() const { return host_of(rank_); }
  int local() const { return local_of(rank_); }
  int host_of(int rank) const { return host_of_.at(rank); }
  /// Position of `rank` among the ranks of its host.
  int local_of(int rank) const { return local_of_.at(rank); }
  const std::vector<int>& ranks_of(int host) const { return ranks_of_.at(host); }
  const std::vector<int>& neighbours() const { return ranks_of(host()); }
  /// The smallest number of ranks on any host: so many ranks of every host have a counterpart, with
  /// the same local number, on every other.
  int lanes() const { return lanes_; }
  bool is_leader() const { return local() == 0; }
  int leader_of(int host) const { return ranks_of(host).front(); }
  /// "rank 3 (host b)"
  std::string describe(int rank) const;

 private:
  int rank_;
  int lanes_ = 0;
  std::vector<int> host_of_, local_of_;
  std::vector<std::vector<int>> ranks_of_;
  std::vector<std::string> names_;  // by rank
};

/// Elements [begin, end) of the block that belongs to `owner`, carried by `carrier`, a rank of
/// another host: it computes their partial result, or receives them for all ranks of its host.
struct Piece {
  int owner, carrier;
  int64_t begin, end;
};

/// Splits the blocks of all ranks of host `owners` evenly over the ranks of host `carriers`.
/// `blocks[r]` is the number of elements in the block of rank r. The blocks are one sequence, in
/// order of rank, and every carrier gets an equal part of it but at least `minimum` elements, so
/// that between hosts with as many ranks a rank talks to its counterpart only, and little is
/// carried by the first rank alone. No piece is longer than `chunk`, and none crosses a multiple of
/// `chunk` in its block. In order of owner and begin; empty blocks have no pieces.
std::vector<Piece> split_blocks(const Topology& topology, const std::vector<int64_t>& blocks,
                                int owners, int carriers, int64_t minimum, int64_t chunk);

/// Sizes of `parts` blocks of equal length that hold `count` elements; the last ones are shorter.
std::vector<int64_t> equal_blocks(int64_t count, int parts);

}  // namespace torch_neuronx::distributed
