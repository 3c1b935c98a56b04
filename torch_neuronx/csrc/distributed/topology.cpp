#include "distributed/topology.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

namespace torch_neuronx::distributed {

Topology::Topology(int rank, const std::vector<std::string>& host_of_rank,
                   const std::vector<std::string>& name_of_rank)
    : rank_(rank), names_(name_of_rank.empty() ? host_of_rank : name_of_rank) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < static_cast<int>(host_of_rank.size()), "rank ", rank,
                    " is not one of the ", host_of_rank.size(), " ranks of the group");
  TORCH_CHECK_VALUE(names_.size() == host_of_rank.size(), "names for ", names_.size(), " of ",
                    host_of_rank.size(), " ranks");
  std::vector<std::string> hosts;
  for (int r = 0; r < static_cast<int>(host_of_rank.size()); ++r) {
    const auto known = std::find(hosts.begin(), hosts.end(), host_of_rank[r]);
    const auto host = known - hosts.begin();
    if (known == hosts.end()) {
      hosts.push_back(host_of_rank[r]);
      ranks_of_.emplace_back();
    }
    host_of_.push_back(static_cast<int>(host));
    local_of_.push_back(static_cast<int>(ranks_of_[host].size()));
    ranks_of_[host].push_back(r);
  }
  const auto fewest = std::min_element(ranks_of_.begin(), ranks_of_.end(),
                                       [](auto& a, auto& b) { return a.size() < b.size(); });
  lanes_ = static_cast<int>(fewest->size());
}

std::string Topology::describe(int rank) const {
  return c10::str("rank ", rank, " (host ", names_.at(rank), ")");
}

std::vector<Piece> split_blocks(const Topology& topology, const std::vector<int64_t>& blocks,
                                int owners, int carriers, int64_t minimum, int64_t chunk) {
  const auto& from = topology.ranks_of(owners);
  const auto& to = topology.ranks_of(carriers);
  int64_t total = 0;
  for (int owner : from) total += blocks.at(owner);
  const auto n = static_cast<int64_t>(to.size());
  const int64_t part = std::max({(total + n - 1) / n, minimum, int64_t{1}});
  std::vector<Piece> pieces;
  int64_t start = 0;  // of the owner's block in the sequence
  for (int owner : from) {
    int64_t at = 0;
    while (at < blocks[owner]) {
      const int64_t carrier = (start + at) / part;
      const int64_t end =
          std::min({blocks[owner], (carrier + 1) * part - start, (at / chunk + 1) * chunk});
      pieces.push_back({owner, to[carrier], at, end});
      at = end;
    }
    start += blocks[owner];
  }
  return pieces;
}

std::vector<int64_t> equal_blocks(int64_t count, int parts) {
  const int64_t length = (count + parts - 1) / parts;
  std::vector<int64_t> blocks;
  for (int i = 0; i < parts; ++i) {
    blocks.push_back(std::clamp(count - i * length, int64_t{0}, length));
  }
  return blocks;
}

}  // namespace torch_neuronx::distributed
