#include "dispatch/foreach.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <Python.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "device/pending.h"
#include "device/profiler.h"
#include "device/python_lock.h"
#include "device/state.h"
#include "device/stream.h"
#include "dispatch/alias.h"
#include "dispatch/boxed.h"
#include "dispatch/deferred.h"
#include "dispatch/devices.h"
#include "dispatch/predicting.h"
#include "dispatch/schema.h"
#include "kernels/multi_tensor.h"
#include "memory/allocator.h"

namespace torch_neuronx {

std::atomic<uint32_t> g_deferred_pending{0};

namespace {

using kernels::Op;
using torch::jit::Stack;

// How an operator's arguments make a step: the first `lists` arguments are tensor lists (a, b, c);
// `scalar` is the index of the argument that holds its number or numbers, or -1.
struct Rule {
  const char* name;  // without "aten::"
  Op op;
  int lists;
  int scalar;
  bool negate = false;    // subtraction is addition of the negative
  double constant = 1.0;  // the scalar where there is no argument for it
};

constexpr Rule kRules[] = {
    {"_foreach_add.Scalar", Op::AddScalar, 1, 1},
    {"_foreach_add.ScalarList", Op::AddScalar, 1, 1},
    {"_foreach_add.List", Op::Add, 2, 2},
    {"_foreach_sub.Scalar", Op::AddScalar, 1, 1, true},
    {"_foreach_sub.ScalarList", Op::AddScalar, 1, 1, true},
    {"_foreach_sub.List", Op::Add, 2, 2, true},
    {"_foreach_mul.Scalar", Op::MulScalar, 1, 1},
    {"_foreach_mul.ScalarList", Op::MulScalar, 1, 1},
    {"_foreach_mul.List", Op::Mul, 2, -1},
    {"_foreach_div.Scalar", Op::DivScalar, 1, 1},
    {"_foreach_div.ScalarList", Op::DivScalar, 1, 1},
    {"_foreach_div.List", Op::Div, 2, -1},
    {"_foreach_lerp.Scalar", Op::LerpScalar, 2, 2},
    {"_foreach_lerp.List", Op::LerpTensor, 3, -1},
    {"_foreach_addcmul.Scalar", Op::Addcmul, 3, 3},
    {"_foreach_addcmul.ScalarList", Op::Addcmul, 3, 3},
    {"_foreach_addcdiv.Scalar", Op::Addcdiv, 3, 3},
    {"_foreach_addcdiv.ScalarList", Op::Addcdiv, 3, 3},
    {"_foreach_maximum.Scalar", Op::MaxScalar, 1, 1},
    {"_foreach_maximum.ScalarList", Op::MaxScalar, 1, 1},
    {"_foreach_maximum.List", Op::Maximum, 2, -1},
    {"_foreach_minimum.Scalar", Op::MinScalar, 1, 1},
    {"_foreach_minimum.ScalarList", Op::MinScalar, 1, 1},
    {"_foreach_minimum.List", Op::Minimum, 2, -1},
    {"_foreach_sqrt", Op::Sqrt, 1, -1},
    {"_foreach_rsqrt", Op::Rsqrt, 1, -1},
    {"_foreach_neg", Op::Neg, 1, -1},
    {"_foreach_abs", Op::Abs, 1, -1},
    {"_foreach_reciprocal", Op::Reciprocal, 1, -1},
    {"_foreach_sign", Op::Sign, 1, -1},
};

// A bound on what is kept waiting: an optimizer's step is some ten operators.
constexpr size_t kMaxPendingSteps = 24;

using List = std::vector<at::Tensor>;

// The operators waiting to run. A slot is one tensor list; all lists of a program are equally long,
// with equal shapes position by position.
class Program {
 public:
  explicit Program(c10::Stream stream) : stream_(stream) {}
  // Whether the lists may run in one program with what is pending.
  bool accepts(const List& first, const std::vector<const List*>& others);
  // `name`: of the operator; it outlives the program's work.
  void add(const std::string& name, Op op, const List& dst, const std::vector<const List*>& sources,
           double scalar, std::vector<double> scalars);
  // What is left to do: addresses and numbers. Whoever has it runs it before that memory has
  // another owner, or in the order of a queue.
  std::unique_ptr<queue::Work> work() const;
  // That the operators were issued on.
  c10::Stream stream() const { return stream_; }
  void note_uses() const;
  bool full() const {
    return steps_.size() >= kMaxPendingSteps || slots_.size() + 4 > kernels::kMaxSlots;
  }

