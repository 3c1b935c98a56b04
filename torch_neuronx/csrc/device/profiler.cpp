#include "device/profiler.h"

#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/stubs/base.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <mutex>
#include <sstream>
#include <unordered_map>
#include <vector>

#include "device/faults.h"
#include "device/python_lock.h"
#include "device/state.h"
#include "device/stream.h"
#include "dispatch/deferred.h"

namespace torch_neuronx {

std::atomic<uint32_t> g_watched{0};

namespace {

// Texts that come again and again, by number: an activity stays small however long its names are.
class Texts {
 public:
  uint32_t number(std::string text) {
    const auto [at, fresh] = numbers_.try_emplace(std::move(text), texts_.size());
    if (fresh) texts_.push_back(&at->first);
    return at->second;
  }
  const std::string& text(uint32_t number) const { return *texts_[number]; }

 private:
  std::unordered_map<std::string, uint32_t> numbers_;
  std::vector<const std::string*> texts_;
};

// Facts as one text, of which there are few: keys and values end with a zero each.
std::string packed(const Facts& facts) {
  std::string text;
  for (const auto& [key, value] : facts) text.append(key).append(1, 0).append(value).append(1, 0);
  return text;
}
template <class See>
void for_each_fact(const std::string& text, See see) {
  for (size_t at = 0; at < text.size();) {
    const std::string key(text.c_str() + at);
    const std::string value(text.c_str() + at + key.size() + 1);
    at += key.size() + value.size() + 2;
    see(key, value);
  }
}

struct Activity {
  int64_t start, end;
  uint32_t name, facts;
  int32_t row, correlation;
  ActivityKind kind;
};
static_assert(sizeof(Activity) <= 40, "docs/profiling.md says so");

// What a profile is to hold; by default everything.
struct Limits {
  size_t most = SIZE_MAX;  // activities of a core: the oldest go
  uint64_t cores = ~uint64_t{0};
};

struct Recording {
  std::array<std::deque<Activity>, kMaxDevices> activities;  // by core
  Texts texts;
  Limits limits;
  int64_t dropped = 0;

