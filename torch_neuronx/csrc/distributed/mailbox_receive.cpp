#include <algorithm>
#include <cstring>
#include <limits>

#include "distributed/error.h"
#include "distributed/mailbox.h"
#include "distributed/reduce.h"
#include "distributed/tensor_text.h"

namespace torch_neuronx::distributed {
namespace {

// Copied by whoever finds the message; larger ones without the lock. About 5 us.
constexpr size_t kCopyAtOnce = 64 << 10;

constexpr int kFirstSource = std::numeric_limits<int>::min();

std::string text_of(const Letter& letter) {
  return std::to_string(letter.view.bytes) + " bytes, " +
         tensor_text(letter.dtype, letter.sizes, letter.dims);
}

}  // namespace

std::shared_ptr<Transfer> Mailbox::receive(Parcel parcel) {
  const Ptr transfer(new Transfer(std::move(parcel), false));
  Lock lock(mutex_);
  check_open();
  const int source = transfer->parcel_.peer;
  transfer->number_ = receives_++;
  begin(transfer);
  if (source == kAnySource) drain_all();
  if (!receive_unexpected(transfer)) {
    posted_[{transfer->parcel_.tag, source}].push_back(transfer);
    ++(source == kAnySource ? posted_from_any_ : posted_from_[source]);
    publish_wants();  // before the rings are looked at, so that later writers will tell
    if (source == kAnySource) {
      collect_news();
      drain();
    } else {
      drain_from(source);
    }
  }
  publish_wants();
  if (!jobs_.empty()) wake_keeper();
  call_back(lock);
  return transfer;
}

bool Mailbox::wanted(int source) const { return posted_from_any_ > 0 || posted_from_[source] > 0; }

void Mailbox::collect_news() {
  for (int word = 0; word * 64 < memory_.ranks; ++word) {
    if (desk_.news[word].load() == 0) continue;
    for (uint64_t bits = desk_.news[word].exchange(0); bits != 0; bits &= bits - 1)
      unread_.insert(word * 64 + __builtin_ctzll(bits));
  }
}

// Takes messages while somebody may be waiting for them. Others stay where they are, which is what
// makes a sender wait that is far ahead of its receiver.
void Mailbox::drain() {
  if (posted_from_any_ > 0) {
    drain_all();
    return;
  }
  for (auto source = unread_.begin(); source != unread_.end();) {
    drain_from(*source);
    source =
        memory_.ring(*source, rank_).first() == nullptr ? unread_.erase(source) : std::next(source);
  }
}

void Mailbox::drain_from(int source) {
  while (wanted(source) && memory_.ring(source, rank_).first() != nullptr) take_first(source);
}

// What is in all rings, by arrival.
void Mailbox::drain_all() {
  collect_news();
  for (;;) {
    int earliest = kAnySource;
    uint64_t stamp = std::numeric_limits<uint64_t>::max();
    for (auto source = unread_.begin(); source != unread_.end();) {
      const Entry* entry = memory_.ring(*source, rank_).first();
      if (entry == nullptr) {
        source = unread_.erase(source);
        continue;
      }
      if (entry->letter.stamp < stamp) {
        stamp = entry->letter.stamp;
        earliest = *source;
      }
      ++source;
    }
    if (earliest == kAnySource) return;
    take_first(earliest);
  }
}

void Mailbox::take_first(int source) {
  Ring& ring = memory_.ring(source, rank_);
  const Entry* entry = ring.first();
  deliver(source, entry->letter, entry->payload);
  if (ring.advance()) memory_.desk(source).ring(kWantsReactions);
}

// To the earliest receive that takes it.
void Mailbox::deliver(int source, const Letter& letter, const std::byte* payload) {
  const auto named = posted_.find({letter.tag, source});
  const auto any = posted_.find({letter.tag, kAnySource});
  if (named == posted_.end() && any == posted_.end()) {
    Arrival& arrival = unexpected_[{letter.tag, source}].emplace_back(Arrival{letter, {}});
    if (letter.is_inline) arrival.payload.assign(payload, payload + letter.view.bytes);
    return;
  }
  const bool take_any =
      named == posted_.end() ||
      (any != posted_.end() && any->second.front()->number_ < named->second.front()->number_);
  const auto queue = take_any ? any : named;
  const Ptr transfer = queue->second.front();
  queue->second.pop_front();
  if (queue->second.empty()) posted_.erase(queue);
  --(take_any ? posted_from_any_ : posted_from_[source]);
  if (transfer->parcel_.claim && !transfer->parcel_.claim()) {
    drop(transfer);
    deliver(source, letter, payload);  // to the next one
    return;
  }
  match(transfer, source, letter, payload);
}

bool Mailbox::receive_unexpected(const Ptr& transfer) {
  const Parcel& parcel = transfer->parcel_;
  auto found = unexpected_.end();
  if (parcel.peer != kAnySource) {
    found = unexpected_.find({parcel.tag, parcel.peer});
  } else {
    for (auto each = unexpected_.lower_bound({parcel.tag, kFirstSource});
         each != unexpected_.end() && each->first.first == parcel.tag; ++each) {
      if (found == unexpected_.end() ||
          each->second.front().letter.stamp < found->second.front().letter.stamp)
        found = each;
    }
  }
  if (found == unexpected_.end()) return false;
  if (parcel.claim && !parcel.claim()) {
    drop(transfer);
    return true;
  }
  const int source = found->first.second;
  const Arrival arrival = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) unexpected_.erase(found);
  match(transfer, source, arrival.letter, arrival.payload.data());
  return true;
}

