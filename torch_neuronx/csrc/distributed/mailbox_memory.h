// What the ranks of a host share to send each other messages: one ring for every ordered pair, and
// per rank a bell, and a table of the payloads that it has offered and not yet given.
//
// All of it begins as zero bytes. A rank that dies between any two stores leaves what others use
// valid: a ring has one writer and one reader, and all else are single words.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "distributed/futex.h"
#include "distributed/segment.h"

namespace torch_neuronx::distributed {

inline constexpr uint32_t kRingEntries = 16;
inline constexpr size_t kEntryBytes = 1024;
inline constexpr uint32_t kClaims = 4096;  // payloads one rank can have offered at a time
inline constexpr int kMaxMailboxRanks = 1024;

// What a message says about itself.
struct Letter {
  uint64_t stamp;  // of arrival at this receiver, from 1
  int64_t tag;
  View view;  // where the payload is, unless it is in the entry
  int64_t sizes[kMaxDims];
  uint32_t claim, generation;  // of the offered payload
  uint8_t dtype;
  int8_t dims;
  bool is_inline;
};

inline constexpr size_t kLetterBytes = 128;
static_assert(sizeof(Letter) <= kLetterBytes);
inline constexpr size_t kSmallMessage = kEntryBytes - kLetterBytes;  // travels in the entry

struct alignas(128) Entry {
  Letter letter;
  alignas(kLetterBytes) std::byte payload[kSmallMessage];
};
static_assert(sizeof(Entry) == kEntryBytes);

struct Ring {
  alignas(128) std::atomic<uint32_t> written;
  alignas(128) std::atomic<uint32_t> read;
  std::atomic<uint32_t> starved;  // the writer waits for room
  Entry entries[kRingEntries];

  // The next free entry, or null; then the reader will ring the writer's bell.
  Entry* free_entry() {
    const uint32_t at = written.load(std::memory_order_relaxed);
    if (at - read.load() < kRingEntries) return &entries[at % kRingEntries];
    starved.store(1);
    return at - read.load() < kRingEntries ? &entries[at % kRingEntries] : nullptr;
  }
  void publish() { written.store(written.load(std::memory_order_relaxed) + 1); }

  // The oldest unread entry, or null.
  const Entry* first() const {
    const uint32_t at = read.load(std::memory_order_relaxed);
    return at == written.load(std::memory_order_acquire) ? nullptr : &entries[at % kRingEntries];
  }
  // Frees it; true if the writer waits for that.
  bool advance() {
    read.store(read.load(std::memory_order_relaxed) + 1);
    return starved.load() != 0 && starved.exchange(0) != 0;
  }
};

// The state of an offered payload, in a word with the generation of its place in the table. Only
// the sender makes and withdraws an offer, only the receiver takes or refuses it, and whoever comes
// first wins: a payload that was withdrawn while it was copied is not received.
enum class Offer : uint64_t { kNone, kMade, kTaken, kRefusing, kRefused };

struct alignas(64) Claim {
  std::atomic<uint64_t> word;
  // Of a receive that refused, for the sender's message.
  uint64_t bytes;
  uint8_t dtype;

  static uint64_t pack(uint32_t generation, Offer offer) {
    return uint64_t{generation} << 8 | static_cast<uint64_t>(offer);
  }
  Offer offer() const { return static_cast<Offer>(word.load(std::memory_order_acquire) & 0xff); }
  bool is_made(uint32_t generation) const {
    return word.load(std::memory_order_acquire) == pack(generation, Offer::kMade);
  }
  bool change(uint32_t generation, Offer from, Offer to) {
    uint64_t expected = pack(generation, from);
    return word.compare_exchange_strong(expected, pack(generation, to));
  }
};

inline constexpr uint32_t kWantsMessages = 1;   // receives are outstanding
inline constexpr uint32_t kWantsReactions = 2;  // sends are

struct alignas(128) Desk {                     // of one rank
  std::atomic<uint32_t> bell;                  // what its threads sleep on; rung by adding one
  std::atomic<uint32_t> wants;                 // which news are worth waking it
  std::atomic<uint32_t> waiting;               // threads that wait for a certain operation
  std::atomic<uint32_t> waiting_asleep;        // those of them that sleep
  std::atomic<uint32_t> keeper_asleep;         // the thread that is there for all operations does
  std::atomic<uint32_t> left;                  // the rank has shut the group down
  alignas(64) std::atomic<uint32_t> receives;  // outstanding; others read them for their messages
  std::atomic<uint32_t> sends;
  alignas(64) std::atomic<uint64_t> stamps;
  std::array<std::atomic<uint64_t>, kMaxMailboxRanks / 64> news;        // sources that have written
  alignas(64) std::array<std::atomic<uint64_t>, kClaims / 64> settled;  // claims to look at
  Claim claims[kClaims];

  // Wakes a thread of this rank that has something to do with it. `kind`: kWantsMessages, ...
  void ring(uint32_t kind) {
    bell.fetch_add(1);
    if ((wants.load() & kind) != 0) wake();
  }
  // One that waits for an operation does everybody's work, so the keeper need not wake then.
  void wake() {
    if (waiting.load() > 0) {
      if (waiting_asleep.load() > 0) futex_wake(bell, INT_MAX, kWaiting);
    } else if (keeper_asleep.load() > 0) {
      futex_wake(bell, INT_MAX, kKeeper);
    }
  }

  static constexpr uint32_t kWaiting = 1, kKeeper = 2;  // who sleeps, as bits
};

// The whole of it, for `ranks` ranks.
struct MailboxMemory {
  std::byte* base;
  int ranks;

  static size_t bytes(int ranks) { return sizeof(Desk) * ranks + sizeof(Ring) * ranks * ranks; }
  Desk& desk(int rank) const { return reinterpret_cast<Desk*>(base)[rank]; }
  Ring& ring(int source, int destination) const {
    auto* rings = reinterpret_cast<Ring*>(base + sizeof(Desk) * ranks);
    return rings[static_cast<size_t>(destination) * ranks + source];
  }
};

}  // namespace torch_neuronx::distributed
