#include "device/faults.h"

#include <Python.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "program/interrupts.h"
#include "registry/registry.h"

namespace torch_neuronx::faults {
namespace {

struct Armed {
  Rule rule;
  Counts counts;
};

std::mutex g_mutex;
std::condition_variable g_removed;
std::map<int64_t, Armed>& rules() {
  static auto* made = new std::map<int64_t, Armed>;  // never destroyed: threads still look
  return *made;
}
int64_t g_numbers = 0;

// The same for the same seed and time, whichever thread comes.
bool by_chance(const Rule& rule, int64_t time) {
  std::seed_seq seed{static_cast<uint32_t>(rule.seed), static_cast<uint32_t>(rule.seed >> 32),
                     static_cast<uint32_t>(time), static_cast<uint32_t>(time >> 32)};
  std::mt19937_64 numbers(seed);
  return static_cast<double>(numbers() >> 11) * 0x1p-53 < rule.probability;
}

bool acts_at(const Rule& rule, const Counts& counts) {
  if (rule.lasting && counts.acted > 0) return true;
  if (rule.most >= 0 && counts.acted >= rule.most) return false;
  if (rule.at.empty() && rule.every == 0 && rule.probability == 0) return true;
  if (std::find(rule.at.begin(), rule.at.end(), counts.reached) != rule.at.end()) return true;
  if (rule.every > 0 && counts.reached % rule.every == 0) return true;
  return rule.probability > 0 && by_chance(rule, counts.reached);
}

// Counts a time, and returns the rules that act.
std::vector<std::pair<int64_t, Rule>> acting(Point point, const std::string& name,
                                             c10::DeviceIndex core) {
  std::vector<std::pair<int64_t, Rule>> found;
  const std::lock_guard<std::mutex> lock(g_mutex);
  for (auto& [number, armed] : rules()) {
    const Rule& rule = armed.rule;
    if (rule.point != point || (rule.core >= 0 && rule.core != core)) continue;
    if (name.find(rule.match) == std::string::npos) continue;
    ++armed.counts.reached;
    if (!acts_at(rule, armed.counts)) continue;
    ++armed.counts.acted;
    found.emplace_back(number, rule);
  }
  return found;
}

// Waits until the time is over or the rule is gone. Python threads hear Ctrl-C.
void wait(int64_t number, double seconds) {
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::nanoseconds(static_cast<int64_t>(std::min(seconds, 1e9) * 1e9));
  program::Interrupts interrupts;
  const bool listens = Py_IsInitialized() && PyGILState_GetThisThreadState() != nullptr;
  std::unique_lock<std::mutex> lock(g_mutex);
  while (rules().count(number) > 0 && std::chrono::steady_clock::now() < end) {
    const auto soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(60);
    g_removed.wait_until(lock, std::min(end, soon));
    if (!listens) continue;
    lock.unlock();
    interrupts.poll();
    lock.lock();
  }
}

[[noreturn]] void raise(const Rule& rule, const std::string& name, c10::DeviceIndex core) {
  const std::string text = rule.text + " [at " + name + " on neuron:" + std::to_string(core) +
                           "; a fault that was asked for: torch_neuronx.testing]";
  registry::set_failure(rule.status);
  if (rule.action == Action::kOutOfMemory) TORCH_CHECK_WITH(OutOfMemoryError, false, text);
  throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, rule.status,
                              text);
}

void act(int64_t number, const Rule& rule, const std::string& name, c10::DeviceIndex core,
         size_t bytes) {
  switch (rule.action) {
    case Action::kDelay: {
      const double moving =
          rule.bytes_per_second > 0 ? static_cast<double>(bytes) / rule.bytes_per_second : 0;
      return wait(number, rule.seconds + moving);
    }
    case Action::kHang:
      wait(number, rule.seconds);
      raise(rule, name, core);
    case Action::kEnd:
      (void)kill(getpid(), SIGKILL);
      return;
    case Action::kSpoil:
    case Action::kElsewhere:
      return;
    default:
      raise(rule, name, core);
  }
}

}  // namespace

std::vector<int64_t> due(Point point, const std::string& name, c10::DeviceIndex core) {
  std::vector<int64_t> numbers;
  for (const auto& [number, rule] : acting(point, name, core)) numbers.push_back(number);
  return numbers;
}

int64_t add(Rule rule) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  rules()[++g_numbers] = {std::move(rule), {}};
  g_watched.fetch_or(kFaulty);
  return g_numbers;
}

Counts counts(int64_t number) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  const auto at = rules().find(number);
  return at == rules().end() ? Counts{} : at->second.counts;
}

Counts remove(int64_t number) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  const auto at = rules().find(number);
  if (at == rules().end()) return {};
  const Counts counts = at->second.counts;
  rules().erase(at);
  if (rules().empty()) g_watched.fetch_and(~kFaulty);
  g_removed.notify_all();
  return counts;
}

double reach(Point point, const std::string& name, c10::DeviceIndex core, size_t bytes) {
  double spoilt_by = 0;
  for (const auto& [number, rule] : acting(point, name, core)) {
    if (rule.action == Action::kSpoil) spoilt_by = rule.value;
    act(number, rule, name, core, bytes);
  }
  return spoilt_by;
}

bool spoil(void* data, at::ScalarType dtype, double value) {
  if (data == nullptr || !at::isFloatingType(dtype)) return false;
  switch (dtype) {
    case at::kDouble:
      *static_cast<double*>(data) = value;
      return true;
    case at::kFloat:
      *static_cast<float*>(data) = static_cast<float>(value);
      return true;
    case at::kHalf:
      *static_cast<at::Half*>(data) = static_cast<float>(value);
      return true;
    case at::kBFloat16:
      *static_cast<at::BFloat16*>(data) = static_cast<float>(value);
      return true;
    default:
      return false;  // 8-bit types: few of them have an infinity
  }
}

bool spoil(const at::Tensor& result, double value) {
  if (!result.defined() || !result.has_storage() || result.numel() == 0) return false;
  return spoil(result.mutable_data_ptr(), result.scalar_type(), value);
}

}  // namespace torch_neuronx::faults