 private:
  bool fits(const List& list);
  uint8_t slot_of(const List& list);

  const c10::Stream stream_;
  const int32_t correlation_ = profile_correlation();  // of the first operator
  std::vector<const std::string*> names_;
  std::vector<kernels::Step> steps_;
  std::vector<std::vector<double>> scalars_;  // by step; empty where the step has its own
  std::vector<List> slots_;
  // Where each known tensor begins: its position in the lists, and where it ends. Memory must not
  // be shared between positions, which run in any order.
  struct Range {
    size_t position;
    const char* end;
  };
  std::map<const char*, Range> ranges_;
};

bool Program::fits(const List& list) {
  const List& like = slots_.empty() ? list : slots_.front();
  if (list.size() != like.size()) return false;
  for (size_t i = 0; i < list.size(); ++i) {
    const at::Tensor& t = list[i];
    if (t.scalar_type() != like[0].scalar_type() || t.device() != like[0].device() ||
        t.sizes() != like[i].sizes()) {
      return false;
    }
    const auto* begin = static_cast<const char*>(t.const_data_ptr());
    const auto* end = begin + t.nbytes();
    if (begin == end) continue;
    auto next = ranges_.lower_bound(begin);
    if (next != ranges_.end() && next->first == begin) {
      if (next->second.position != i || next->second.end != end) return false;
      continue;
    }
    if (next != ranges_.end() && next->first < end) return false;
    if (next != ranges_.begin() && std::prev(next)->second.end > begin) return false;
    ranges_.emplace_hint(next, begin, Range{i, end});
  }
  return true;
}

bool Program::accepts(const List& first, const std::vector<const List*>& others) {
  if (!fits(first)) return false;
  if (slots_.empty()) slots_.push_back(first);
  return std::all_of(others.begin(), others.end(), [&](const List* list) { return fits(*list); });
}

uint8_t Program::slot_of(const List& list) {
  for (size_t s = 0; s < slots_.size(); ++s) {
    const auto same = [](const at::Tensor& a, const at::Tensor& b) {
      return a.const_data_ptr() == b.const_data_ptr();
    };
    if (std::equal(list.begin(), list.end(), slots_[s].begin(), same))
      return static_cast<uint8_t>(s);
  }
  slots_.push_back(list);
  return static_cast<uint8_t>(slots_.size() - 1);
}

void Program::add(const std::string& name, Op op, const List& dst,
                  const std::vector<const List*>& sources, double scalar,
                  std::vector<double> scalars) {
  kernels::Step step;
  step.op = op;
  step.scalar = scalar;
  step.per_tensor = !scalars.empty();
  uint8_t* const operands[] = {&step.a, &step.b, &step.c};
  for (size_t i = 0; i < sources.size(); ++i) *operands[i] = slot_of(*sources[i]);
  step.dst = slot_of(dst);
  names_.push_back(&name);
  steps_.push_back(step);
  scalars_.push_back(std::move(scalars));
}

// Whether a Python weak reference could still bring the tensor back.
bool has_weak_reference(PyObject* wrapper) {
  const Py_ssize_t offset = Py_TYPE(wrapper)->tp_weaklistoffset;
  return offset > 0 &&
         *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(wrapper) + offset) != nullptr;
}

// Whether nobody but the one list that holds `t` can reach it. A tensor that was in Python keeps
// its wrapper, which counts as an owner; nobody in Python can reach it when the tensor is the
// wrapper's only owner in turn.
bool is_only_here(const at::Tensor& t) {
  if (t.storage().use_count() != 1) return false;
  const auto* slot = t.unsafeGetTensorImpl()->pyobj_slot();
  PyObject* wrapper = slot->load_pyobj();
  if (wrapper == nullptr) return t.use_count() == 1;
  return t.use_count() == 2 && slot->has_unique_reference() && !has_weak_reference(wrapper);
}

class ProgramWork final : public queue::Work {
 public:
  ProgramWork(c10::DeviceIndex core, int32_t correlation, std::vector<const std::string*> names,
              std::vector<kernels::Step> steps, size_t slots, at::ScalarType dtype,
              std::vector<kernels::TensorGroup> groups, std::vector<const void*> written)
      : core_(core),
        correlation_(correlation),
        names_(std::move(names)),
        steps_(std::move(steps)),
        slots_(slots),
        dtype_(dtype),
        groups_(std::move(groups)),
        written_(std::move(written)) {}
  void run() override {
    const CorrelationScope linked(correlation_);
    const std::string shown = profiling() ? operators() : name();
    ActivityScope activity(shown);
    activity.on(core_);
    kernels::run_program(steps_, static_cast<int>(slots_), dtype_, groups_);
    for (const void* block : written_) mark_written(block);
  }
  std::string name() const override {
    return c10::str("an optimizer's ", steps_.size(), " operators on lists of ", groups_.size(),
                    " tensors");
  }