// A receive that was taken by another.
void Mailbox::drop(const Ptr& transfer) {
  transfer->parcel_.done = nullptr;
  finish(transfer, nullptr, rank_);
}

void Mailbox::cancel(const Ptr& receive) {
  Lock lock(mutex_);
  if (receive == nullptr || receive->done() || receive->state_ != Transfer::State::kPosted) return;
  withdraw(receive);
  drop(receive);
  publish_wants();
  call_back(lock);
}

void Mailbox::match(const Ptr& transfer, int source, const Letter& letter,
                    const std::byte* payload) {
  const Parcel& parcel = transfer->parcel_;
  transfer->state_ = Transfer::State::kMatched;
  if (letter.view.bytes != parcel.bytes || letter.dtype != static_cast<uint8_t>(parcel.dtype)) {
    if (!letter.is_inline) refuse(source, letter, parcel);
    finish(transfer,
           error_of(kInvalid, describe(*transfer) + " does not fit: " + rank_name(source) +
                                  " sent " + text_of(letter)),
           source);
  } else if (letter.is_inline) {
    if (parcel.bytes > 0) std::memcpy(parcel.data, payload, parcel.bytes);
    finish(transfer, nullptr, source);
  } else {
    Job job{transfer, source, letter};
    if (parcel.bytes > kCopyAtOnce) {
      jobs_.push_back(std::move(job));
    } else {
      finish(transfer, copy(job), source);
    }
  }
}

std::exception_ptr Mailbox::copy(const Job& job) {
  const Parcel& parcel = job.transfer->parcel_;
  const Letter& letter = job.letter;
  Claim& claim = memory_.desk(job.source).claims[letter.claim];
  const auto withdrawn = [&] {
    return error_of(kClosed, describe(*job.transfer) + " failed: " + rank_name(job.source) +
                                 " has withdrawn what it sent");
  };
  if (!claim.is_made(letter.generation)) return withdrawn();
  try {
    const std::byte* payload = segment_->resolve(job.source, letter.view);
    if (job.source == rank_) {
      std::memmove(parcel.data, payload, parcel.bytes);  // may be the same memory
    } else {
      copy_bytes(parcel.data, payload, parcel.bytes);
    }
  } catch (const c10::DistBackendError& error) {
    refuse(job.source, letter, parcel);
    return error_of([&] { fail_in(describe(*job.transfer) + " failed", error); });
  } catch (const std::exception& error) {
    refuse(job.source, letter, parcel);
    return error_of(kPeerLost, describe(*job.transfer) + " failed: " + first_line(error));
  }
  if (!claim.change(letter.generation, Offer::kMade, Offer::kTaken)) return withdrawn();
  react(job.source, letter);
  return nullptr;
}

void Mailbox::refuse(int source, const Letter& letter, const Parcel& mine) {
  Claim& claim = memory_.desk(source).claims[letter.claim];
  if (!claim.change(letter.generation, Offer::kMade, Offer::kRefusing)) return;
  claim.bytes = mine.bytes;
  claim.dtype = static_cast<uint8_t>(mine.dtype);
  claim.change(letter.generation, Offer::kRefusing, Offer::kRefused);
  react(source, letter);
}

// Tells the sender that its claim has changed.
void Mailbox::react(int source, const Letter& letter) {
  Desk& desk = memory_.desk(source);
  desk.settled[letter.claim / 64].fetch_or(uint64_t{1} << letter.claim % 64);
  desk.ring(kWantsReactions);
}

}  // namespace torch_neuronx::distributed
