// Messages between ranks on different hosts: bytes over a gloo group, with a deadline, an eye on
// what else may have gone wrong meanwhile, and errors that name the peer.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "distributed/futex.h"
#include "distributed/topology.h"

namespace torch_neuronx::distributed {

/// What transfers are for: their deadline, and what errors say.
struct Errand {
  std::string text;       // "all_reduce 12 (sum, float32 [4])"
  std::string group;      // its name
  std::string agreement;  // what all ranks must ask for alike, in any form
  uint64_t number = 0;    // of the group's collectives over hosts, from 1
  Clock::time_point deadline;
  /// Throws if the operation cannot succeed any more: a neighbour died, the group was aborted.
  /// Called from waits that last, about 20 times a second. May be empty.
  std::function<void()> check;

  /// "all_reduce 12 (sum, float32 [4]) of group 0"
  std::string describe() const { return text + " of group " + group; }
};

/// The ranks of a group, as far as they are on other hosts. Any thread may use it, each through
/// Transfers of its own.
///
/// gloo matches messages by pair of ranks and tag, in order; it ends the process if one is longer
/// than what was posted for it. So tags are chosen such that messages match only if their lengths
/// do:
///
///   0 + 29 bits of the collective's number       fixed lengths: greetings, announced lengths
///   1 << 29 + hash of number and agreement       data of collectives (see data_tag)
///   1 << 30 + ...                                send and recv (remote_inbox.h)
class Network {
 public:
  /// `gloo` has all ranks of the group under the same numbers and is used for send and recv of CPU
  /// tensors only. `store` is where a rank leaves word of a failure; a clone is used, so that a
  /// caller who waits in the store doesn't hold it up.
  Network(c10::intrusive_ptr<c10d::Backend> gloo, const c10::intrusive_ptr<c10d::Store>& store,
          Topology topology);

  const Topology& topology() const { return topology_; }
  c10d::Backend& gloo() { return *gloo_; }

  /// Leaves word for all ranks that the group failed here, and why, and returns the word that
  /// stands: another rank's if it was first. Best effort: without the store (its host may be what
  /// died) others learn from their connections.
  std::string announce(const std::string& what) noexcept;

  /// The first word that was left, if any.
  std::string announced() noexcept;

  /// Waits for `work`, a transfer from or to `peer` (-1: from any). Throws c10::DistBackendError.
  void wait(c10d::Work& work, int peer, const Errand& errand);

  /// Waits until `work` is done (true) or a few milliseconds, at most 50, have passed, or somebody
  /// called its abort(). Throws what gloo throws.
  bool wait_a_moment(c10d::Work& work);

  /// Throws for a failed transfer: what another rank left word of if it did, or else that `peer` is
  /// gone.
  [[noreturn]] void fail(int peer, const Errand& errand, const std::string& reason);

  /// Announces the text and throws the word that stands.
  [[noreturn]] void raise(const char* status, const std::string& text);

  /// Closes the connections to all other hosts, whose transfers fail then. After a failure: gloo
  /// would go on trying to move what was dropped.
  void close() noexcept;

  static constexpr int kData = 1 << 29, kMessages = 1 << 30;
  static int number_tag(uint64_t number) { return static_cast<int>(number % kData); }
  static uint64_t hash(uint64_t start, std::string_view text);
  /// Ranks that don't agree don't match, and wait for what the comparison of greetings gives.
  static int data_tag(uint64_t number, std::string_view agreement);

 private:
  void throw_if_announced();
  std::string name_of(int peer) const;

  c10::intrusive_ptr<c10d::Backend> gloo_;
  c10::intrusive_ptr<c10d::Store> store_;
  Topology topology_;
};

/// Transfers of one operation. All are posted before any is waited for, so their order among ranks
/// doesn't matter; gloo's own thread moves the bytes meanwhile. Memory that was given must stay
/// until its transfer was waited for or this object is gone; what is then not done is dropped,
/// after which the connection to that peer is of no use.
class Transfers {
 public:
  Transfers(Network& network, const Errand& errand) : network_(network), errand_(errand) {}

  /// Returns a ticket for wait(). No message for 0 bytes, and several for more than `kLargest`.
  size_t send(int peer, int tag, const void* data, size_t bytes);
  size_t receive(int peer, int tag, void* data, size_t bytes);

  /// Throws c10::DistBackendError if the transfer failed or the call's deadline passed.
  void wait(size_t ticket);
  void wait_all();

  /// gloo keeps sizes in 64 bits, but not everything below it does.
  static constexpr size_t kLargest = size_t{1} << 30;

 private:
  struct Transfer {
    int peer;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
  };
  size_t post(int peer, int tag, char* data, size_t bytes, bool outgoing);

  Network& network_;
  const Errand& errand_;
  std::vector<Transfer> transfers_;
};

}  // namespace torch_neuronx::distributed
