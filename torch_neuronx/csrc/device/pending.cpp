#include "device/pending.h"

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "device/python_lock.h"
#include "device/state.h"
#include "device/stream.h"
#include "dispatch/deferred.h"
#include "queue/failure.h"
#include "queue/queue.h"

namespace torch_neuronx {
namespace {

constexpr c10::StreamId kFirstPrivateStream = 1 << 20;  // far beyond those of the pools

using Key = std::pair<c10::DeviceIndex, c10::StreamId>;

Key key_of(c10::Stream stream) { return {stream.device_index(), stream.id()}; }

// Only streams with something in it have an entry. No completion is called, and none destroyed,
// under the lock: both may take locks of their own.
std::mutex g_mutex;
std::map<Key, Completions> g_pending;

void update_flag() {  // under the lock
  if (g_pending.empty()) {
    g_deferred_pending.fetch_and(~kPendingStreams, std::memory_order_release);
  } else {
    g_deferred_pending.fetch_or(kPendingStreams, std::memory_order_release);
  }
}

Completions snapshot(const Key& key) {
  std::lock_guard<std::mutex> lock(g_mutex);
  const auto it = g_pending.find(key);
  return it == g_pending.end() ? Completions{} : it->second;
}

// The stream has waited for `told`, or needs to wait for them no longer.
void forget(const Key& key, const Completions& told) {
  if (told.empty()) return;
  Completions dropped;  // destroyed after the lock is released
  std::lock_guard<std::mutex> lock(g_mutex);
  const auto it = g_pending.find(key);
  if (it == g_pending.end()) return;
  Completions kept;
  for (auto& completion : it->second) {
    const bool found = std::find(told.begin(), told.end(), completion) != told.end();
    (found ? dropped : kept).push_back(std::move(completion));
  }
  if (kept.empty()) {
    g_pending.erase(it);
  } else {
    it->second = std::move(kept);
  }
  update_flag();
}

void wait_and_forget(const std::vector<Key>& keys) {
  std::exception_ptr failure;
  for (const Key& key : keys) {
    const Completions completions = snapshot(key);
    try {
      wait_for(completions);
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
    forget(key, completions);
  }
  if (failure) std::rethrow_exception(failure);
}

template <class Wanted>
std::vector<Key> keys_where(const Wanted& wanted) {
  std::vector<Key> keys;
  std::lock_guard<std::mutex> lock(g_mutex);
  for (const auto& [key, completions] : g_pending) {
    if (wanted(key)) keys.push_back(key);
  }
  return keys;
}

// A place in the queue of a stream behind which all work waits for what others do.
class Waiting final : public queue::Work {
 public:
  explicit Waiting(Completions completions) : completions_(std::move(completions)) {}
  void run() override { wait_for(completions_); }
  // An earlier failure is to be told; what is issued after that needs the memory all the same. A
  // group that is of no use any more fails with one text as often as it is used: it is told once.
  void skip() override {
    static thread_local std::string told;
    for (const auto& completion : completions_) {
      try {
        completion->wait();
      } catch (const std::exception& error) {
        std::string text = queue::first_line(error.what());
        if (text == told) continue;
        TORCH_WARN("after an earlier failure: ", text);
        told = std::move(text);
      }
    }
  }
  std::string name() const override { return "waiting for a collective or another core"; }
  bool waits() const override { return true; }

 private:
  const Completions completions_;
};

// Has the stream wait if this thread enqueues its calls, and waits here if not.
void wait_in_order(c10::Stream stream, Completions completions) {
  const bool open = std::any_of(completions.begin(), completions.end(),
                                [](const auto& completion) { return !completion->done(); });
  if (queue::asynchronous() && (open || queue::busy(stream))) {
    queue::push(stream, std::make_unique<Waiting>(std::move(completions)));
  } else {
    wait_for(completions);
  }
}

}  // namespace

void wait_for(const Completions& completions) {
  std::exception_ptr failure;
  for (const auto& completion : completions) {
    try {
      // Not around the loop: what was thrown may hold Python objects.
      const WithoutPythonLock released;
      completion->wait();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

Completions take_settled(Completions* completions) {
  Completions settled, open;
  for (auto& completion : *completions) {
    // What failed stays: somebody who waits has to be told.
    const bool well = completion->done() && completion->went_well();
    (well ? settled : open).push_back(std::move(completion));
  }
  *completions = std::move(open);
  return settled;
}

void add_pending(c10::Stream stream, Completions completions) {
  check_device_index(stream.device_index());
  if (completions.empty()) return;
  if (stream.id() == 0 || (queue::asynchronous() && has_own_queue(stream.id()))) {
    wait_in_order(stream, std::move(completions));
    return;
  }
  // A stream on which nothing but collectives are issued would otherwise collect them for ever.
  (void)pending_of(stream);
  std::lock_guard<std::mutex> lock(g_mutex);
  Completions& list = g_pending[key_of(stream)];
  for (auto& completion : completions) {
    const bool known = std::find(list.begin(), list.end(), completion) != list.end();
    if (!known) list.push_back(std::move(completion));
  }
  update_flag();
}

void add_pending(c10::Stream stream, std::shared_ptr<Completion> completion) {
  Completions one;
  one.push_back(std::move(completion));
  add_pending(stream, std::move(one));
}

Completions pending_of(c10::Stream stream) {
  const Key key = key_of(stream);
  if (stream.id() == 0) return {};
  Completions open = snapshot(key);
  forget(key, take_settled(&open));
  return open;
}

void on_stream_with(const Completions& completions, c10::DeviceIndex device,
                    c10::function_ref<void()> body) {
  static std::atomic<c10::StreamId> next{kFirstPrivateStream};
  const c10::Stream stream(c10::Stream::UNSAFE, c10::Device(kNeuron, device), next.fetch_add(1));
  const c10::Stream previous = exchange_stream(stream);
  const auto leave = c10::make_scope_exit([&] {
    exchange_stream(previous);
    forget(key_of(stream), completions);
  });
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    g_pending[key_of(stream)] = completions;
    update_flag();
  }
  body();
}

void wait_pending(c10::Stream stream) { wait_and_forget({key_of(stream)}); }

void wait_pending(c10::DeviceIndex index) {
  if ((g_deferred_pending.load(std::memory_order_acquire) & kPendingStreams) == 0) return;
  wait_and_forget(keys_where([&](const Key& key) { return key.first == index; }));
}

void wait_pending_of_thread() {
  if (!on_side_stream()) return;
  wait_and_forget(
      keys_where([](const Key& key) { return current_stream(key.first).id() == key.second; }));
}

}  // namespace torch_neuronx
