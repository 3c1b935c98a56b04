#include "distributed/segment.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "distributed/error.h"
#include "distributed/fresh_store.h"
#include "distributed/random_word.h"
#include "gemm/probe.h"
#include "memory/allocator.h"
#include "memory/memory_file.h"
#include "memory/shared.h"

namespace torch_neuronx::distributed {
namespace {

constexpr size_t kTokenBytes = kRandomBytes;
constexpr size_t kReasonBytes = 2048;
constexpr size_t kPage = 4096;
// How often a waiting rank gives up its core and looks again before it sleeps. Giving up costs 0.4
// us on a core that nobody else wants, and is the fastest way to let a rank on the same core
// arrive: the scheduler puts ranks that wake each other onto one core, where spinning takes that
// core from whom it waits for (measured, 2 to 8 ranks on 2 cores).
constexpr int kYields = 32;

constexpr size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

std::string link_target(const char* path) {
  char text[256];
  const ssize_t n = readlink(path, text, sizeof text);
  return n < 0 ? "?" : std::string(text, static_cast<size_t>(n));
}

}  // namespace

std::string host_identity() {
  if (const char* given = std::getenv("TORCH_NEURONX_HOST_ID"); given != nullptr && *given != 0)
    return std::string("TORCH_NEURONX_HOST_ID=") + given;
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot + " " + link_target("/proc/self/ns/net") + " " + link_target("/proc/self/ns/pid") +
         " uid " + std::to_string(geteuid());
}

struct Segment::Header {
  char token[kTokenBytes];
  alignas(64) std::atomic<uint32_t> arrived;
  alignas(64) std::atomic<uint32_t> generation;  // of the barrier; what waiting ranks sleep on
  std::atomic<uint32_t> sleepers;
  alignas(64) std::atomic<uint32_t> poisoned;  // 0 no, 1 the reason is being written, 2 yes
  char reason[kReasonBytes];
};

Segment::Segment(c10d::Store& store, int rank, int size, std::string name,
                 std::chrono::milliseconds timeout, size_t mailbox_bytes)
    : name_(std::move(name)) {
  const auto deadline = Clock::now() + timeout;
  const auto key = [](int r) { return "rank/" + std::to_string(r); };
  store.set(key(rank), std::to_string(getpid()) + " " + gemm::agreement() + " " + host_identity());
  std::vector<std::string> keys;
  for (int r = 0; r < size; ++r) keys.push_back(key(r));
  await_ranks(store, keys, size, timeout);
  const auto values = store.multiGet(keys);
  for (const auto& value : values) {
    std::istringstream text(std::string(value.begin(), value.end()));
    RankIdentity identity;
    text >> identity.pid >> identity.products >> std::ws;
    std::getline(text, identity.host);
    ranks_.push_back(std::move(identity));
  }
  for (int r = 0; r < size; ++r) {
    if (ranks_[r].host != ranks_[rank].host) continue;
    if (r == rank) local_rank_ = local_size();
    members_.push_back(r);
  }

  const size_t header_bytes = round_up(sizeof(Header), kPage);
  const size_t slots_bytes = round_up(sizeof(Slot) * members_.size(), kPage);
  bytes_ = header_bytes + slots_bytes + round_up(mailbox_bytes, kPage);
  const std::string where = "segment/" + std::to_string(members_[0]);
  if (local_rank_ == 0) {
    const RandomWord token = random_word();
    map(make_memory_file("neuron-group", bytes_, "group " + name_));
    std::memcpy(header_->token, token.data(), kTokenBytes);
    const std::string fd = std::to_string(fd_) + " ";
    std::vector<uint8_t> value(fd.begin(), fd.end());
    value.insert(value.end(), token.begin(), token.end());
    store.set(where, value);
  } else {
    await_ranks(store, {where}, size, timeout, members_[0]);
    const auto value = store.get(where);
    const std::string text(value.begin(), value.end());
    const auto space = text.find(' ');
    TORCH_CHECK(space != std::string::npos && text.size() == space + 1 + kTokenBytes,
                "the store's entry ", where, " was not written by this program");
    map(of_rank(0, [&] { return open_fd_of(ranks_[members_[0]].pid, std::stoi(text)); }));
    if (std::memcmp(header_->token, text.data() + space + 1, kTokenBytes) != 0)
      fail(kInvalid, "the memory of group " + name_ + " belongs to another job");
  }
  slots_ = reinterpret_cast<Slot*>(reinterpret_cast<std::byte*>(header_) + header_bytes);
  mailbox_ = reinterpret_cast<std::byte*>(slots_) + slots_bytes;
  peers_.resize(members_.size());
  for (const int member : members_) processes_.emplace_back(ranks_[member].pid);
  barrier(deadline, [] { return std::string("creation of the group"); });
}

void Segment::map(int fd) {
  fd_ = fd;
  struct stat status{};
  TORCH_CHECK(fstat(fd, &status) == 0 && static_cast<size_t>(status.st_size) == bytes_,
              "the memory of group ", name_, " has another size than this rank expects; do all ",
              "ranks run the same version?");
  void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  TORCH_CHECK(p != MAP_FAILED, "can't map the memory of group ", name_, ": ", std::strerror(errno));
  header_ = static_cast<Header*>(p);  // zero bytes are the initial state of all that is in it
}

Segment::~Segment() {
  if (header_ != nullptr) munmap(header_, bytes_);
  if (fd_ >= 0) close(fd_);
}

std::string Segment::rank_name(int group_rank) const {
  std::string text = "rank " + std::to_string(group_rank);
  const std::string& host = ranks_[group_rank].host;
  if (host != ranks_[members_[0]].host) text += " (another host)";
  return text;
}

bool Segment::has_exited(int local_rank) const { return processes_[local_rank].has_ended(); }

std::vector<int> Segment::not_arrived() const {
  std::vector<int> missing;
  const uint64_t mine = slots_[local_rank_].arrivals.load();
  for (int r = 0; r < local_size(); ++r)
    if (slots_[r].arrivals.load() < mine) missing.push_back(r);
  return missing;
}

void Segment::barrier(Clock::time_point deadline, c10::function_ref<std::string()> what) {
  const uint32_t generation = header_->generation.load(std::memory_order_acquire);
  mine().arrivals.fetch_add(1, std::memory_order_release);
  if (header_->arrived.fetch_add(1) + 1 == static_cast<uint32_t>(local_size())) {
    header_->arrived.store(0, std::memory_order_relaxed);
    header_->generation.fetch_add(1);
    if (header_->sleepers.load() > 0) futex_wake(header_->generation);
    return;
  }
  const auto released = [&] {
    return header_->generation.load(std::memory_order_acquire) != generation;
  };
  for (int i = 0; i < kYields; ++i) {
    if (released()) return;
    sched_yield();
  }
  Watch watch(*this, deadline);
  while (!released()) {
    header_->sleepers.fetch_add(1);
    futex_wait_until(header_->generation, generation, Clock::now() + kLook);
    header_->sleepers.fetch_sub(1);
    if (!released()) watch.look([&] { return not_arrived(); }, what);
  }
}

void Segment::Watch::look(c10::function_ref<std::vector<int>()> missing,
                          c10::function_ref<std::string()> what) {
  if (segment_.poisoned()) fail(kClosed, segment_.poison_text());
  const auto now = Clock::now();
  if (now < next_) return;
  next_ = now + kLook;
  if (gettid() == getpid()) interrupts_.poll();  // Python hears signals on its main thread
  const auto absent = missing();
  const bool late = now >= deadline_;
  std::string gone, waiting;
  for (const int r : absent) {
    const std::string rank = segment_.rank_name(segment_.members_[r]);
    const auto& slot = segment_.slots_[r];
    if (segment_.has_exited(r)) {
      gone += (gone.empty() ? "" : ", ") + rank + " (process " +
              std::to_string(segment_.ranks_[segment_.members_[r]].pid) + ")";
    } else if (late) {
      waiting += (waiting.empty() ? "" : ", ") + rank + " (last entered collective " +
                 std::to_string(slot.sequence.load()) + ")";
    }
  }
  if (gone.empty() && !late) return;
  std::ostringstream text;
  text << what() << " of group " << segment_.name_;
  if (!gone.empty()) {
    text << " can't finish: " << gone << " has ended";
  } else {
    text << " timed out after " << std::chrono::duration<double>(now - started_).count()
         << " s: waiting for " << waiting;
  }
  segment_.poison(text.str());
  fail(gone.empty() ? kTimeout : kPeerLost, text.str());
}

void Segment::poison(const std::string& reason) {
  uint32_t none = 0;
  if (!header_->poisoned.compare_exchange_strong(none, 1)) return;
  std::strncpy(header_->reason, reason.c_str(), kReasonBytes - 1);
  header_->poisoned.store(2);
  futex_wake(header_->generation);
}

bool Segment::poisoned() const { return header_->poisoned.load(std::memory_order_acquire) == 2; }

std::string Segment::poison_text() const {
  return "group " + name_ + " can't be used any more: " + header_->reason;
}

View Segment::expose(const void* data, size_t bytes) {
  if (bytes == 0) return {-1, 0, 0};
  const auto device = device_of_pointer(data);
  TORCH_INTERNAL_ASSERT(device >= 0, "memory of a collective is not in a core's HBM");
  if (local_size() > 1) {
    const SharedArena shared = share_arena(device);
    mine().hbm_bytes[device].store(shared.bytes);
    mine().hbm[device].store(shared.fd + 1, std::memory_order_release);
  }
  // Shared memory keeps its addresses.
  const auto offset = static_cast<uint64_t>(static_cast<const char*>(data) - arena(device).base());
  return {device, offset, bytes};
}

std::byte* Segment::resolve(int local_rank, const View& view) {
  if (view.bytes == 0) return nullptr;
  TORCH_CHECK(view.device >= 0 && view.device < kMaxDevices, "bad view of a peer's memory");
  if (local_rank == local_rank_)
    return reinterpret_cast<std::byte*>(arena(view.device).base()) + view.offset;
  std::shared_ptr<const PeerMemory> memory;
  {
    const std::lock_guard<std::mutex> lock(peers_mutex_);
    auto& known = peers_[local_rank][view.device];
    if (known == nullptr) {
      const Slot& slot = slots_[local_rank];
      const int fd = slot.hbm[view.device].load(std::memory_order_acquire);
      TORCH_CHECK(fd > 0, "a peer has exposed memory of a core that it does not share");
      known = of_rank(local_rank, [&] {
        return PeerMemory::of(ranks_[members_[local_rank]].pid, fd - 1,
                              slot.hbm_bytes[view.device].load());
      });
    }
    memory = known;
  }
  TORCH_CHECK(view.offset <= memory->bytes() && view.bytes <= memory->bytes() - view.offset,
              "a peer has exposed memory beyond its HBM");
  return memory->base() + view.offset;  // `peers_` keeps it mapped
}

}  // namespace torch_neuronx::distributed
