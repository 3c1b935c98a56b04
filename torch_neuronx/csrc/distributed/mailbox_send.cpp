#include <cstring>

#include "distributed/error.h"
#include "distributed/mailbox.h"

namespace torch_neuronx::distributed {

std::shared_ptr<Transfer> Mailbox::send(Parcel parcel) {
  const Ptr transfer(new Transfer(std::move(parcel), true));
  Lock lock(mutex_);
  check_open();
  const auto queue = queued_.find(transfer->parcel_.peer);
  const bool is_small = transfer->parcel_.bytes <= kSmallMessage;
  if (queue == queued_.end() && is_small && try_send(transfer)) {
    finish(transfer, nullptr, rank_);
  } else {
    begin(transfer);  // before the ring is looked at, so that the reader will tell
    if (queue != queued_.end() || !try_send(transfer)) {
      transfer->state_ = Transfer::State::kQueued;
      queued_[transfer->parcel_.peer].push_back(transfer);
    } else if (is_small) {
      finish(transfer, nullptr, rank_);
    }
  }
  call_back(lock);
  return transfer;
}

// Puts the message into its ring, if there is room.
bool Mailbox::try_send(const Ptr& transfer) {
  const Parcel& parcel = transfer->parcel_;
  const bool is_small = parcel.bytes <= kSmallMessage;
  if (!is_small && free_claims_.empty()) return false;
  Ring& ring = memory_.ring(rank_, parcel.peer);
  Entry* entry = ring.free_entry();
  if (entry == nullptr) return false;

  Desk& desk = memory_.desk(parcel.peer);
  Letter& letter = entry->letter;
  letter.tag = parcel.tag;
  letter.dtype = static_cast<uint8_t>(parcel.dtype);
  letter.dims = static_cast<int8_t>(parcel.sizes.size());
  for (size_t i = 0; i < parcel.sizes.size() && i < kMaxDims; ++i)
    letter.sizes[i] = parcel.sizes[i];
  letter.is_inline = is_small;
  if (is_small) {
    letter.view = {-1, 0, parcel.bytes};
    if (parcel.bytes > 0) std::memcpy(entry->payload, parcel.data, parcel.bytes);
  } else {
    letter.view = segment_->expose(parcel.data, parcel.bytes);
    const uint32_t claim = free_claims_.back();
    free_claims_.pop_back();
    letter.claim = transfer->claim_ = claim;
    letter.generation = ++generations_[claim];
    desk_.claims[claim].word.store(Claim::pack(letter.generation, Offer::kMade));
    offered_[claim] = transfer;
    transfer->state_ = Transfer::State::kOffered;
  }
  letter.stamp = desk.stamps.fetch_add(1) + 1;
  ring.publish();
  desk.news[rank_ / 64].fetch_or(uint64_t{1} << rank_ % 64);
  desk.ring(kWantsMessages);
  return true;
}

void Mailbox::send_queued() {
  for (auto queue = queued_.begin(); queue != queued_.end();) {
    auto& waiting = queue->second;
    while (!waiting.empty() && try_send(waiting.front())) {
      const Ptr transfer = waiting.front();
      waiting.pop_front();
      if (transfer->state_ != Transfer::State::kOffered) finish(transfer, nullptr, rank_);
    }
    queue = waiting.empty() ? queued_.erase(queue) : std::next(queue);
  }
}

// Ends the sends whose payloads were taken or refused.
void Mailbox::settle() {
  for (size_t word = 0; word < desk_.settled.size(); ++word) {
    if (desk_.settled[word].load() == 0) continue;
    for (uint64_t bits = desk_.settled[word].exchange(0); bits != 0; bits &= bits - 1) {
      const Ptr transfer = offered_[word * 64 + static_cast<size_t>(__builtin_ctzll(bits))];
      if (transfer == nullptr) continue;  // withdrawn since
      const Claim& claim = desk_.claims[transfer->claim_];
      const Offer offer = claim.offer();
      if (offer != Offer::kTaken && offer != Offer::kRefused) continue;  // a later offer's place
      auto error = offer == Offer::kRefused ? refused(*transfer, claim) : nullptr;
      release(*transfer);
      finish(transfer, std::move(error), rank_);
    }
  }
}

void Mailbox::release(const Transfer& transfer) {
  const uint32_t claim = transfer.claim_;
  desk_.claims[claim].word.store(Claim::pack(generations_[claim], Offer::kNone));
  offered_[claim] = nullptr;
  free_claims_.push_back(claim);
}

std::exception_ptr Mailbox::refused(const Transfer& transfer, const Claim& claim) const {
  const Parcel& parcel = transfer.parcel_;
  const std::string peer = rank_name(parcel.peer);
  const auto dtype = static_cast<c10::ScalarType>(claim.dtype);
  if (claim.bytes == parcel.bytes && dtype == parcel.dtype)
    return error_of(kPeerLost, describe(transfer) + " failed: " + peer + " could not read it");
  return error_of(kInvalid, describe(transfer) + " does not fit: " + peer + " receives " +
                                std::to_string(claim.bytes) + " bytes of " + c10::toString(dtype));
}

}  // namespace torch_neuronx::distributed
