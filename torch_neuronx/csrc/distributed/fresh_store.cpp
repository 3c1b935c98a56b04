#include "distributed/fresh_store.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "distributed/error.h"
#include "distributed/futex.h"
#include "distributed/network.h"
#include "distributed/random_word.h"

namespace torch_neuronx::distributed {
namespace {

using Value = std::vector<uint8_t>;

std::string digest(const std::vector<Value>& words) {
  std::string all;
  for (const auto& word : words) all.append(word.begin(), word.end());
  return std::to_string(Network::hash(0, all));
}

std::vector<std::string> keys(const char* what, int size) {
  std::vector<std::string> names;
  for (int r = 0; r < size; ++r) names.push_back(std::string("neuron_") + what + std::to_string(r));
  return names;
}

}  // namespace

void await_ranks(c10d::Store& store, const std::vector<std::string>& keys, int size,
                 std::chrono::milliseconds timeout, int first) {
  const auto error = error_of([&] { store.wait(keys, timeout); });
  if (error == nullptr) return;
  std::string missing;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (store.check({keys[i]})) continue;
    missing += (missing.empty() ? "" : ", ") + std::to_string(first + static_cast<int>(i));
  }
  if (missing.empty()) std::rethrow_exception(error);
  std::ostringstream text;
  text << "creation of a group of " << size << " timed out after "
       << std::chrono::duration<double>(timeout).count() << " s: waiting for rank " << missing;
  fail(kTimeout, text.str());
}

c10::intrusive_ptr<c10d::Store> fresh_store(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const auto words = keys("word_", size), seen = keys("seen_", size);
  const auto index = static_cast<size_t>(rank);
  const RandomWord word = random_word();
  store->set(words[index], Value(word.begin(), word.end()));
  await_ranks(*store, words, size, timeout);
  std::string mine;
  for (auto pause = std::chrono::milliseconds(1);;
       pause = std::min(2 * pause, std::chrono::milliseconds(50))) {
    const std::string now = digest(store->multiGet(words));
    if (now != mine) {
      mine = now;
      store->set(seen[index], Value(mine.begin(), mine.end()));
    }
    await_ranks(*store, seen, size, timeout);
    const auto theirs = store->multiGet(seen);
    const bool agreed = std::all_of(theirs.begin(), theirs.end(), [&](const Value& value) {
      return std::string(value.begin(), value.end()) == mine;
    });
    if (agreed) return c10::make_intrusive<c10d::PrefixStore>("neuron_group_" + mine, store);
    if (Clock::now() >= deadline)
      fail(kTimeout, "the ranks of a group of " + std::to_string(size) +
                         " did not find each other; those that have ended must be started again "
                         "together with the others");
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace torch_neuronx::distributed
