// What operations of a group are predicted to take (dispatch/predicting.h).
#pragma once

#include <numeric>
#include <utility>
#include <vector>

#include "dispatch/predicting.h"
#include "distributed/backend.h"
#include "distributed/collective.h"

namespace torch_neuronx::distributed {

// Of a group of `size`: of the ranks that its options name, or of all of the job.
inline registry::Prediction& prediction_of(Kind kind, uint64_t read, uint64_t written, int size,
                                           const NeuronOptions& options) {
  const auto& named = options.global_ranks_in_group;
  std::vector<int> ranks(named.begin(), named.end());
  if (ranks.empty()) {
    ranks.resize(static_cast<size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  return predicting::prediction_of({kind_name(kind), read, written, std::move(ranks)});
}

}  // namespace torch_neuronx::distributed
