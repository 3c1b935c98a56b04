#include "distributed/symmetric.h"

#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include "device/python_lock.h"
#include "device/state.h"
#include "dispatch/deferred.h"
#include "distributed/error.h"
#include "distributed/fresh_store.h"
#include "distributed/futex.h"
#include "distributed/peer_memory.h"
#include "distributed/segment.h"
#include "memory/allocator.h"
#include "memory/shared.h"
#include "queue/queue.h"

namespace torch_neuronx::distributed {
namespace {

namespace symm = c10d::symmetric_memory;
using Word = std::atomic<uint32_t>;

// A block of HBM: the tensor's bytes, then the signal pad.
struct Allocation {
  Allocation(size_t bytes, c10::DeviceIndex index)
      : size(bytes),
        pad_offset((bytes + kQuantum - 1) / kQuantum * kQuantum),
        pad_bytes(symm::get_signal_pad_size()),
        device(index),
        data(allocate_on(index, pad_offset + pad_bytes, Category::kTensors)) {
    // It may have been freed while calls that use it were enqueued, and peers write to it at once.
    queue::wait(index);
    std::memset(pad(), 0, pad_bytes);
  }
  char* base() const { return static_cast<char*>(data.get()); }
  char* pad() const { return base() + pad_offset; }

  const size_t size, pad_offset, pad_bytes;
  const c10::DeviceIndex device;
  const c10::DataPtr data;
};

// What a rank tells the others in a rendezvous.
struct Address {
  std::string host;
  int pid = 0, fd = -1;
  size_t arena_bytes = 0, offset = 0, size = 0, pad_offset = 0, pad_bytes = 0;

  std::vector<uint8_t> packed() const {
    std::ostringstream text;
    text << pid << ' ' << fd << ' ' << arena_bytes << ' ' << offset << ' ' << size << ' '
         << pad_offset << ' ' << pad_bytes << ' ' << host;
    const std::string s = text.str();
    return {s.begin(), s.end()};
  }
  static Address unpacked(const std::vector<uint8_t>& bytes) {
    std::istringstream text(std::string(bytes.begin(), bytes.end()));
    Address a;
    text >> a.pid >> a.fd >> a.arena_bytes >> a.offset >> a.size >> a.pad_offset >> a.pad_bytes;
    std::getline(text >> std::ws, a.host);
    TORCH_CHECK(!a.host.empty(), "symmetric memory: not an address in the store");
    return a;
  }
};

struct Peer {
  std::shared_ptr<const PeerMemory> memory;  // null: ourselves
  Process process;
  void* buffer;
  void* pad;
};

class NeuronSymmetricMemory final : public symm::SymmetricMemory {
 public:
  NeuronSymmetricMemory(std::shared_ptr<Allocation> allocation, std::vector<Peer> peers, int rank,
                        std::string group)
      : allocation_(std::move(allocation)),
        peers_(std::move(peers)),
        rank_(rank),
        group_(std::move(group)) {
    for (const Peer& peer : peers_) {
      buffers_.push_back(peer.buffer);
      pads_.push_back(peer.pad);
    }
  }

  std::vector<void*> get_buffer_ptrs() override { return buffers_; }
  std::vector<void*> get_signal_pad_ptrs() override { return pads_; }
  // Device memory is host memory.
  void** get_buffer_ptrs_dev() override { return buffers_.data(); }
  void** get_signal_pad_ptrs_dev() override { return pads_.data(); }
  size_t get_buffer_size() override { return allocation_->size; }
  size_t get_offset() override { return 0; }
  bool has_multicast_support() override { return false; }
  void* get_multicast_ptr() override { return nullptr; }
  int get_rank() override { return rank_; }
  int get_world_size() override { return static_cast<int>(peers_.size()); }
  c10::Device get_device() override { return {kNeuron, allocation_->device}; }
  bool world_within_direct_access() override { return true; }

