// Another rank's process on this host.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

namespace torch_neuronx::distributed {

class Process {
 public:
  explicit Process(int pid) : pid_(pid), fd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {}
  Process(Process&& other) noexcept : pid_(other.pid_), fd_(std::exchange(other.fd_, -1)) {}
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (fd_ >= 0) close(fd_);
  }

  // Whether it has ended, or does so within `patience`.
  bool has_ended(std::chrono::milliseconds patience = {}) const {
    // Without a descriptor (before Linux 5.3, or it had ended already) this must do; it can't tell
    // that a process has ended for which nobody has waited yet.
    if (fd_ < 0) return kill(pid_, 0) != 0 && errno == ESRCH;
    pollfd entry{fd_, POLLIN, 0};
    return poll(&entry, 1, static_cast<int>(patience.count())) == 1;
  }

 private:
  const int pid_;
  int fd_;  // readable when the process has ended
};

}  // namespace torch_neuronx::distributed
