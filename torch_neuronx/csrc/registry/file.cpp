#include "registry/file.h"

#include <c10/util/Exception.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace torch_neuronx::registry {
namespace {

// When a process began, in the kernel's own unit; 0 if there is none of that number.
uint64_t start_time(uint64_t pid) {
  char text[1024];
  const std::string name = "/proc/" + std::to_string(pid) + "/stat";
  const int fd = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t size = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  if (size <= 0) return 0;
  text[size] = '\0';
  // The second field is a name in brackets that may hold anything.
  const char* at = std::strrchr(text, ')');
  for (int field = 2; at != nullptr && field < 22; ++field) at = std::strchr(at + 1, ' ');
  return at == nullptr ? 0 : std::strtoull(at + 1, nullptr, 10);
}

uint64_t pid_namespace() {
  struct stat facts{};
  return ::stat("/proc/self/ns/pid", &facts) == 0 ? facts.st_ino : 0;
}

// "<pid>-<start time>-<namespace>"
std::string name_of(uint64_t pid, uint64_t start, uint64_t space) {
  return std::to_string(pid) + "-" + std::to_string(start) + "-" + std::to_string(space);
}

// Others must not be able to put files there, or to read the commands' arguments from it.
void make_private(const std::string& directory) {
  TORCH_CHECK(::mkdir(directory.c_str(), S_IRWXU) == 0 || errno == EEXIST,
              "can't make the directory ", directory, ": ", std::strerror(errno));
  struct stat facts{};
  TORCH_CHECK(::lstat(directory.c_str(), &facts) == 0, "can't look at ", directory, ": ",
              std::strerror(errno));
  TORCH_CHECK(S_ISDIR(facts.st_mode) && facts.st_uid == ::geteuid() && (facts.st_mode & 077) == 0,
              directory,
              " must be a directory of this user that nobody else can enter; remove it, ",
              "or name another one in TORCH_NEURONX_REGISTRY_DIR");
}

// Killed processes leave theirs. A process of another container can't be asked whether it lives.
void remove_stale(const std::string& directory, uint64_t space) {
  DIR* const listing = ::opendir(directory.c_str());
  if (listing == nullptr) return;
  while (const dirent* entry = ::readdir(listing)) {
    uint64_t pid = 0, start = 0, of = 0;
    const char* const name = entry->d_name + (entry->d_name[0] == '.' ? 1 : 0);
    if (std::sscanf(name, "%" SCNu64 "-%" SCNu64 "-%" SCNu64, &pid, &start, &of) != 3) continue;
    if (of != space || start_time(pid) == start) continue;
    ::unlink((directory + "/" + entry->d_name).c_str());
  }
  ::closedir(listing);
}

}  // namespace

File File::make(const std::string& directory, size_t cores) {
  make_private(directory);
  const uint64_t space = pid_namespace();
  remove_stale(directory, space);
  const auto pid = static_cast<uint64_t>(::getpid());
  const uint64_t start = start_time(pid);
  const std::string name = name_of(pid, start, space);
  const size_t bytes = kCores + cores * sizeof(Core) + REGISTRY_PROGRAMS * sizeof(Program);
  rlimit limit{};
  // Growing beyond it would be a signal, not an error.
  TORCH_CHECK(::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur >= bytes,
              "files are limited to fewer than ", bytes, " bytes (`ulimit -f`)");
  File file;
  file.cores_ = cores;
  file.path_ = directory + "/." + name;
  file.final_path_ = directory + "/" + name;
  ::unlink(file.path_.c_str());  // of the program that this process ran before it ran this one
  const int fd = ::open(file.path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                        S_IRUSR | S_IWUSR);
  TORCH_CHECK(fd >= 0, "can't make ", file.path_, ": ", std::strerror(errno));
  // All of its memory now: where there is none left, a later store would be a signal.
  const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  void* const memory =
      error != 0 ? MAP_FAILED : ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (memory == MAP_FAILED) ::unlink(file.path_.c_str());
  TORCH_CHECK(memory != MAP_FAILED, "can't keep ", bytes, " bytes in ", directory, ": ",
              std::strerror(error != 0 ? error : errno));
  ::madvise(memory, bytes, MADV_DONTFORK);
  file.memory_ = memory;
  file.owned_ = true;
  Header& header = file.header();
  set(header.magic, kMagic);
  set(header.version, REGISTRY_VERSION);
  set(header.header_bytes, sizeof(Header));
  set(header.core_bytes, sizeof(Core));
  set(header.program_bytes, sizeof(Program));
  set(header.cores, cores);
  set(header.programs, REGISTRY_PROGRAMS);
  set(header.pid, pid);
  set(header.start_time, start);
  set(header.pid_namespace, space);
  return file;
}

void File::publish() {
  TORCH_CHECK(::rename(path_.c_str(), final_path_.c_str()) == 0, "can't name ", final_path_, ": ",
              std::strerror(errno));
  path_ = final_path_;
}

void File::remove() {
  if (!owned_) return;
  ::unlink(path_.c_str());
  owned_ = false;
}

}  // namespace torch_neuronx::registry
