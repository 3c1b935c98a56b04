#include "distributed/network.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "distributed/error.h"

namespace torch_neuronx::distributed {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTick{50};        // how often a wait looks around
constexpr milliseconds kStoreTick{500};  // how often it asks the store
constexpr milliseconds kStoreTimeout{5000};
constexpr milliseconds kGrace{1000};
constexpr int kUnused = 0x7fffffff;  // a tag that nobody sends with
constexpr const char* kObituary = "neuron_failed";

// gloo's waits cannot be polled: their time limit closes every connection of the group. But abort()
// makes a wait return and leaves the transfer as it is, so that one can look around and wait again.
// One thread of the process does that for all who wait.
class Ticker {
 public:
  static Ticker& instance() {
    // Never destroyed: its thread may outlive static destruction.
    static auto* ticker = new Ticker;
    return *ticker;
  }

  void add(c10d::Work* work) {
    std::lock_guard lock(mutex_);
    waiting_.push_back(work);
    if (idle_) {
      idle_ = false;
      if (!std::exchange(started_, true)) {
        std::thread([this] { run(); }).detach();
      }
      wake_.notify_one();
    }
  }

  void remove(c10d::Work* work) {
    std::lock_guard lock(mutex_);
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), work));
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    int quiet = 0;
    while (true) {
      wake_.wait_for(lock, kTick, [] { return false; });
      for (auto* work : waiting_) work->abort();
      // Sleeping only after a while without anyone keeps short waits from waking this thread.
      quiet = waiting_.empty() ? quiet + 1 : 0;
      if (quiet > 40) {
        idle_ = true;
        wake_.wait(lock, [this] { return !idle_; });
        quiet = 0;
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<c10d::Work*> waiting_;
  bool idle_ = true, started_ = false;
};

struct Ticking {
  explicit Ticking(c10d::Work& work) : work(&work) { Ticker::instance().add(&work); }
  ~Ticking() { Ticker::instance().remove(work); }
  Ticking(const Ticking&) = delete;
  Ticking& operator=(const Ticking&) = delete;
  c10d::Work* work;
};

}  // namespace

Network::Network(c10::intrusive_ptr<c10d::Backend> gloo,
                 const c10::intrusive_ptr<c10d::Store>& store, Topology topology)
    : gloo_(std::move(gloo)), store_(store->clone()), topology_(std::move(topology)) {
  TORCH_CHECK_VALUE(gloo_->getSize() == topology_.size() && gloo_->getRank() == topology_.rank(),
                    "the group between hosts has rank ", gloo_->getRank(), " of ", gloo_->getSize(),
                    ", the group itself rank ", topology_.rank(), " of ", topology_.size());
  store_->setTimeout(kStoreTimeout);
}

std::string Network::announce(const std::string& what) noexcept {
  try {
    const auto word =
        store_->compareSet(kObituary, {}, std::vector<uint8_t>(what.begin(), what.end()));
    if (!word.empty()) return {word.begin(), word.end()};
  } catch (const std::exception&) {
    // The store's host may be the one that is gone. Others learn from their connections then.
  }
  return what;
}

std::string Network::announced() noexcept {
  try {
    if (!store_->check({kObituary})) return {};
    const auto word = store_->get(kObituary);
    return {word.begin(), word.end()};
  } catch (const std::exception&) {
    // The store's host may be the one that is gone. Connections and the deadline still tell.
    return {};
  }
}

void Network::close() noexcept {
  // A time limit of gloo's that passes is what closes connections (see Ticker).
  for (int peer = 0; peer < topology_.size(); ++peer) {
    if (topology_.host_of(peer) == topology_.host()) continue;
    try {
      uint8_t byte = 0;
      std::vector<at::Tensor> nothing{at::from_blob(&byte, {1}, at::kByte)};
      gloo_->recv(nothing, peer, kUnused)->wait(milliseconds(1));
    } catch (const std::exception&) {
      return;  // as intended: it passed, or the connections were closed before
    }
  }
}

