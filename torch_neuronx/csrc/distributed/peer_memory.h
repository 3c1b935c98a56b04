// Memory of another process of the same user, opened through /proc/PID/fd and mapped here.
#pragma once

#include <cstddef>
#include <memory>

namespace torch_neuronx::distributed {

// An open file of process `pid`, which must be one without a name that only this user may open.
// Returns a descriptor of our own; throws with the reason.
int open_fd_of(int pid, int fd);

class PeerMemory {
 public:
  PeerMemory(int pid, int fd, size_t bytes);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }

  // The mapping that other groups of this process may have already.
  static std::shared_ptr<const PeerMemory> of(int pid, int fd, size_t bytes);

 private:
  std::byte* base_;
  size_t bytes_;
};

}  // namespace torch_neuronx::distributed