  void barrier(int channel, size_t timeout_ms) override {
    const Turn turn(*this, "barrier", channel, timeout_ms);
    for (int r = 0; r < get_world_size(); ++r)
      if (r != rank_) turn.change(r, word(r, channel, rank_), 0, 1);
    for (int r = 0; r < get_world_size(); ++r)
      if (r != rank_) turn.change(r, word(rank_, channel, r), 1, 0);
  }
  void put_signal(int dst, int channel, size_t timeout_ms) override {
    const Turn turn(*this, "put_signal", channel, timeout_ms);
    turn.change(dst, word(dst, channel, rank_), 0, 1);
  }
  void wait_signal(int src, int channel, size_t timeout_ms) override {
    const Turn turn(*this, "wait_signal", channel, timeout_ms);
    turn.change(src, word(rank_, channel, src), 1, 0);
  }

 private:
  // The word of `owner`'s pad that `from` sets and `owner` clears.
  Word& word(int owner, int channel, int from) const {
    const auto ranks = static_cast<int64_t>(peers_.size());
    TORCH_CHECK_VALUE(owner >= 0 && owner < ranks && from >= 0 && from < ranks,
                      "symmetric memory: no such rank in group ", group_, " of ", ranks);
    const auto index = static_cast<int64_t>(channel) * ranks + from;
    TORCH_CHECK_VALUE(
        channel >= 0 && static_cast<size_t>(index + 1) * sizeof(Word) <= allocation_->pad_bytes,
        "symmetric memory: the signal pad of ", allocation_->pad_bytes, " bytes has no channel ",
        channel, " for ", ranks, " ranks");
    return static_cast<Word*>(pads_[static_cast<size_t>(owner)])[index];
  }

  // One act of synchronization: what was issued before it has run, and nobody waits in vain.
  class Turn {
   public:
    Turn(const NeuronSymmetricMemory& memory, const char* name, int channel, size_t timeout_ms)
        : memory_(memory),
          name_(name),
          channel_(channel),
          timeout_ms_(timeout_ms),
          end_(timeout_ms == 0 ? Clock::time_point::max()
                               : Clock::now() + std::chrono::milliseconds(timeout_ms)) {
      flush_deferred();
    }
    void change(int peer, Word& word, uint32_t from, uint32_t to) const {
      const WithoutPythonLock released;
      for (;;) {
        uint32_t seen = from;
        if (word.compare_exchange_strong(seen, to, std::memory_order_acq_rel)) break;
        const auto now = Clock::now();
        if (memory_.peers_[static_cast<size_t>(peer)].process.has_ended())
          fail(kPeerLost, text(peer) + " has ended");
        if (now >= end_)
          fail(kTimeout, text(peer) + " did not answer in " + std::to_string(timeout_ms_) + " ms");
        futex_wait_until(word, seen, std::min(end_, now + std::chrono::milliseconds(100)));
      }
      futex_wake(word);
    }

   private:
    std::string text(int peer) const {
      return std::string(name_) + " of symmetric memory, group " + memory_.group_ + ", channel " +
             std::to_string(channel_) + ": rank " + std::to_string(peer);
    }
    const NeuronSymmetricMemory& memory_;
    const char* const name_;
    const int channel_;
    const size_t timeout_ms_;
    const Clock::time_point end_;
  };

  const std::shared_ptr<Allocation> allocation_;
  const std::vector<Peer> peers_;
  const int rank_;
  const std::string group_;
  std::vector<void*> buffers_, pads_;
};

class NeuronSymmetricAllocator final : public symm::SymmetricMemoryAllocator {
 public:
  void* alloc(size_t size, int device, const std::optional<std::string>& group) override {
    // A device without an index comes as -1.
    const auto index = resolve_device_index(static_cast<c10::DeviceIndex>(device));
    share_arena(index);
    auto allocation = std::make_shared<Allocation>(size, index);
    const std::lock_guard<std::mutex> lock(mutex_);
    void* const ptr = allocation->base();
    entries_[ptr] = {std::move(allocation), group, {}};
    return ptr;
  }

  void free(void* ptr) override {
    Entry dropped;  // destroyed after the lock is released
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = entries_.find(ptr);
    if (it == entries_.end()) return;
    dropped = std::move(it->second);
    entries_.erase(it);
  }

  size_t get_alloc_size(void* ptr) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = entries_.find(ptr);
    TORCH_CHECK(it != entries_.end(), "not the start of an allocation of symmetric memory");
    return it->second.allocation->size;
  }