 private:
  // "foreach: mul_, add_", for profiles.
  std::string operators() const {
    std::string text = "foreach";
    const char* comma = ": ";
    for (const std::string* each : names_) {
      const std::string plain = each->substr(each->find("_foreach_") + 9);
      text.append(comma).append(plain, 0, plain.find('.'));
      comma = ", ";
    }
    return text;
  }

  const c10::DeviceIndex core_;
  const int32_t correlation_;
  const std::vector<const std::string*> names_;
  const std::vector<kernels::Step> steps_;
  const size_t slots_;
  const at::ScalarType dtype_;
  const std::vector<kernels::TensorGroup> groups_;
  const std::vector<const void*> written_;  // blocks of the core
};

std::unique_ptr<queue::Work> Program::work() const {
  const size_t tensors = slots_.front().size();
  std::vector<kernels::TensorGroup> groups(tensors);
  const bool any_scalars =
      std::any_of(scalars_.begin(), scalars_.end(), [](const auto& s) { return !s.empty(); });
  // A slot whose first use is a write needs no memory if nobody can read it any more.
  std::vector<bool> written_first(slots_.size(), false), seen(slots_.size(), false),
      written(slots_.size(), false);
  const auto sources = [](const kernels::Step& s) { return std::array<uint8_t, 3>{s.a, s.b, s.c}; };
  for (const auto& step : steps_) {
    for (const uint8_t s : sources(step)) seen[s] = true;  // unused operands name slot 0: an input
    if (!seen[step.dst]) written_first[step.dst] = seen[step.dst] = true;
    written[step.dst] = true;
  }
  std::vector<const void*> blocks;
  for (size_t i = 0; i < tensors; ++i) {
    auto& group = groups[i];
    group.numel = slots_.front()[i].numel();
    for (size_t s = 0; s < slots_.size(); ++s) {
      const at::Tensor& t = slots_[s][i];
      const bool dead = written_first[s] && is_only_here(t);
      group.slots.push_back(dead ? nullptr : t.mutable_data_ptr());
      if (!written[s] || dead) continue;
      if (const void* block = block_of(t.storage().data_ptr())) blocks.push_back(block);
    }
    if (!any_scalars) continue;
    for (size_t k = 0; k < steps_.size(); ++k) {
      group.scalars.push_back(scalars_[k].empty() ? steps_[k].scalar : scalars_[k][i]);
    }
  }
  return std::make_unique<ProgramWork>(stream_.device_index(), correlation_, names_, steps_,
                                       slots_.size(), slots_.front()[0].scalar_type(),
                                       std::move(groups), std::move(blocks));
}

// When its work is enqueued, and before the tensors are given up.
void Program::note_uses() const {
  if (C10_LIKELY(!has_stream_order())) return;
  for (const List& list : slots_)
    for (const at::Tensor& t : list) use_on(stream_, block_of(t.storage().data_ptr()));
}

std::recursive_mutex g_mutex;
// Whoever waits for the mutex lets go of Python's lock, so whoever has it may wait for that one.
std::unique_lock<std::recursive_mutex> lock_pending() {
  std::unique_lock<std::recursive_mutex> lock(g_mutex, std::try_to_lock);
  if (!lock.owns_lock()) {
    const WithoutPythonLock released;
    lock.lock();
  }
  return lock;
}
std::unique_ptr<Program>& pending() {
  static auto* program = new std::unique_ptr<Program>;  // never destroyed: tensors outlive statics
  return *program;
}

// The list argument, if its tensors can be deferred: dense float tensors on one core.
bool read_list(const c10::IValue& value, List* list) {
  *list = value.toTensorVector();
  if (list->empty()) return false;
  for (const at::Tensor& t : *list) {
    if (!on_neuron(t) || t.device() != list->front().device() || t.layout() != at::kStrided ||
        !t.is_contiguous() || t.is_neg() || t._is_zerotensor() || t.is_nested()) {
      return false;
    }
    const auto dtype = t.scalar_type();
    if (dtype != at::kFloat && dtype != at::kDouble && dtype != at::kBFloat16 && dtype != at::kHalf)
      return false;
  }
  return true;
}

bool read_scalars(const c10::IValue& value, size_t count, bool negate, double* scalar,
                  std::vector<double>* scalars) {
  const double sign = negate ? -1.0 : 1.0;
  if (value.isScalar()) {
    if (value.toScalar().isComplex()) return false;
    *scalar = sign * value.toScalar().toDouble();
    return true;
  }
  if (!value.isList()) return false;
  for (const c10::IValue& item : value.toListRef()) {
    if (!item.isScalar() || item.toScalar().isComplex()) return false;
    scalars->push_back(sign * item.toScalar().toDouble());
  }
  return scalars->size() == count;
}

class ForeachKernel final : public c10::OperatorKernel {
 public:
  ForeachKernel(const c10::OperatorHandle& op, const Rule& rule, bool in_place)
      : plan_(op), rule_(rule), in_place_(in_place) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    if (defer(op, stack)) return;
    if (on_one_core(*stack)) {
      if (in_place_) count_writes((*stack)[stack->size() - plan_.arguments].toTensorVector());
      run_boxed(plan_, op, keys, stack);
    } else {
      // Lists may reach over several devices: each position is a call of its own, which counts its
      // write. PyTorch's composite kernel is what a backend without one of its own gets.
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse2), stack);
    }
  }

 private:
  bool on_one_core(const Stack& stack) const {
    CommonCore core;
    for (int i = 0; i < rule_.lists; ++i) {
      const auto& value = stack[stack.size() - plan_.arguments + static_cast<size_t>(i)];
      for (const c10::IValue& item : value.toListRef()) {
        core.see(item.toTensor(), /*written=*/in_place_ && i == 0);
      }
    }
    return !core.doubtful();
  }

  bool defer(const c10::OperatorHandle& op, Stack* stack) {
    // Another operator that is made of this one goes on as soon as this returns. Deterministic mode
    // joins nothing, though results are the same bit for bit.
    if (queue::detail::t_inside != 0 || at::globalContext().deterministicAlgorithms()) return false;
    const size_t base = stack->size() - plan_.arguments;
    std::array<List, 3> lists;
    std::vector<const List*> sources;
    for (int i = 0; i < rule_.lists; ++i) {
      const auto& value = (*stack)[base + static_cast<size_t>(i)];
      auto& list = lists[static_cast<size_t>(i)];
      if (!value.isTensorList() || !read_list(value, &list)) return false;
      sources.push_back(&list);
    }
    double scalar = rule_.constant;
    std::vector<double> scalars;
    if (rule_.scalar >= 0 && !read_scalars((*stack)[base + static_cast<size_t>(rule_.scalar)],
                                           lists[0].size(), rule_.negate, &scalar, &scalars)) {
      return false;
    }
    // The program may run on any thread, so it must not contain what this one has to wait for.
    if (g_deferred_pending.load(std::memory_order_acquire) & kPendingStreams) {
      wait_pending_of_thread();
    }
    const auto lock = lock_pending();
    auto& program = pending();
    const c10::Stream stream = current_stream(lists[0].front().device().index());
    if (program &&
        (program->full() || program->stream() != stream || !program->accepts(lists[0], sources)))
      run_deferred_slow();
    if (!program) {
      auto fresh = std::make_unique<Program>(stream);
      if (!fresh->accepts(lists[0], sources)) return false;
      program = std::move(fresh);
    }
    List made;
    if (!in_place_) {
      for (const at::Tensor& t : lists[0]) {
        made.push_back(empty_on(t.device().index(), t.sizes(), {}, t.scalar_type()));
      }
      if (!program->accepts(lists[0], {&made})) {
        run_deferred_slow();
        return false;
      }
    }
    if (in_place_) count_writes(lists[0]);
    plan_.entry.note(lists[0].front().scalar_type());
    const List& dst = in_place_ ? lists[0] : made;
    program->add(plan_.entry.name, rule_.op, dst, sources, scalar, std::move(scalars));
    g_deferred_pending.fetch_or(kDeferredProgram, std::memory_order_release);
    // What is joined is executed as one program, which is no execution of an operator.
    if (predicting::asked()) predicting::prediction_of(op, *stack).count(stream.device_index(), 0);
    torch::jit::drop(*stack, plan_.arguments);
    if (!in_place_) stack->emplace_back(std::move(made));
    return true;
  }

  const OpPlan plan_;
  const Rule rule_;
  const bool in_place_;
};

}  // namespace