  void add(c10::DeviceIndex core, Activity activity) {
    const auto index = static_cast<size_t>(core);
    if ((limits.cores >> index & 1) == 0) return;
    activities[index].push_back(activity);
    while (activities[index].size() > limits.most) {
      activities[index].pop_front();
      ++dropped;
    }
  }
};

std::mutex g_profile_mutex;
// torch.profiler's recording and the runtime's own, while there is one.
std::unique_ptr<Recording> g_session, g_own;
// The rows of groups: by device, and the group's name. Numbered beyond all streams.
constexpr int32_t kFirstRow = 1000;
std::vector<std::pair<c10::DeviceIndex, std::string>> g_rows;
// The operator that PyTorch is in, as kineto numbers it, innermost last.
thread_local std::vector<int32_t> t_correlation;

// Adds an activity unless the profile ended meanwhile.
void record(c10::DeviceIndex core, int64_t start, ActivityKind kind, const std::string& name,
            const Facts& facts, int32_t row, int32_t correlation) {
  const int64_t end = profile_time();
  const std::lock_guard<std::mutex> lock(g_profile_mutex);
  for (Recording* recording : {g_session.get(), g_own.get()}) {
    if (recording == nullptr) continue;
    Texts& texts = recording->texts;
    recording->add(core, {start, end, texts.number(name), texts.number(packed(facts)), row,
                          correlation, kind});
  }
}

// Begins a recording, or ends it and returns it.
std::unique_ptr<Recording> exchange(std::unique_ptr<Recording>& recording,
                                    std::unique_ptr<Recording> next) {
  const std::lock_guard<std::mutex> lock(g_profile_mutex);
  recording.swap(next);
  if (g_session != nullptr || g_own != nullptr) {
    g_watched.fetch_or(kProfiled);
  } else {
    g_watched.fetch_and(~kProfiled);
  }
  return next;
}

// A recording holds what is enqueued within it, on all cores: it begins and ends when that is done
// which was enqueued before. What failed is kept for whoever waits next.
void wait_for_cores() {
  run_deferred();
  const WithoutPythonLock released;
  queue::wait_holding_locks();
}
void begin(std::unique_ptr<Recording>& recording, const Limits& limits) {
  wait_for_cores();
  auto fresh = std::make_unique<Recording>();
  fresh->limits = limits;
  (void)exchange(recording, std::move(fresh));
}
std::unique_ptr<Recording> finish(std::unique_ptr<Recording>& recording) {
  wait_for_cores();
  return exchange(recording, nullptr);
}

// "neuron max_events 1000 cores 0,3": NeuronConfig, by way of torch's custom_profiler_config.
Limits limits_in(const std::string& text) {
  Limits limits;
  std::istringstream words(text);
  std::string word;
  if (!(words >> word) || word != "neuron") return limits;
  while (words >> word) {
    if (word == "max_events") {
      words >> limits.most;
    } else if (word == "cores" && words >> word) {
      limits.cores = 0;
      std::istringstream numbers(word);
      for (std::string number; std::getline(numbers, number, ',');)
        limits.cores |= uint64_t{1} << (std::strtoul(number.c_str(), nullptr, 10) % kMaxDevices);
    }
  }
  return limits;
}

libkineto::ActivityType type_of(ActivityKind kind) {
  switch (kind) {
    case ActivityKind::kCopy:
      return libkineto::ActivityType::GPU_MEMCPY;
    // Its steps are what takes time, so it doesn't count as work of its own.
    case ActivityKind::kProgram:
      return libkineto::ActivityType::GPU_USER_ANNOTATION;
    case ActivityKind::kIssue:
      return libkineto::ActivityType::PRIVATEUSE1_RUNTIME;
    default:
      return libkineto::ActivityType::CONCURRENT_KERNEL;
  }
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(const Limits& limits) : limits_(limits) {}
  void start() override {
    begin(g_session, limits_);
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    recorded_ = finish(g_session);
    const std::lock_guard<std::mutex> lock(g_profile_mutex);
    rows_ = g_rows;
    status_ = libkineto::TraceStatus::PROCESSING;
  }
  std::vector<std::string> errors() override { return {}; }
  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked,
                    int64_t, int64_t) override {
    if (recorded_ == nullptr) return;
    for (size_t core = 0; core < recorded_->activities.size(); ++core)
      for (const Activity& a : recorded_->activities[core])
        log(a, static_cast<int32_t>(core), logger, linked);
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
    size_t count = 0;
    if (recorded_ != nullptr)
      for (const auto& each : recorded_->activities) count += each.size();
    buffer->gpuOpCount = static_cast<int>(count);
    return buffer;
  }
  std::unordered_map<std::string, std::string> getMetadata() override {
    if (recorded_ == nullptr || recorded_->dropped == 0) return {};
    return {{"neuron_dropped_events", std::to_string(recorded_->dropped)}};
  }
  void pushCorrelationId(uint64_t id) override {
    t_correlation.push_back(static_cast<int32_t>(id));
  }
  void popCorrelationId() override {
    if (!t_correlation.empty()) t_correlation.pop_back();
  }

