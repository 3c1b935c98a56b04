// The file of probe decisions, one for each kind of host: text, one proposal a line, which starts
// with a checksum of the host's identity and the rest. A line that is not whole counts for nobody.
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "gemm/probe.h"
#include "kernels/isa.h"

namespace torch_neuronx::gemm {
namespace {

// The number rises with the format, and when a method becomes faster: older times say nothing then.
constexpr char kMagic[] = "torchneuron-gemm-probe 4 ";
constexpr size_t kMaxFileBytes = size_t(4) << 20;

uint64_t fnv1a(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ uint8_t(c)) * 0x100000001b3ULL;
  return hash;
}

std::string hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

const char* dtype_name(at::ScalarType dtype) {
  return dtype == at::kFloat ? "f32" : dtype == at::kBFloat16 ? "bf16" : "f16";
}

bool parse_dtype(const std::string& text, at::ScalarType& dtype) {
  for (const at::ScalarType candidate : {at::kFloat, at::kBFloat16, at::kHalf}) {
    if (text == dtype_name(candidate)) {
      dtype = candidate;
      return true;
    }
  }
  return false;
}

bool parse_method(const std::string& text, Method& method) {
  for (const Method candidate : {Method::kAten, Method::kPanel, Method::kDot, Method::kStream}) {
    if (text == method_name(candidate)) {
      method = candidate;
      return true;
    }
  }
  return false;
}

bool parse_body(const std::string& body, ShapeClass& shape, Decision& decision) {
  std::istringstream in(body);
  std::string dtype, method, rest;
  unsigned batch, m, n, k, a, b, methods, threads;
  in >> dtype >> batch >> m >> n >> k >> a >> b >> methods >> threads >> method >>
      decision.ours_us >> decision.aten_us;
  if (!in || in >> rest) return false;
  if (batch > 127 || m > 127 || n > 127 || k > 127 || a > 2 || b > 2 || methods > 255 ||
      threads > 65535)
    return false;
  shape = {at::kFloat, uint8_t(batch), uint8_t(m),       uint8_t(n),       uint8_t(k),
           Layout(a),  Layout(b),      uint8_t(methods), uint16_t(threads)};
  if (!parse_dtype(dtype, shape.dtype) || !parse_method(method, decision.method)) return false;
  return decision.method == Method::kAten || (methods >> unsigned(decision.method) & 1U) != 0;
}

std::string checksum_of(const std::string& body) {
  static const std::string seed = kMagic + host_identity() + ' ';
  return hex(fnv1a(seed + body));
}

void parse_line(const std::string& line, Decisions* known) {
  const size_t space = line.find(' ');
  if (space == std::string::npos) return;
  const std::string body = line.substr(space + 1);
  if (line.compare(0, space, checksum_of(body)) != 0) return;
  ShapeClass shape{};
  Decision decision;
  if (parse_body(body, shape, decision)) known->try_emplace(shape, decision);
}

std::string line_of(const ShapeClass& c, const Decision& d) {
  std::ostringstream out;
  out.precision(9);  // enough for any float to come back the same
  out << dtype_name(c.dtype) << ' ' << int(c.batch) << ' ' << int(c.m) << ' ' << int(c.n) << ' '
      << int(c.k) << ' ' << int(c.a) << ' ' << int(c.b) << ' ' << int(c.methods) << ' ' << c.threads
      << ' ' << method_name(d.method) << ' ' << d.ours_us << ' ' << d.aten_us;
  return checksum_of(out.str()) + ' ' + out.str() + '\n';
}

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }

 private:
  const int descriptor_;
};

