#include "distributed/mailbox.h"

#include <c10/util/ScopeExit.h>
#include <pthread.h>

#include <algorithm>
#include <sstream>

#include "device/relax.h"
#include "distributed/error.h"
#include "distributed/tensor_text.h"
#include "memory/host_limits.h"

namespace torch_neuronx::distributed {
namespace {

// Deadlines and ended processes are looked for this often while something is outstanding.
constexpr std::chrono::milliseconds kLookEvery{100};
// The keeper goes on looking for so long before it sleeps until it is called.
constexpr std::chrono::seconds kKeeperIdle{1};
// Where every rank has a core of its own, news are waited for this long before sleeping: the cost
// of being put to sleep and woken.
constexpr int kSpins = 400;

// Counts a thread in while it lives.
class Counted {
 public:
  explicit Counted(std::atomic<uint32_t>& count) : count_(count) { count_.fetch_add(1); }
  ~Counted() { count_.fetch_sub(1); }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<uint32_t>& count_;
};

}  // namespace

Mailbox::Mailbox(std::shared_ptr<Segment> segment)
    : segment_(std::move(segment)),
      memory_{segment_->mailbox(), segment_->local_size()},
      rank_(segment_->local_rank()),
      desk_(memory_.desk(rank_)),
      may_spin_(static_cast<size_t>(memory_.ranks) <= host_processors()),
      offered_(kClaims),
      generations_(kClaims),
      posted_from_(static_cast<size_t>(memory_.ranks)) {
  TORCH_CHECK(memory_.ranks <= kMaxMailboxRanks, "at most ", kMaxMailboxRanks,
              " ranks of one host can send each other messages");
  for (uint32_t claim = kClaims; claim > 0; --claim) free_claims_.push_back(claim - 1);
}

void Mailbox::check_open() const {
  if (!closed_.empty()) fail(kClosed, closed_);
  if (segment_->poisoned()) fail(kClosed, segment_->poison_text());
}

// From now on the transfer is looked after, and its peer tells what it does.
void Mailbox::begin(const Ptr& transfer) {
  outstanding_.insert(transfer);
  if (transfer->is_send_) ++sends_;
  next_look_ = std::min({next_look_, transfer->deadline_, Clock::now() + kLookEvery});
  publish_wants();
  if (!keeper_.joinable()) {
    keeper_ = std::thread([self = shared_from_this()] { keep(self); });
  } else if (keeper_idle_) {
    wake_keeper();
  }
}

void Mailbox::publish_wants() {
  const auto receives = static_cast<uint32_t>(outstanding_.size() - sends_);
  const uint32_t wants = (receives > 0 ? kWantsMessages : 0) | (sends_ > 0 ? kWantsReactions : 0);
  if (desk_.wants.load(std::memory_order_relaxed) != wants) desk_.wants.store(wants);
  desk_.receives.store(receives, std::memory_order_relaxed);
  desk_.sends.store(sends_, std::memory_order_relaxed);
}

void Mailbox::finish(const Ptr& transfer, std::exception_ptr error, int source) {
  if (outstanding_.erase(transfer) > 0) {
    if (transfer->is_send_) --sends_;
    last_end_ = Clock::now();
  }
  finished_.push_back({std::move(transfer->parcel_.done), std::move(error), source});
  transfer->done_.store(true, std::memory_order_release);
}

// Takes the transfer out of wherever it is; false if its payload has been taken already.
bool Mailbox::withdraw(const Ptr& transfer) {
  const auto take_out = [&](auto& queues, const auto& key) {
    const auto queue = queues.find(key);
    auto& waiting = queue->second;
    waiting.erase(std::find(waiting.begin(), waiting.end(), transfer));
    if (waiting.empty()) queues.erase(queue);
  };
  const Parcel& parcel = transfer->parcel_;
  switch (transfer->state_) {
    case Transfer::State::kPosted:
      take_out(posted_, Key{parcel.tag, parcel.peer});
      --(parcel.peer == kAnySource ? posted_from_any_ : posted_from_[parcel.peer]);
      return true;
    case Transfer::State::kQueued:
      take_out(queued_, parcel.peer);
      return true;
    case Transfer::State::kOffered: {
      Claim& claim = desk_.claims[transfer->claim_];
      claim.change(generations_[transfer->claim_], Offer::kMade, Offer::kNone);
      const bool is_taken = claim.offer() == Offer::kTaken;
      release(*transfer);
      return !is_taken;
    }
    case Transfer::State::kMatched:
      std::erase_if(jobs_, [&](const Job& job) { return job.transfer == transfer; });
      return true;
  }
  return true;
}

void Mailbox::end_all(const std::string& reason) {
  const std::set<Ptr> all = outstanding_;
  for (const Ptr& transfer : all) {
    const bool is_matched = transfer->state_ == Transfer::State::kMatched;
    const size_t jobs = jobs_.size();
    const bool is_open = withdraw(transfer);
    if (is_matched && jobs == jobs_.size()) continue;  // being copied: ends by itself
    finish(transfer,
           is_open ? error_of(kClosed, describe(*transfer) + " was ended: " + reason) : nullptr,
           rank_);
  }
  publish_wants();
}

bool Mailbox::is_gone(int local_rank) const {
  return memory_.desk(local_rank).left.load() != 0 || segment_->has_exited(local_rank);
}

// What nobody tells: deadlines, ended peers, the end of the group.
void Mailbox::look_around() {
  const auto now = Clock::now();
  next_look_ = Clock::time_point::max();
  if (segment_->poisoned()) end_all(segment_->poison_text());
  std::vector<int> gone;
  const auto wants_peer = [&](int peer) {
    return std::any_of(outstanding_.begin(), outstanding_.end(), [&](const Ptr& transfer) {
      const int wanted = transfer->parcel_.peer;
      return wanted == peer || wanted == kAnySource;
    });
  };
  for (int peer = 0; peer < memory_.ranks; ++peer)
    if (peer != rank_ && wants_peer(peer) && is_gone(peer)) gone.push_back(peer);
  if (!gone.empty()) {  // what they did before is here by now
    collect_news();
    settle();
    drain();
  }
  const std::set<Ptr> all = outstanding_;
  for (const Ptr& transfer : all) {
    if (transfer->state_ == Transfer::State::kMatched) continue;  // ends by itself
    std::exception_ptr error = ended(*transfer, gone);
    if (error == nullptr && transfer->deadline_ <= now) {
      error = late(*transfer);
      // A message that comes yet would be taken by a receive that is meant for a later one.
      segment_->poison(describe(*transfer) + " timed out");
    }
    if (error != nullptr) finish(transfer, withdraw(transfer) ? error : nullptr, rank_);
  }
  for (const Ptr& transfer : outstanding_)
    next_look_ = std::min({next_look_, transfer->deadline_, now + kLookEvery});
}

bool Mailbox::work(Lock& lock) {
  if (sends_ > 0) {
    settle();
    send_queued();
  }
  collect_news();
  drain();
  if (next_look_ != Clock::time_point::max() && Clock::now() >= next_look_) look_around();
  publish_wants();
  bool has_worked = !finished_.empty();
  call_back(lock);
  if (!jobs_.empty()) {
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    std::exception_ptr error = copy(job);
    lock.lock();
    finish(job.transfer, std::move(error), job.source);
    publish_wants();
    call_back(lock);
    has_worked = true;
  }
  return has_worked;
}

void Mailbox::call_back(Lock& lock) {
  if (finished_.empty()) return;
  std::vector<Finished> finished;
  finished.swap(finished_);
  lock.unlock();
  for (Finished& each : finished) {
    if (each.done) each.done(each.error, each.source);
    each.done = nullptr;  // frees memory, which may run code of anybody's: without the lock
  }
  if (desk_.waiting_asleep.load() > 0) {  // for one of these, perhaps
    desk_.bell.fetch_add(1);
    desk_.wake();
  }
  lock.lock();
}

void Mailbox::attend(const Transfer& transfer, Clock::time_point until) {
  if (transfer.done()) return;
  const bool hears_signals = gettid() == getpid();
  program::Interrupts interrupts;
  uint32_t seen = 0;
  const auto hand_over = c10::make_scope_exit([&] {  // news that were left to this thread
    if (desk_.bell.load() != seen && desk_.wants.load() != 0) wake_keeper();
  });
  const Counted waiting(desk_.waiting);
  Lock lock(mutex_);
  while (!transfer.done()) {
    seen = desk_.bell.load();
    const bool has_worked = work(lock);
    if (transfer.done()) return;
    if (has_worked) continue;
    if (Clock::now() >= until) return;
    const auto wake_at = std::min(next_look_, until);
    lock.unlock();
    sleep(seen, Desk::kWaiting, wake_at);
    if (hears_signals) interrupts.poll();
    lock.lock();
  }
}

void Mailbox::sleep(uint32_t bell, uint32_t who, Clock::time_point until) {
  if (who == Desk::kWaiting && may_spin_) {
    for (int i = 0; i < kSpins; ++i) {
      if (desk_.bell.load(std::memory_order_relaxed) != bell) return;
      relax();
    }
  }
  const Counted asleep(who == Desk::kWaiting ? desk_.waiting_asleep : desk_.keeper_asleep);
  futex_wait_until(desk_.bell, bell, until, who);
}

void Mailbox::wake_keeper() {
  desk_.bell.fetch_add(1);
  if (desk_.keeper_asleep.load() > 0) futex_wake(desk_.bell, INT_MAX, Desk::kKeeper);
}

void Mailbox::keep(const std::shared_ptr<Mailbox>& self) {
  pthread_setname_np(pthread_self(), "neuron-p2p");
  Lock lock(self->mutex_);
  while (!self->stopping_) {
    const uint32_t bell = self->desk_.bell.load();
    if (self->work(lock) || self->stopping_) continue;
    auto until = self->next_look_;
    if (self->outstanding_.empty()) {
      const auto now = Clock::now();
      self->keeper_idle_ = now - self->last_end_ > kKeeperIdle;
      until = self->keeper_idle_ ? Clock::time_point::max() : now + kLookEvery;
    }
    lock.unlock();
    self->sleep(bell, Desk::kKeeper, until);
    lock.lock();
    self->keeper_idle_ = false;
  }
}

void Mailbox::abort(const std::string& reason) {
  Lock lock(mutex_);
  if (closed_.empty()) closed_ = reason;
  end_all(reason);
  call_back(lock);
}

void Mailbox::shutdown() {
  abort("group " + segment_->name() + " was shut down");
  desk_.left.store(1);
  std::thread keeper;
  {
    const Lock lock(mutex_);
    stopping_ = true;
    keeper.swap(keeper_);
  }
  if (!keeper.joinable()) return;
  wake_keeper();
  if (keeper.get_id() == std::this_thread::get_id()) {  // a callback let go of the group
    keeper.detach();
  } else {
    keeper.join();
  }
}

std::string Mailbox::rank_name(int local_rank) const {
  return segment_->rank_name(segment_->members()[local_rank]);
}

std::string Mailbox::describe(const Transfer& transfer) const {
  const Parcel& parcel = transfer.parcel_;
  std::ostringstream text;
  text << (transfer.is_send_ ? "send to " : "receive from ")
       << (parcel.peer == kAnySource ? "any rank" : rank_name(parcel.peer)) << " (tag "
       << parcel.tag << ", " << parcel.bytes << " bytes, "
       << tensor_text(parcel.dtype, parcel.sizes) << ") by " << rank_name(rank_) << " of group "
       << segment_->name();
  return text.str();
}

// The error of a transfer that can't happen any more because of ranks that are gone, or null.
std::exception_ptr Mailbox::ended(const Transfer& transfer, const std::vector<int>& gone) const {
  const int peer = transfer.parcel_.peer;
  std::string names;
  bool has_died = false;
  for (const int each : gone) {
    if (peer != kAnySource && peer != each) continue;
    const bool left = memory_.desk(each).left.load() != 0;
    has_died |= !left;
    names +=
        (names.empty() ? "" : ", ") + rank_name(each) +
        (left ? " has left the group"
              : " (process " + std::to_string(segment_->ranks()[segment_->members()[each]].pid) +
                    ") has ended");
  }
  // A rank that left in order owes no message; one that died may have been the one to send it.
  const bool others_may_send =
      peer == kAnySource && !has_died && gone.size() + 1 < static_cast<size_t>(memory_.ranks);
  if (names.empty() || others_may_send) return nullptr;
  return error_of(kPeerLost, describe(transfer) + " can't finish: " + names);
}

std::exception_ptr Mailbox::late(const Transfer& transfer) const {
  const Parcel& parcel = transfer.parcel_;
  std::ostringstream text;
  text << describe(transfer) << " timed out after "
       << std::chrono::duration<double>(parcel.timeout).count() << " s";
  for (int peer = 0; peer < memory_.ranks; ++peer) {
    if (parcel.peer != peer && (parcel.peer != kAnySource || peer == rank_)) continue;
    const Desk& desk = memory_.desk(peer);
    text << "; " << rank_name(peer) << " has entered collective "
         << segment_->slot(peer).sequence.load() << " and has " << desk.receives.load()
         << " receives and " << desk.sends.load() << " sends outstanding";
  }
  if (!transfer.is_send_) {
    std::string others;
    for (const auto& [key, arrivals] : unexpected_) {
      if (parcel.peer == kAnySource || key.second == parcel.peer)
        others += (others.empty() ? "" : ", ") + std::to_string(key.first) + " from " +
                  rank_name(key.second);
    }
    if (!others.empty()) text << "; messages with other tags are here: " << others;
  }
  return error_of(kTimeout, text.str());
}

}  // namespace torch_neuronx::distributed
