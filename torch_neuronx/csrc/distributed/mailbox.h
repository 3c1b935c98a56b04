// Messages between two ranks of one host: send, receive, receive from any.
//
// A message up to 896 bytes travels in an entry of the pair's ring and its sender is done at once.
// Of a larger one the entry says where it is in the sender's HBM; the receiver copies it from there
// and tells the sender. Messages of a pair with one tag are received in the order in which they
// were sent, by the receives in the order in which those were posted; other pairs, other tags and
// collectives never wait for them. A receive from any takes the message that arrived first.
//
// Whoever waits for a transfer does the mailbox's work meanwhile, so a round trip needs no other
// thread. For transfers that nobody waits for, a thread is started with the first of them that
// can't be done at once. It sleeps until a peer has news, and looks after deadlines and dead peers
// only while something is outstanding.
#pragma once

#include <c10/core/ScalarType.h>

#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "distributed/mailbox_memory.h"
#include "distributed/segment.h"
#include "program/interrupts.h"

namespace torch_neuronx::distributed {

inline constexpr int kAnySource = -1;

// What one rank asks for. `peer` is a local rank of the segment, or kAnySource.
struct Parcel {
  void* data = nullptr;  // in the HBM of one of this process's cores; not read if `bytes` is 0
  size_t bytes = 0;
  c10::ScalarType dtype = c10::ScalarType::Byte;
  std::vector<int64_t> sizes;  // for messages
  int peer = kAnySource;
  int64_t tag = 0;
  std::chrono::milliseconds timeout{0};
  // Of a receive that somebody else may take as well: whether a message may be matched with it.
  // Called with a lock held, at most once by the one who takes it. May be empty.
  std::function<bool()> claim;
  // Called once, from whichever thread finds the transfer done, without a lock: with the error or
  // null, and the local rank that a message came from. Keeps the memory alive until then.
  std::function<void(std::exception_ptr, int)> done;
};

// One parcel under way.
class Transfer {
 public:
  bool done() const { return done_.load(std::memory_order_acquire); }

 private:
  friend class Mailbox;
  enum class State : uint8_t { kPosted, kQueued, kOffered, kMatched };

  Transfer(Parcel parcel, bool is_send) : parcel_(std::move(parcel)), is_send_(is_send) {}

  Parcel parcel_;
  const bool is_send_;
  State state_ = State::kPosted;
  uint32_t claim_ = 0;   // of an offered payload
  uint64_t number_ = 0;  // of a receive, in the order of posting
  const Clock::time_point deadline_ = Clock::now() + parcel_.timeout;
  std::atomic<bool> done_{false};
};

class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  // How much of the segment's memory it needs, of zero bytes.
  static size_t bytes(int ranks) { return MailboxMemory::bytes(ranks); }

  explicit Mailbox(std::shared_ptr<Segment> segment);
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Post a transfer. What can be done at once, is; never blocks. Throw if the group is closed.
  std::shared_ptr<Transfer> send(Parcel parcel);
  std::shared_ptr<Transfer> receive(Parcel parcel);

  // Forgets a receive that no message was matched with. Its `done` is not called.
  void cancel(const std::shared_ptr<Transfer>& receive);

  // Waits until the transfer has ended, well or not, or `until` has passed; works meanwhile. Throws
  // what a handler of signals throws (Ctrl-C), nothing else.
  void attend(const Transfer& transfer, Clock::time_point until = Clock::time_point::max());

  // Ends all transfers with an error that has `reason`, and makes later ones throw it. Memory of
  // sends may be freed afterwards: what a peer is just reading will not be received.
  void abort(const std::string& reason);
  // The same, and ends the thread. Called before the last owner lets go.
  void shutdown();

 private:
  using Ptr = std::shared_ptr<Transfer>;
  using Key = std::pair<int64_t, int>;  // tag, source
  using Lock = std::unique_lock<std::mutex>;
  struct Arrival {  // that nobody has asked for yet
    Letter letter;
    std::vector<std::byte> payload;
  };
  struct Job {  // a large payload to be copied
    Ptr transfer;
    int source;
    Letter letter;
  };
  struct Finished {
    std::function<void(std::exception_ptr, int)> done;
    std::exception_ptr error;
    int source;
  };

  // Sends (mailbox_send.cpp), with the lock held.
  bool try_send(const Ptr& transfer);
  void send_queued();
  void settle();
  std::exception_ptr refused(const Transfer& transfer, const Claim& claim) const;
  void release(const Transfer& transfer);

  // Receives (mailbox_receive.cpp), with the lock held.
  bool wanted(int source) const;
  void collect_news();
  void drain();
  void drain_all();
  void drain_from(int source);
  void take_first(int source);
  void deliver(int source, const Letter& letter, const std::byte* payload);
  bool receive_unexpected(const Ptr& transfer);
  void drop(const Ptr& transfer);
  void match(const Ptr& transfer, int source, const Letter& letter, const std::byte* payload);
  void refuse(int source, const Letter& letter, const Parcel& mine);
  void react(int source, const Letter& letter);
  // Without the lock.
  std::exception_ptr copy(const Job& job);

  // With the lock held.
  void begin(const Ptr& transfer);
  bool withdraw(const Ptr& transfer);
  void finish(const Ptr& transfer, std::exception_ptr error, int source);
  void look_around();
  void publish_wants();
  void end_all(const std::string& reason);
  void check_open() const;
  // Does what can be done now. May release the lock, to copy and to call back. True if it did.
  bool work(Lock& lock);
  void call_back(Lock& lock);

  std::exception_ptr ended(const Transfer& transfer, const std::vector<int>& gone) const;
  std::exception_ptr late(const Transfer& transfer) const;
  std::string rank_name(int local_rank) const;
  std::string describe(const Transfer& transfer) const;
  bool is_gone(int local_rank) const;

  static void keep(const std::shared_ptr<Mailbox>& self);
  void wake_keeper();
  void sleep(uint32_t bell, uint32_t who, Clock::time_point until);

  const std::shared_ptr<Segment> segment_;
  const MailboxMemory memory_;
  const int rank_;  // local, as all here
  Desk& desk_;
  const bool may_spin_;

  std::mutex mutex_;
  std::string closed_;  // why nothing can be posted any more
  std::set<Ptr> outstanding_;
  std::vector<Finished> finished_;  // to be called back
  Clock::time_point next_look_ = Clock::time_point::max();
  Clock::time_point last_end_{};  // when something was outstanding last
  std::thread keeper_;
  bool keeper_idle_ = false;  // sleeps until it is woken
  bool stopping_ = false;

  uint32_t sends_ = 0;                     // outstanding
  std::map<int, std::deque<Ptr>> queued_;  // sends that found no room, by destination
  std::vector<Ptr> offered_;               // by claim
  std::vector<uint32_t> generations_;      // of claims
  std::vector<uint32_t> free_claims_;

  uint64_t receives_ = 0;                  // posted ever
  std::map<Key, std::deque<Ptr>> posted_;  // receives that wait; source may be kAnySource
  std::map<Key, std::deque<Arrival>> unexpected_;
  std::vector<uint32_t> posted_from_;  // how many, by source
  uint32_t posted_from_any_ = 0;
  std::set<int> unread_;  // sources whose ring may hold messages
  std::deque<Job> jobs_;
};

}  // namespace torch_neuronx::distributed