// Somebody else may have made the directory again after it was deleted.
bool directory_is_ours(const std::string& path) {
  struct stat info{};
  const std::string directory = path.substr(0, path.rfind('/') + 1);
  if (::stat(directory.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return false;
  return (info.st_uid == ::geteuid() || info.st_uid == 0) && (info.st_mode & S_IWOTH) == 0;
}

bool make_private_directories(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    const std::string directory = path.substr(0, slash);
    if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return false;
  }
  return directory_is_ours(path);
}

// The file's descriptor, or -1 if there is none that this process may decide by.
int open_private_file(struct stat& info) {
  const std::string path = probe_file_path();
  if (path.empty() || !make_private_directories(path)) return -1;
  const int descriptor =
      ::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (descriptor < 0) return -1;
  const bool ours = ::fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode) &&
                    info.st_uid == ::geteuid() && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  if (ours) return descriptor;
  ::close(descriptor);
  return -1;
}

}  // namespace

std::string probe_file_path() {
  std::string base;
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  // The XDG rule: a relative path there is invalid and ignored.
  if (xdg != nullptr && *xdg == '/') {
    base = xdg;
  } else if (home != nullptr && *home == '/') {
    base = std::string(home) + "/.cache";
  } else {
    return {};
  }
  static const std::string name = "/torchneuron/gemm_probe-" + checksum_of("") + ".txt";
  return base + name;
}

std::string host_identity() {
  std::string identity = "torch-" TORCH_VERSION;
#if defined(__x86_64__)
  unsigned words[12] = {}, a = 0, b = 0, c = 0, d = 0;
  for (unsigned i = 0; i < 3; ++i) {
    __get_cpuid(0x80000002U + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2],
                &words[4 * i + 3]);
  }
  char brand[sizeof(words) + 1] = {};
  std::memcpy(brand, words, sizeof(words));
  identity += '-';
  for (const char* p = brand; *p != '\0'; ++p) {
    identity += std::isalnum(static_cast<unsigned char>(*p)) ? *p : '_';
  }
  __get_cpuid(1, &a, &b, &c, &d);
  identity += '-' + hex(a);
  __get_cpuid_count(7, 0, &a, &b, &c, &d);
  identity += '-' + hex(uint64_t(b) << 32 | d);
#endif
  identity += std::string("-") + kernels::isa_name(kernels::best_isa());
  // Another set of kernels makes other times.
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Kernels* kernels = kernels_for(dtype);
    identity += std::string("-") + (kernels == nullptr ? "none" : kernels->name);
  }
  const char* kernels = std::getenv("TORCH_NEURONX_GEMM_KERNELS");
  return identity + '-' + (kernels == nullptr || *kernels == '\0' ? "auto" : kernels);
}

bool DecisionFile::read(Decisions* known) {
  struct stat info{};
  const File file(open_private_file(info));
  if (file.get() < 0) return false;
  if (info.st_dev != device_ || info.st_ino != inode_ || size_t(info.st_size) < offset_) {
    offset_ = 0;
    device_ = info.st_dev;
    inode_ = info.st_ino;
  }
  std::string text(std::min(size_t(info.st_size), kMaxFileBytes) - offset_, '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got =
        ::pread(file.get(), text.data() + done, text.size() - done, off_t(offset_ + done));
    if (got < 0) return false;
    if (got == 0) break;
    done += size_t(got);
  }
  // A line that is still being written is for the next time.
  size_t start = 0;
  for (size_t end; (end = text.find('\n', start)) < done; start = end + 1)
    parse_line(text.substr(start, end - start), known);
  offset_ += start;
  return true;
}

bool DecisionFile::propose(const ShapeClass& shape, const Decision& decision) {
  struct stat info{};
  const File file(open_private_file(info));
  const std::string line = line_of(shape, decision);
  if (file.get() < 0 || size_t(info.st_size) + line.size() > kMaxFileBytes) return false;
  // In one piece: the system puts it behind what other processes have written.
  return ::write(file.get(), line.data(), line.size()) == ssize_t(line.size());
}

std::string DecisionFile::name() {
  struct stat info{};
  const File file(open_private_file(info));
  if (file.get() < 0) return {};
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot + '/' + std::to_string(info.st_dev) + '/' + std::to_string(info.st_ino);
}

}  // namespace torch_neuronx::gemm