  c10::intrusive_ptr<symm::SymmetricMemory> rendezvous(
      void* ptr, const std::optional<std::string>& group_name) override {
    std::shared_ptr<Allocation> allocation;
    std::string group;
    uint64_t number = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto it = entries_.find(ptr);
      if (it == entries_.end()) return nullptr;  // how PyTorch asks whether a tensor is one
      const auto& named = group_name ? group_name : it->second.group;
      TORCH_CHECK_VALUE(named, "symmetric memory: rendezvous needs the name of a group");
      group = *named;
      const auto known = it->second.meetings.find(group);
      if (known != it->second.meetings.end()) return known->second;
      allocation = it->second.allocation;
      number = ++rendezvous_[group];
    }
    auto met = meet(allocation, group, number);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = entries_.find(ptr);
    if (it != entries_.end()) it->second.meetings[group] = met;
    return met;
  }

  bool has_multicast_support(int) override { return false; }
  c10::DeviceType supported_device_type() override { return kNeuron; }
  std::string name() override { return "NEURON"; }
  bool has_allocation(void* ptr) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return entries_.count(ptr) > 0;
  }

 private:
  struct Entry {
    std::shared_ptr<Allocation> allocation;
    std::optional<std::string> group;
    std::map<std::string, c10::intrusive_ptr<symm::SymmetricMemory>> meetings;
  };

  static c10::intrusive_ptr<symm::SymmetricMemory> meet(
      const std::shared_ptr<Allocation>& allocation, const std::string& group, uint64_t number) {
    const WithoutPythonLock released;
    const auto ranks = c10d::resolve_process_group(group);
    const symm::GroupInfo info{ranks->getRank(), ranks->getSize(), ranks->getStore()};
    const SharedArena arena = share_arena(allocation->device);
    const Address mine{host_identity(),
                       getpid(),
                       arena.fd,
                       arena.bytes,
                       static_cast<size_t>(allocation->base() - arena.base),
                       allocation->size,
                       allocation->pad_offset,
                       allocation->pad_bytes};
    // The store may have what ranks wrote before a restart, under the same numbers.
    const std::string prefix = "torch_neuronx/symmetric/" + group + "/" + std::to_string(number);
    const auto store = fresh_store(c10::make_intrusive<c10d::PrefixStore>(prefix, info.store),
                                   info.rank, info.world_size, info.store->getTimeout());
    const auto key = [](int rank) { return std::to_string(rank); };
    store->set(key(info.rank), mine.packed());
    std::vector<Peer> peers;
    for (int r = 0; r < info.world_size; ++r) {
      const Address theirs = r == info.rank ? mine : Address::unpacked(store->get(key(r)));
      const auto name = [&] { return "symmetric memory, group " + group + ": rank "; };
      if (theirs.host != mine.host)
        fail(kInvalid, name() + std::to_string(r) + " is on another host than rank " +
                           std::to_string(info.rank) + ", whose memory it can't read");
      if (theirs.size != mine.size || theirs.pad_bytes != mine.pad_bytes)
        fail(kInvalid, name() + std::to_string(r) + " has " + std::to_string(theirs.size) +
                           " bytes, but rank " + std::to_string(info.rank) + " has " +
                           std::to_string(mine.size));
      std::shared_ptr<const PeerMemory> memory;
      char* base = arena.base;
      if (r != info.rank) {
        memory = PeerMemory::of(theirs.pid, theirs.fd, theirs.arena_bytes);
        base = reinterpret_cast<char*>(memory->base());
      }
      char* const buffer = base + theirs.offset;
      peers.push_back({std::move(memory), Process(theirs.pid), buffer, buffer + theirs.pad_offset});
    }
    return c10::make_intrusive<NeuronSymmetricMemory>(allocation, std::move(peers), info.rank,
                                                      group);
  }

  std::mutex mutex_;
  std::map<void*, Entry> entries_;
  std::map<std::string, uint64_t> rendezvous_;  // how many each group has had
};

}  // namespace

void register_symmetric_memory() {
  symm::register_allocator(kNeuron, c10::make_intrusive<NeuronSymmetricAllocator>());
}

}  // namespace torch_neuronx::distributed
