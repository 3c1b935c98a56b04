#include "memory/memory_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace torch_neuronx {

int make_memory_file(const std::string& name, size_t bytes, const std::string& owner) {
  rlimit limit{};
  TORCH_CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0, "getrlimit failed");
  // Growing beyond it would be a signal, not an error.
  TORCH_CHECK(limit.rlim_cur >= bytes, "can't share the memory of ", owner, ": it has ", bytes,
              " bytes of addresses, but files are limited to ", limit.rlim_cur,
              " bytes (`ulimit -f`)");
  const int fd = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  // The seals keep a peer's mistake from taking pages away under our feet.
  const bool ready = fd >= 0 && fchmod(fd, S_IRUSR | S_IWUSR) == 0 &&
                     ftruncate(fd, static_cast<off_t>(bytes)) == 0 &&
                     fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0;
  if (!ready) {
    const int error = errno;
    if (fd >= 0) close(fd);
    TORCH_CHECK(false, "can't make a memory file of ", bytes, " bytes for ", owner, ": ",
                std::strerror(error));
  }
  return fd;
}

}  // namespace torch_neuronx