 private:
  void log(const Activity& a, int32_t core, libkineto::ActivityLogger& logger,
           const libkineto::getLinkedActivityCallback& linked) const {
    libkineto::GenericTraceActivity event(span_, type_of(a.kind), recorded_->texts.text(a.name));
    event.startTime = a.start;
    event.endTime = a.end;
    event.device = a.kind == ActivityKind::kIssue ? static_cast<int32_t>(getpid()) : core;
    event.resource = a.row;
    event.id = a.correlation;
    event.linked = linked(a.correlation);
    // Numbers too are texts: kineto's way to write one needs functions that PyTorch doesn't export.
    for_each_fact(recorded_->texts.text(a.facts),
                  [&](const std::string& key, const std::string& value) {
                    event.addMetadataQuoted(key, escaped(value));
                  });
    event.log(logger);
  }
  // As it stands between the quotes of JSON; kineto adds only these.
  static std::string escaped(const std::string& text) {
    std::string result;
    for (const char c : text) {
      if (c == '"' || c == '\\') result += '\\';
      result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return result;
  }

  const Limits limits_;
  std::unique_ptr<Recording> recorded_;
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
        libkineto::ActivityType::CONCURRENT_KERNEL, libkineto::ActivityType::GPU_MEMCPY,
        libkineto::ActivityType::GPU_USER_ANNOTATION, libkineto::ActivityType::PRIVATEUSE1_RUNTIME};
    return types;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<libkineto::ActivityType>& types, const libkineto::Config& config) override {
    constexpr libkineto::ActivityType kAsked[] = {libkineto::ActivityType::CONCURRENT_KERNEL,
                                                  libkineto::ActivityType::PRIVATEUSE1_RUNTIME};
    for (const auto type : kAsked)
      if (types.count(type) > 0)
        return std::make_unique<Session>(limits_in(config.getCustomConfig()));
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
    if (!is_initialized()) return;
    for (int i = 0; i < device_count(); ++i)
      ::torch_neuronx::synchronize(static_cast<c10::DeviceIndex>(i));
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

struct ActivityScope::Seen {
  int64_t start;
  ActivityScope* outer;
  double spoilt_by = 0;
  Facts facts;
};

namespace {
thread_local ActivityScope* t_scope = nullptr;
}  // namespace

void ActivityScope::begin() {
  seen_ = new Seen{profile_time(), t_scope, 0, {}};
  t_scope = this;
}

void ActivityScope::reach() {
  // What one execution does by others within it belongs to its own work.
  if (seen_->outer != nullptr || !faults::armed()) return;
  const auto core = index_ >= 0 ? index_ : current_device();
  seen_->spoilt_by = faults::reach(faults::Point::kExecution, name_, core, 0);
}

double ActivityScope::seen_spoilt_by() const { return seen_->spoilt_by; }

void ActivityScope::note(Facts facts) {
  if (t_scope == nullptr) return;
  Facts& known = t_scope->seen_->facts;
  for (auto& fact : facts) known.push_back(std::move(fact));
}

void ActivityScope::note_copy(const char* direction, size_t bytes) {
  if (t_scope == nullptr) return;
  t_scope->kind_ = ActivityKind::kCopy;
  Facts& facts = t_scope->seen_->facts;
  facts.insert(facts.begin(), {{"direction", direction}, {"bytes", std::to_string(bytes)}});
}

void ActivityScope::finish() {
  const std::unique_ptr<Seen> seen(std::exchange(seen_, nullptr));
  t_scope = seen->outer;
  if (!profiling()) return;
  const auto index = index_ >= 0 ? index_ : current_device();
  // "aten::mm" is the operator on the host's track; "neuron::mm" what the core did for it.
  const auto colon = name_.find("::");
  std::string name = kind_ == ActivityKind::kProgram ? "neuron::program " + name_
                     : colon == std::string::npos    ? "neuron::" + name_
                                                     : "neuron" + name_.substr(colon);
  if (kind_ == ActivityKind::kCopy) name = "Memcpy " + seen->facts.front().second;
  // A program's steps are linked to the operator that runs it; linked too, it would count twice.
  const int32_t correlation = kind_ == ActivityKind::kProgram ? 0 : profile_correlation();
  record(index, seen->start, kind_, name, seen->facts,
         static_cast<int32_t>(current_stream(index).id()), correlation);
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
  record(index_, begin_, ActivityKind::kCommunication, name_, facts_, row_, correlation_);
}

void start_recording(size_t most, uint64_t cores) { begin(g_own, {most, cores}); }

int64_t take_recording(const std::function<void(const RecordedActivity&)>& see) {
  constexpr const char* kKinds[] = {"kernel", "copy", "program", "communication", "issue"};
  const auto recorded = finish(g_own);
  if (recorded == nullptr) return 0;
  for (size_t core = 0; core < recorded->activities.size(); ++core) {
    for (const Activity& a : recorded->activities[core]) {
      Facts facts;
      for_each_fact(recorded->texts.text(a.facts),
                    [&](const std::string& key, const std::string& value) {
                      facts.emplace_back(key, value);
                    });
      see({recorded->texts.text(a.name), kKinds[static_cast<size_t>(a.kind)], a.start, a.end,
           static_cast<int>(core), a.row, std::move(facts)});
    }
  }
  return recorded->dropped;
}

void note_issue(const std::string& name, c10::DeviceIndex index, int64_t start) {
  record(index, start, ActivityKind::kIssue, "nrt_execute",
         {{"work", name}, {"core", std::to_string(index)}}, static_cast<int32_t>(gettid()),
         profile_correlation());
}

}  // namespace torch_neuronx