uint64_t Network::hash(uint64_t start, std::string_view text) {
  // FNV-1a: the same on every host, whatever its C++ library.
  uint64_t hash = 0xcbf29ce484222325 ^ start;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

int Network::data_tag(uint64_t number, std::string_view agreement) {
  const uint64_t all = hash(number, agreement);
  return kData + static_cast<int>((all ^ all >> 32) % kData);
}

void Network::fail(int peer, const Errand& errand, const std::string& reason) {
  // A connection that breaks is often the consequence of another failure, whose cause may still be
  // on its way: from a neighbour (check), or from another host.
  for (const auto until = Clock::now() + kGrace; Clock::now() < until;) {
    if (errand.check) errand.check();
    throw_if_announced();
    std::this_thread::sleep_for(kTick);
  }
  raise(kPeerLost, errand.describe() + " can't finish: " + topology_.describe(topology_.rank()) +
                       " lost the connection to " + name_of(peer) +
                       "; its process has ended, or the network between them (" + reason + ")");
}

void Network::raise(const char* status, const std::string& text) {
  try {
    distributed::fail(status, text);
  } catch (const c10::DistBackendError& error) {
    const auto word = announce(first_line(error));
    if (word == first_line(error)) throw;
    C10_THROW_ERROR(DistBackendError, word);
  }
}

void Network::throw_if_announced() {
  if (auto word = announced(); !word.empty()) C10_THROW_ERROR(DistBackendError, word);
}

std::string Network::name_of(int peer) const {
  return peer < 0 ? "any rank of another host" : topology_.describe(peer);
}

bool Network::wait_a_moment(c10d::Work& work) {
  const Ticking ticking(work);
  // No limit of gloo's own (see Ticker); a day is as good as none and cannot overflow.
  return work.wait(std::chrono::hours(24));
}

void Network::wait(c10d::Work& work, int peer, const Errand& errand) {
  const auto started = Clock::now();
  auto asked = started;
  while (true) {
    bool done = false;
    try {
      done = wait_a_moment(work);
    } catch (const std::exception& error) {
      fail(peer, errand, first_line(error));
    }
    if (done) return;
    if (errand.check) errand.check();
    const auto now = Clock::now();
    if (now >= errand.deadline) {
      throw_if_announced();
      const std::chrono::duration<double> waited = now - started;
      raise(kTimeout,
            c10::str(errand.describe(), " timed out: ", topology_.describe(topology_.rank()),
                     " waited for ", name_of(peer), " for ", waited.count(), " s"));
    }
    if (now - asked >= kStoreTick) {
      asked = now;
      throw_if_announced();
    }
  }
}

size_t Transfers::post(int peer, int tag, char* data, size_t bytes, bool outgoing) {
  Transfer transfer{peer, {}};
  for (size_t at = 0; at < bytes; at += kLargest) {
    const auto length = static_cast<int64_t>(std::min(kLargest, bytes - at));
    std::vector<at::Tensor> tensors{at::from_blob(data + at, {length}, at::kByte)};
    try {
      auto& gloo = network_.gloo();
      transfer.works.push_back(outgoing ? gloo.send(tensors, peer, tag)
                                        : gloo.recv(tensors, peer, tag));
    } catch (const std::exception& error) {
      network_.fail(peer, errand_, first_line(error));
    }
  }
  transfers_.push_back(std::move(transfer));
  return transfers_.size() - 1;
}

size_t Transfers::send(int peer, int tag, const void* data, size_t bytes) {
  return post(peer, tag, static_cast<char*>(const_cast<void*>(data)), bytes, true);
}

size_t Transfers::receive(int peer, int tag, void* data, size_t bytes) {
  return post(peer, tag, static_cast<char*>(data), bytes, false);
}

void Transfers::wait(size_t ticket) {
  auto& transfer = transfers_.at(ticket);
  for (auto& work : transfer.works) network_.wait(*work, transfer.peer, errand_);
  transfer.works.clear();
}

void Transfers::wait_all() {
  for (size_t i = 0; i < transfers_.size(); ++i) wait(i);
}

}  // namespace torch_neuronx::distributed
