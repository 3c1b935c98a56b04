// A part of a job's store that no group before has written to.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace torch_neuronx::distributed {

// The same ranks may make a group of the same name again, on a store that still has what they, or
// processes that are gone, wrote the first time: destroy_process_group and init_process_group, or
// torchrun with --max-restarts, which keeps one store. All ranks call this at once. Each writes a
// new random word, reads everybody's, and writes down what it has read, until all have read the
// same; that names the part. An old word can't survive, as nobody who read it has read all new
// ones.
c10::intrusive_ptr<c10d::Store> fresh_store(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, std::chrono::milliseconds timeout);

// Waits until all ranks of a group of `size` have written, keys[i] being of rank `first` + i; says
// which of them have not when the time is up.
void await_ranks(c10d::Store& store, const std::vector<std::string>& keys, int size,
                 std::chrono::milliseconds timeout, int first = 0);

}  // namespace torch_neuronx::distributed