void count_writes(at::TensorList written) {
  for (const at::Tensor& t : written) t.unsafeGetTensorImpl()->bump_version();
}

void flush_deferred_slow() {
  if (is_in_bad_fork()) return;
  run_deferred();
  if (g_deferred_pending.load(std::memory_order_acquire) & kPendingStreams) {
    wait_pending_of_thread();
  }
}

void run_deferred_slow() {
  // Work of the queue was ordered when it was issued, and must not wait for its own queue.
  if (queue::detail::t_inside != 0 && queue::busy()) return;
  // Destroyed after the lock is released: dropping a tensor may need Python's lock, which a thread
  // that waits here may hold.
  std::unique_ptr<Program> program;
  const auto lock = lock_pending();
  program = std::move(pending());
  if (program == nullptr || is_in_bad_fork()) return;
  // The flag falls only when the work is done or enqueued, so that other threads wait for it.
  struct Done {
    ~Done() { g_deferred_pending.fetch_and(~kDeferredProgram, std::memory_order_release); }
  } done;
  std::unique_ptr<queue::Work> work = program->work();
  if (queue::asynchronous() || queue::busy()) {
    queue::push(program->stream(), std::move(work));
    program->note_uses();
  } else {
    work->run();
  }
}

void register_foreach(torch::Library& library) {
  for (const Rule& rule : kRules) {
    const std::string_view full(rule.name);
    const auto dot = full.find('.');
    const std::string overload(dot == std::string_view::npos ? "" : full.substr(dot));
    for (const bool in_place : {false, true}) {
      const std::string name = std::string(full.substr(0, dot)) + (in_place ? "_" : "") + overload;
      const auto op = find_operator("aten::" + name);
      library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                     std::make_unique<ForeachKernel>(op, rule, in_place)));
    }
  }
}

}  // namespace torch_neuronx
