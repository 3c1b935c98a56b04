#include "device/profiler.h"

#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <mutex>
#include <vector>

#include "device/state.h"
#include "device/stream.h"
#include "dispatch/deferred.h"

namespace torch_neuronx {

std::atomic<bool> g_profiling{false};

namespace {

struct Activity {
  std::string name;
  int64_t start, end;
  int32_t device, stream, correlation;
  CommunicationActivity::Facts facts;
};

std::mutex g_profile_mutex;
std::vector<Activity> g_activities;
// The rows of groups: by device, and the group's name. Numbered beyond all streams.
constexpr int32_t kFirstRow = 1000;
std::vector<std::pair<c10::DeviceIndex, std::string>> g_rows;
// The operator that PyTorch is in, as kineto numbers it, innermost last.
thread_local std::vector<int32_t> t_correlation;

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    std::lock_guard<std::mutex> lock(g_profile_mutex);
    g_activities.clear();
    g_profiling.store(true);
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    g_profiling.store(false);
    std::lock_guard<std::mutex> lock(g_profile_mutex);
    recorded_.swap(g_activities);
    rows_ = g_rows;
    status_ = libkineto::TraceStatus::PROCESSING;
  }
  std::vector<std::string> errors() override { return {}; }
  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked,
                    int64_t, int64_t) override {
    for (const Activity& a : recorded_) {
      libkineto::GenericTraceActivity event(span_, libkineto::ActivityType::CONCURRENT_KERNEL,
                                            a.name);
      event.startTime = a.start;
      event.endTime = a.end;
      event.device = a.device;
      event.resource = a.stream;
      event.id = a.correlation;
      event.linked = linked(a.correlation);
      for (const auto& [key, value] : a.facts) event.addMetadataQuoted(key, value);
      event.log(logger);
    }
  }
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return std::make_unique<libkineto::DeviceInfo>(libkineto::DeviceInfo{
        0, libkineto::kExceedMaxPid, "neuron:0", "emulated " + machine().name + " NeuronCore"});
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> infos;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const auto row = kFirstRow + static_cast<int64_t>(i);
      infos.push_back({row, row, rows_[i].first, "communication, group " + rows_[i].second});
    }
    return infos;
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    auto buffer = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer->span = span_;
    buffer->gpuOpCount = static_cast<int>(recorded_.size());
    return buffer;
  }
  void pushCorrelationId(uint64_t id) override {
    t_correlation.push_back(static_cast<int32_t>(id));
  }
  void popCorrelationId() override {
    if (!t_correlation.empty()) t_correlation.pop_back();
  }

 private:
  std::vector<Activity> recorded_;
  std::vector<std::pair<c10::DeviceIndex, std::string>> rows_;
  libkineto::TraceSpan span_{0, 0, "NeuronCores"};
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override {
    static const std::string name = "neuron";
    return name;
  }
  const std::set<libkineto::ActivityType>& availableActivities() const override {
    static const std::set<libkineto::ActivityType> types{
        libkineto::ActivityType::CONCURRENT_KERNEL, libkineto::ActivityType::PRIVATEUSE1_RUNTIME};
    return types;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<libkineto::ActivityType>& types, const libkineto::Config&) override {
    for (const auto type : availableActivities())
      if (types.count(type) > 0) return std::make_unique<Session>();
    return nullptr;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<libkineto::ActivityType>& types,
      const libkineto::Config& config) override {
    return configure(types, config);
  }
};

// The marker interface of torch.autograd.profiler without kineto: a mark is a time stamp.
struct Marks final : torch::profiler::impl::ProfilerStubs {
  using Event = torch::profiler::impl::ProfilerVoidEventStub;
  void record(c10::DeviceIndex* device, Event* event, int64_t* cpu_ns) const override {
    if (device != nullptr) *device = current_device();
    if (is_initialized()) run_deferred();  // waiting would undo what is to be measured
    auto now =
        std::make_shared<std::chrono::steady_clock::time_point>(std::chrono::steady_clock::now());
    if (cpu_ns != nullptr) *cpu_ns = now->time_since_epoch().count();
    *event = now;
  }
  float elapsed(const Event* a, const Event* b) const override {
    const auto at = [](const Event& e) {
      return *std::static_pointer_cast<std::chrono::steady_clock::time_point>(e);
    };
    return std::chrono::duration<float, std::micro>(at(*b) - at(*a)).count();
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> op) const override {
    for (int i = 0; i < device_count(); ++i) op(i);
  }
  void synchronize() const override {
    if (is_initialized()) ::torch_neuronx::synchronize(current_device());
  }
};

[[maybe_unused]] const bool g_profiler_registered = [] {
  torch::profiler::impl::registerPrivateUse1Methods(new Marks);  // kept for the process's life
  libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
  return true;
}();

}  // namespace

int64_t profile_time() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

int32_t profile_correlation() { return t_correlation.empty() ? 0 : t_correlation.back(); }

CorrelationScope::CorrelationScope(int32_t correlation) : active_(correlation != 0) {
  if (active_) t_correlation.push_back(correlation);
}
CorrelationScope::~CorrelationScope() {
  if (active_) t_correlation.pop_back();
}

void ActivityScope::finish() const {
  const auto index = index_ >= 0 ? index_ : current_device();
  const int64_t end = profile_time();
  // "aten::mm" is the operator on the host's track; "neuron::mm" what the core did for it.
  const auto colon = name_.find("::");
  std::string kernel = "neuron" + (colon == std::string::npos ? "::" + name_ : name_.substr(colon));
  std::lock_guard<std::mutex> lock(g_profile_mutex);
  if (!g_profiling.load()) return;  // the profile ended meanwhile
  g_activities.push_back({std::move(kernel),
                          start_,
                          end,
                          index,
                          static_cast<int32_t>(current_stream(index).id()),
                          profile_correlation(),
                          {}});
}

std::unique_ptr<CommunicationActivity> CommunicationActivity::start(std::string name,
                                                                    c10::DeviceIndex index,
                                                                    const std::string& group,
                                                                    Facts facts) {
  auto activity = std::make_unique<CommunicationActivity>();
  activity->name_ = "neuron::" + std::move(name);
  activity->facts_ = std::move(facts);
  activity->index_ = index;
  activity->correlation_ = profile_correlation();
  std::lock_guard<std::mutex> lock(g_profile_mutex);
  const auto key = std::make_pair(index, group);
  const auto known = std::find(g_rows.begin(), g_rows.end(), key);
  activity->row_ = kFirstRow + static_cast<int32_t>(known - g_rows.begin());
  if (known == g_rows.end()) g_rows.push_back(key);
  return activity;
}

void CommunicationActivity::begin() { begin_ = profile_time(); }

void CommunicationActivity::end() {
  const int64_t end = profile_time();
  std::lock_guard<std::mutex> lock(g_profile_mutex);
  if (!g_profiling.load()) return;  // the profile ended meanwhile
  g_activities.push_back(
      {std::move(name_), begin_, end, index_, row_, correlation_, std::move(facts_)});
}

}  // namespace torch_neuronx
