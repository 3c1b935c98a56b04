// The file of probe decisions. Text, one class a line, behind a header that names the host and a
// checksum of the rest. Whatever is wrong with it, it is as good as absent: classes are
// re-measured.
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <torch/version.h>
#include <unistd.h>

#include <cctype>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <sstream>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "gemm/probe.h"

namespace torch_neuronx::gemm {
namespace {

constexpr char kMagic[] = "torchneuron-gemm-probe 1";
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

bool parse_line(const std::string& line, Decisions& decisions) {
  std::istringstream in(line);
  std::string dtype, method, rest;
  unsigned batch, m, n, k, a, b, threads;
  Decision decision;
  in >> dtype >> batch >> m >> n >> k >> a >> b >> threads >> method >> decision.ours_us >>
      decision.aten_us;
  if (!in || in >> rest) return false;
  if (batch > 127 || m > 127 || n > 127 || k > 127 || a > 2 || b > 2 || threads > 65535)
    return false;
  ShapeClass shape{at::kFloat, uint8_t(batch), uint8_t(m), uint8_t(n),
                   uint8_t(k), Layout(a),      Layout(b),  uint16_t(threads)};
  if (!parse_dtype(dtype, shape.dtype) || !parse_method(method, decision.method)) return false;
  decisions[shape] = decision;
  return true;
}

std::string body_of(const Decisions& decisions) {
  std::ostringstream out;
  out.precision(9);  // enough for any float to come back the same
  for (const auto& [c, d] : decisions) {
    out << dtype_name(c.dtype) << ' ' << int(c.batch) << ' ' << int(c.m) << ' ' << int(c.n) << ' '
        << int(c.k) << ' ' << int(c.a) << ' ' << int(c.b) << ' ' << c.threads << ' '
        << method_name(d.method) << ' ' << d.ours_us << ' ' << d.aten_us << '\n';
  }
  return out.str();
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
  bool close() {  // a full disk may show itself only now
    const int descriptor = descriptor_;
    descriptor_ = -1;
    return ::close(descriptor) == 0;
  }

 private:
  int descriptor_;
};

std::optional<std::string> read_private_file(const std::string& path) {
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info{};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) return std::nullopt;
  const bool ours = S_ISREG(info.st_mode) && info.st_uid == ::geteuid() &&
                    (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  if (!ours || size_t(info.st_size) > kMaxFileBytes) return std::nullopt;
  std::string text(size_t(info.st_size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + done, text.size() - done);
    if (got <= 0) return std::nullopt;
    done += size_t(got);
  }
  return text;
}

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
  return base + "/torchneuron/gemm_probe.txt";
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
  // Another set of kernels makes other times.
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    identity += has_kernels(dtype) ? "-1" : "-0";
  }
  const char* kernels = std::getenv("TORCH_NEURONX_GEMM_KERNELS");
  return identity + '-' + (kernels == nullptr || *kernels == '\0' ? "auto" : kernels);
}

std::optional<Decisions> read_decisions(const std::string& path) {
  const std::optional<std::string> text = read_private_file(path);
  if (!text) return std::nullopt;
  std::istringstream in(*text);
  std::string magic, identity, checksum, line, body;
  if (!std::getline(in, magic) || !std::getline(in, identity) || !std::getline(in, checksum)) {
    return std::nullopt;
  }
  if (magic != kMagic || identity != host_identity()) return std::nullopt;
  const size_t header = magic.size() + identity.size() + checksum.size() + 3;
  if (header > text->size()) return std::nullopt;
  body = text->substr(header);
  if (checksum != hex(fnv1a(body))) return std::nullopt;
  Decisions decisions;
  std::istringstream lines(body);
  while (std::getline(lines, line)) {
    if (!parse_line(line, decisions)) return std::nullopt;
  }
  return decisions;
}

bool write_decisions(const std::string& path, const Decisions& decisions) {
  if (!make_private_directories(path)) return false;
  const std::string body = body_of(decisions);
  const std::string text =
      std::string(kMagic) + '\n' + host_identity() + '\n' + hex(fnv1a(body)) + '\n' + body;
  std::string temporary = path + ".XXXXXX";
  File file(::mkostemp(temporary.data(), O_CLOEXEC));  // mode 0600
  if (file.get() < 0) return false;
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t put = ::write(file.get(), text.data() + done, text.size() - done);
    if (put <= 0) break;
    done += size_t(put);
  }
  const bool whole = file.close() && done == text.size();
  if (whole && ::rename(temporary.c_str(), path.c_str()) == 0) return true;
  ::unlink(temporary.c_str());
  return false;
}

}  // namespace torch_neuronx::gemm
