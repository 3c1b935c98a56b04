// The memory that the ranks of a group on one host share to talk to each other.
//
// One file without a name (memfd, readable by the user alone), made by the host's first rank and
// opened by the others through /proc, after the job's store told them where it is and a random
// token in it was compared. Nothing of it is in a file system, so nothing is left behind, however
// the processes end. Tensors don't pass through it: ranks map each other's HBM (memory/shared.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "device/state.h"
#include "distributed/error.h"
#include "distributed/futex.h"
#include "distributed/peer_memory.h"
#include "distributed/process.h"
#include "program/interrupts.h"

namespace torch_neuronx::distributed {

inline constexpr size_t kInlineBytes = 4096;  // of a payload that travels in the slot itself
inline constexpr size_t kInlineViews = 64;    // longer lists are put into the rank's HBM
inline constexpr int kMaxDims = 6;

// A piece of a rank's HBM, as its peers find it.
struct View {
  int32_t device;   // a core of that rank's process; -1 for no bytes
  uint64_t offset;  // from the start of that core's HBM
  uint64_t bytes;
};

// What a rank says about the collective it has entered; ranks compare it.
struct Descriptor {
  uint64_t sequence;  // number of the collective within the group, from 1
  uint64_t elements;  // of what must be equal in all ranks
  double prescale, postscale;
  int64_t sizes[kMaxDims];  // of the first tensor, for messages
  int32_t root;             // -1 where there is none
  uint32_t views;           // how many the rank exposes
  uint8_t kind, dtype, reduction;
  int8_t dims;
  bool is_inline;  // the bytes are in the payload, one view after the other
};

struct Post {
  Descriptor descriptor;
  View views[kInlineViews];
  View table;  // where all views are, if they are more than kInlineViews
  alignas(64) std::byte payload[kInlineBytes];
};

struct alignas(128) Slot {
  std::atomic<uint64_t> arrivals;         // at barriers, since the group exists
  std::atomic<uint64_t> sequence;         // of the last collective entered
  std::atomic<int32_t> hbm[kMaxDevices];  // file descriptor + 1 of a core's HBM, 0: not shared
  std::atomic<uint64_t> hbm_bytes[kMaxDevices];
  Post posts[2];  // by parity of the sequence: one may still be read while the other is written
};

// Who a rank is; equal `host` means that memory can be shared, equal `products` that methods of
// matrix products are chosen alike (gemm::agreement).
struct RankIdentity {
  std::string products;
  std::string host;
  int pid;
};

// This process's host: boot, namespaces of network and processes, user. TORCH_NEURONX_HOST_ID
// replaces it, to have several "hosts" on one.
std::string host_identity();

class Segment {
 public:
  // Called by all ranks of a group; returns when those of this host have joined. `mailbox_bytes`
  // of zeroed memory are added for somebody else's use.
  Segment(c10d::Store& store, int rank, int size, std::string name,
          std::chrono::milliseconds timeout, size_t mailbox_bytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const std::vector<RankIdentity>& ranks() const { return ranks_; }  // of the whole group
  const std::vector<int>& members() const { return members_; }  // group ranks on this host, sorted
  int local_rank() const { return local_rank_; }
  int local_size() const { return static_cast<int>(members_.size()); }
  const std::string& name() const { return name_; }

  Slot& slot(int local_rank) { return slots_[local_rank]; }
  Slot& mine() { return slots_[local_rank_]; }
  std::byte* mailbox() { return mailbox_; }

  // Waits until all ranks of the host are here. `what` names the collective in errors; throws as
  // `Watch` does.
  void barrier(Clock::time_point deadline, c10::function_ref<std::string()> what);

  // What reaches for a local rank's memory; its error says which rank that is.
  template <class Body>
  auto of_rank(int local_rank, const Body& body) const {
    try {
      return body();
    } catch (const c10::DistBackendError& error) {
      fail_in(rank_name(members_[local_rank]), error);
    }
  }

  static constexpr std::chrono::milliseconds kLook{50};
  // What a waiting loop does now and then (at most every 50 ms; sleep no longer than that): throws
  // if the group is poisoned, one of the `missing` local ranks has ended, the deadline has passed,
  // or, on the main thread, Ctrl-C was pressed. All but the last poison the group.
  class Watch {
   public:
    Watch(Segment& segment, Clock::time_point deadline) : segment_(segment), deadline_(deadline) {}
    void look(c10::function_ref<std::vector<int>()> missing, c10::function_ref<std::string()> what);

   private:
    Segment& segment_;
    const Clock::time_point started_ = Clock::now();
    const Clock::time_point deadline_;
    Clock::time_point next_ = started_ + kLook;
    program::Interrupts interrupts_;
  };

  // Makes every wait of every rank throw `reason`, now and later. The first reason stays.
  void poison(const std::string& reason);
  bool poisoned() const;
  std::string poison_text() const;

  // Where a peer's memory is in this process. Throws if the view is not within that memory.
  std::byte* resolve(int local_rank, const View& view);
  // The view of memory of one of this process's cores. Where others are on this host, who issues
  // the collective has shared it: sharing waits for all that is enqueued, and that may wait for the
  // collective.
  View expose(const void* data, size_t bytes);

  // "rank 3", with the host where there are several.
  std::string rank_name(int group_rank) const;
  bool has_exited(int local_rank) const;

 private:
  struct Header;
  void map(int fd);
  std::vector<int> not_arrived() const;

  const std::string name_;
  std::vector<RankIdentity> ranks_;
  std::vector<int> members_;
  std::vector<Process> processes_;  // of local ranks
  int local_rank_ = -1;
  int fd_ = -1;
  size_t bytes_ = 0;
  Header* header_ = nullptr;
  Slot* slots_ = nullptr;
  std::byte* mailbox_ = nullptr;
  std::mutex peers_mutex_;
  std::vector<std::array<std::shared_ptr<const PeerMemory>, kMaxDevices>> peers_;  // by local rank
};

}  // namespace torch_neuronx::distributed
