// Control flow: programs that run on memory of another.
#include "program/interrupts.h"
#include "program/steps.h"

namespace torch_neuronx::program {
namespace {

bool equal(const Geometry& a, const Geometry& b) {
  return a.dtype == b.dtype && a.sizes == b.sizes && a.strides == b.strides;
}

// Memory for the outputs of `body` where result r may be written straight to `places[r]`.
using Targets = c10::SmallVector<Argument, 8>;
template <class Fits>
Targets make_targets(const Program& body, c10::ArrayRef<Argument> places, const Fits& fits) {
  Targets targets(body.outputs.size());
  for (size_t o = 0; o < body.outputs.size(); ++o) {
    for (size_t r = 0; r < body.results.size(); ++r) {
      if (body.results[r] != body.outputs[o]) continue;
      if (fits(r)) targets[o] = places[r];
      break;
    }
  }
  return targets;
}

}  // namespace

void CallStep::run(Frame& frame) const {
  for (const View& view : outs) frame.ensure(view.buffer);
  if (kind == Kind::kWhile) return loop(frame);
  size_t body = 0;
  if (kind == Kind::kCond) {
    const char* chosen = frame.at(*selector);
    if (selector->geometry.dtype == at::kBool) {
      body = *reinterpret_cast<const uint8_t*>(chosen) != 0 ? 0 : 1;
    } else {
      // As in XLA, whatever is out of range takes the last one.
      const int32_t number = *reinterpret_cast<const int32_t*>(chosen);
      const bool inside = number >= 0 && static_cast<size_t>(number) < bodies.size();
      body = inside ? static_cast<size_t>(number) : bodies.size() - 1;
    }
  }
  call(frame, *bodies[body]);
}

void CallStep::call(Frame& frame, const Program& body) const {
  c10::SmallVector<Argument, 8> arguments, places;
  for (const View& view : operands) {
    arguments.push_back({frame.at(view), frame.owner(view.buffer), frame.stable(view.buffer)});
  }
  for (const View& view : outs) places.push_back({frame.at(view), frame.owner(view.buffer), false});
  const Targets targets = make_targets(body, places, [&](size_t r) {
    return equal(outs[r].geometry, body.buffers[body.results[r]].geometry);
  });
  Frame inner(body, arguments, targets);
  inner.run({});
  for (size_t r = 0; r < outs.size(); ++r) {
    const int32_t from = body.results[r];
    copy_view(places[r].data, outs[r].geometry, inner.at(from, 0), body.buffers[from].geometry);
  }
}

void CallStep::loop(Frame& frame) const {
  const Program &condition = *bodies[0], &body = *bodies[1];
  const size_t count = operands.size();
  // A variable that the body returns as it came needs no second copy, and none at all if nothing
  // writes to it.
  enum class Memory : uint8_t { kLent, kSingle, kDouble };
  struct Variable {
    const Geometry* geometry;
    Memory memory;
    int64_t offset;
  };
  constexpr int64_t kAlign = 64;
  c10::SmallVector<Variable, 8> variables(count);
  int64_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    const Buffer& buffer = body.buffers[body.arguments[i]];
    const bool returned = body.results[i] == body.arguments[i];
    const bool written = buffer.written || condition.buffers[condition.arguments[i]].written;
    Variable& v = variables[i];
    v.geometry = &buffer.geometry;
    v.memory = !returned ? Memory::kDouble : written ? Memory::kSingle : Memory::kLent;
    v.offset = total;
    const int64_t bytes = (v.geometry->high + kAlign - 1) / kAlign * kAlign;
    total += v.memory == Memory::kLent ? 0 : v.memory == Memory::kSingle ? bytes : 2 * bytes;
  }
  const c10::Storage storage = allocate_scratch(static_cast<size_t>(total), frame.program().device);
  char* memory = static_cast<char*>(storage.mutable_data());
  c10::SmallVector<Argument, 8> now(count), next(count);
  for (size_t i = 0; i < count; ++i) {
    const Variable& v = variables[i];
    const View& view = operands[i];
    if (v.memory == Memory::kLent) {
      now[i] = {frame.at(view), frame.owner(view.buffer), frame.stable(view.buffer)};
      continue;
    }
    now[i] = {memory + v.offset, storage.unsafeGetStorageImpl(), false};
    next[i] = now[i];
    if (v.memory == Memory::kDouble) {
      next[i].data += (v.geometry->high + kAlign - 1) / kAlign * kAlign;
    }
    copy_view(now[i].data, *v.geometry, frame.at(view), view.geometry);
  }
  Interrupts interrupts;
  for (;; interrupts.poll()) {
    {
      Frame ask(condition, now);
      ask.run({});
      if (*ask.at(condition.results[0], 0) == 0) break;
    }
    const Targets targets = make_targets(body, next, [&](size_t r) {
      return variables[r].memory == Memory::kDouble &&
             equal(*variables[r].geometry, body.buffers[body.results[r]].geometry);
    });
    Frame inner(body, now, targets);
    inner.run({});
    for (size_t i = 0; i < count; ++i) {
      if (variables[i].memory != Memory::kDouble) continue;
      const int32_t from = body.results[i];
      copy_view(next[i].data, *variables[i].geometry, inner.at(from, 0),
                body.buffers[from].geometry);
    }
    for (size_t i = 0; i < count; ++i) {
      if (variables[i].memory == Memory::kDouble) std::swap(now[i], next[i]);
    }
  }
  for (size_t i = 0; i < count; ++i) {
    copy_view(frame.at(outs[i]), outs[i].geometry, now[i].data, *variables[i].geometry);
  }
}

}  // namespace torch_neuronx::program
