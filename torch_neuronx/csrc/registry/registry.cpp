#include "registry/registry.h"

#include <c10/util/Exception.h>

#include <cstring>
#include <mutex>

#include "device/state.h"
#include "registry/file.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace torch_neuronx::registry {
namespace {

struct Status {
  const char* name;
  int number;
};
constexpr Status kStatuses[] = {
#define STATUS(name, number) {#name, number},
#include "../../../neuron_tools/registry/layout.inc"
};
static_assert(std::size(kStatuses) <= std::tuple_size_v<decltype(Core::failures)>);
constexpr int kBadInput = 1002;

size_t row_of(int status) {
  for (size_t row = 0; row < std::size(kStatuses); ++row)
    if (kStatuses[row].number == status) return row;
  return 0;
}

// The status that an error's text names: "... [NRT_TIMEOUT(5)]".
int status_of(const std::exception_ptr& error) {
  std::string text;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    text = known.what();
  } catch (...) {
    return kStatuses[0].number;
  }
  for (const Status& status : kStatuses) {
    const std::string said =
        std::string("NRT_") + status.name + "(" + std::to_string(status.number) + ")";
    if (text.find(said) != std::string::npos) return status.number;
  }
  return kStatuses[0].number;
}

// What is counted in when there is no file.
struct Nobody {
  Header header;
  std::array<Core, kMaxDevices> cores;
  std::array<Program, REGISTRY_PROGRAMS> programs;
};
constinit Nobody g_nobody{};

std::mutex g_mutex;
Description g_description;
File g_file;
constinit std::atomic<Header*> g_header{&g_nobody.header};
constinit std::atomic<Program*> g_programs{g_nobody.programs.data()};
std::atomic<uint64_t> g_serial{0};
uint64_t g_described_ticks = 0, g_described_ns = 0;

// Where a processor's counter may stop or change its rate, the system's clock is read.
bool has_steady_counter() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1U << 8)) != 0;
#else
  return false;
#endif
}

// Ticks in a second, by what has passed since `describe`: at least 5 ms.
uint64_t clock_rate() {
  if (!detail::g_reads_tsc) return 1'000'000'000;
  uint64_t passed = 0;
  while ((passed = detail::nanoseconds() - g_described_ns) < 5'000'000) {
  }
  return static_cast<uint64_t>(static_cast<double>(ticks() - g_described_ticks) * 1e9 /
                               static_cast<double>(passed));
}

void copy_text(char* to, size_t size, const std::string& text) {
  std::memset(to, 0, size);
  std::memcpy(to, text.data(), std::min(text.size(), size - 1));
}

}  // namespace

constinit std::atomic<Core*> g_cores{g_nobody.cores.data()};
constinit thread_local Thread t_thread;

namespace detail {
const bool g_reads_tsc = has_steady_counter();
uint64_t nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}
}  // namespace detail

void Execution::fail(Core& core) {
  add(core.failures[row_of(thread_.failure == 0 ? kBadInput : thread_.failure)], 1);
}

void count_failure(int index, int status) { add(core(index).failures[row_of(status)], 1); }

void count_collective(int index, uint64_t nanoseconds, uint64_t bytes,
                      const std::exception_ptr& error) {
  Core& to = core(index);
  add(to.collective_ns, nanoseconds);
  if (error != nullptr) return add(to.failures[row_of(status_of(error))], 1);
  add(to.collectives, 1);
  add(to.collective_bytes, bytes);
}

void set_pinned_bytes(uint64_t bytes) {
  set(g_header.load(std::memory_order_relaxed)->pinned_bytes, bytes);
}

LoadedProgram::LoadedProgram(const std::string& name, int index, uint64_t constant_bytes,
                             uint64_t scratchpad_bytes)
    : index_(index), constant_bytes_(constant_bytes) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  Core& to = core(index);
  add(to.programs_loaded, 1);
  add(to.program_loads, 1);
  add(to.constant_bytes, constant_bytes);
  Program* const programs = g_programs.load();
  for (int place = 0; place < REGISTRY_PROGRAMS; ++place) {
    Program& program = programs[place];
    if (program.serial.load(std::memory_order_relaxed) != 0) continue;
    set(program.core, static_cast<uint64_t>(index));
    set(program.constant_bytes, constant_bytes);
    set(program.scratchpad_bytes, scratchpad_bytes);
    copy_text(program.name, sizeof program.name, name);
    program.serial.store(++g_serial, std::memory_order_release);
    place_ = place;
    return;
  }
}

LoadedProgram::~LoadedProgram() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  Core& from = core(index_);
  subtract(from.programs_loaded, 1);
  subtract(from.constant_bytes, constant_bytes_);
  if (place_ >= 0) set(g_programs.load()[place_].serial, 0);
}

void describe(Description description) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_description = std::move(description);
  g_described_ticks = ticks();
  g_described_ns = detail::nanoseconds();
}

namespace {
void open_file() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  if (g_description.directory.empty() || g_file.mapped()) return;
  const size_t cores = std::min<size_t>(g_description.cores.size(), kMaxDevices);
  g_file = File::make(g_description.directory, cores);
  Header& header = g_file.header();
  set(header.clock_rate, clock_rate());
  set(header.clock_ticks, ticks());
  set(header.clock_ns, detail::nanoseconds());
  set(header.lnc, g_description.lnc);
  set(header.chips, g_description.chips);
  copy_text(header.target, sizeof header.target, g_description.target);
  copy_text(header.runtime_version, sizeof header.runtime_version, g_description.runtime_version);
  copy_text(header.tag, sizeof header.tag, g_description.tag);
  // Programs may have been loaded before.
  Nobody& before = g_nobody;
  set(header.pinned_bytes, before.header.pinned_bytes.load());
  for (size_t i = 0; i < cores; ++i) {
    Core& to = g_file.cores()[i];
    set(to.number, g_description.cores[i]);
    for (const auto counter : {&Core::programs_loaded, &Core::program_loads, &Core::constant_bytes})
      set(to.*counter, (before.cores[i].*counter).load());
  }
  std::memcpy(static_cast<void*>(g_file.programs()), before.programs.data(),
              sizeof before.programs);
  g_header.store(&header);
  g_cores.store(g_file.cores());
  g_programs.store(g_file.programs());
  g_file.publish();
}
}  // namespace

void open() {
  try {
    open_file();
  } catch (const c10::Error& error) {
    TORCH_WARN("neuron-ls, neuron-monitor and the other tools will not see this process: ",
               error.what_without_backtrace());
  }
}

void close() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_file.remove();
}

void forget() {
  // The mapping is not the child's to keep, and the lock may be held by a thread that it lacks.
  g_header.store(&g_nobody.header);
  g_cores.store(g_nobody.cores.data());
  g_programs.store(g_nobody.programs.data());
  g_file.disown();
  t_thread = {};
}

std::string path() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  return g_file.path();
}

namespace {
// A process that ends without Python's exit handlers, but in order.
struct AtExit {
  ~AtExit() { g_file.remove(); }
};
[[maybe_unused]] const AtExit g_at_exit;
}  // namespace

}  // namespace torch_neuronx::registry
