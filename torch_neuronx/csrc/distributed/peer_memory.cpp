#include "distributed/peer_memory.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "distributed/error.h"
#include "distributed/process.h"

namespace torch_neuronx::distributed {
namespace {

constexpr std::chrono::milliseconds kMomentOfDeath{1000};

}  // namespace

int open_fd_of(int pid, int fd) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  const int mine = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (mine < 0) {
    const int error = errno;
    // A process that is killed loses its files a moment before it counts as ended.
    if (Process(pid).has_ended(kMomentOfDeath))
      fail(kPeerLost, "process " + std::to_string(pid) + " has ended");
    fail(kPeerLost, "can't open the memory of process " + std::to_string(pid) + " (" + path + ": " +
                        std::strerror(error) +
                        "); ranks of one host must belong to one user and see each other's "
                        "processes, or be told apart by TORCH_NEURONX_HOST_ID");
  }
  struct stat status{};
  const bool known = fstat(mine, &status) == 0;
  if (!known || status.st_uid != geteuid() || (status.st_mode & 077) != 0 ||
      !S_ISREG(status.st_mode) || status.st_nlink != 0) {
    close(mine);
    fail(kInvalid, path + " is not memory that belongs to this user alone");
  }
  return mine;
}

PeerMemory::PeerMemory(int pid, int fd, size_t bytes) : bytes_(bytes) {
  const int mine = open_fd_of(pid, fd);
  struct stat status{};
  const bool whole = fstat(mine, &status) == 0 && static_cast<size_t>(status.st_size) >= bytes;
  void* p = whole
                ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, mine, 0)
                : MAP_FAILED;
  const int error = errno;
  close(mine);
  if (p == MAP_FAILED)
    fail(kPeerLost,
         "can't map " + std::to_string(bytes) + " bytes of process " + std::to_string(pid) +
             (whole ? std::string(": ") + std::strerror(error) : ": the file is shorter"));
  base_ = static_cast<std::byte*>(p);
}

PeerMemory::~PeerMemory() { munmap(base_, bytes_); }

std::shared_ptr<const PeerMemory> PeerMemory::of(int pid, int fd, size_t bytes) {
  using Key = std::tuple<int, int, size_t>;
  static std::mutex mutex;
  // Never destroyed: groups may outlive this file's statics at exit.
  static auto& known = *new std::map<Key, std::weak_ptr<const PeerMemory>>;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& slot = known[{pid, fd, bytes}];
  if (auto live = slot.lock()) return live;
  auto made = std::make_shared<const PeerMemory>(pid, fd, bytes);
  slot = made;
  return made;
}

}  // namespace torch_neuronx::distributed
