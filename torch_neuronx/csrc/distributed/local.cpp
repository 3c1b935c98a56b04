#include "distributed/local.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "distributed/error.h"
#include "distributed/tensor_text.h"
#include "memory/allocator.h"

namespace torch_neuronx::distributed {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kInlineTotal = 64 << 10;  // of all ranks' payloads, as every rank reads them all

bool has_equal_elements(Kind kind) {
  return kind == Kind::kBroadcast || kind == Kind::kAllReduce || kind == Kind::kReduce ||
         kind == Kind::kReduceScatter;
}

void fill(Descriptor& d, const Call& call) {
  d.sequence = call.sequence;
  d.elements = call.elements;
  d.prescale = call.prescale;
  d.postscale = call.postscale;
  d.root = call.root;
  d.views = static_cast<uint32_t>(call.exposed.size());
  d.kind = static_cast<uint8_t>(call.kind);
  d.dtype = static_cast<uint8_t>(call.dtype);
  d.reduction = static_cast<uint8_t>(call.reduction);
  d.dims = static_cast<int8_t>(std::min<size_t>(call.sizes.size(), kMaxDims + 1));
  for (int i = 0; i < std::min<int>(d.dims, kMaxDims); ++i) d.sizes[i] = call.sizes[i];
}

// "all_reduce 17 (sum, Float [4, 3])"
std::string text_of(const Descriptor& d) {
  const auto kind = static_cast<Kind>(d.kind);
  std::ostringstream text;
  text << kind_name(kind) << ' ' << d.sequence;
  if (kind == Kind::kBarrier) return text.str();
  text << " (";
  if (kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter) {
    const auto reduction = static_cast<Reduction>(d.reduction);
    text << (reduction == Reduction::kSum && d.postscale != 1 ? "avg" : reduction_name(reduction));
    if (d.prescale != 1) text << " of " << d.prescale << " times";
    text << ", ";
  }
  if (d.root >= 0) text << "root " << d.root << ", ";
  text << tensor_text(d.dtype, d.sizes, d.dims);
  uint64_t elements = 1;
  for (int i = 0; i < std::min<int>(d.dims, kMaxDims); ++i)
    elements *= static_cast<uint64_t>(d.sizes[i]);
  const bool is_whole = kind == Kind::kAllReduce || kind == Kind::kReduce;
  if (is_whole && d.dims <= kMaxDims && d.elements != elements)
    text << " and more, " << d.elements << " elements";
  text << ")";
  return text.str();
}

}  // namespace

const char* kind_name(Kind kind) {
  static constexpr const char* kNames[] = {
      "barrier", "broadcast",      "all_reduce", "reduce", "all_gather", "gather",
      "scatter", "reduce_scatter", "all_to_all", "send",   "receive"};
  return kNames[static_cast<size_t>(kind)];
}

size_t Call::exposed_bytes() const {
  size_t bytes = 0;
  for (const auto& memory : exposed) bytes += memory.bytes;
  return bytes;
}

std::string Call::text() const {
  Descriptor descriptor{};
  fill(descriptor, *this);
  return text_of(descriptor);
}

std::string Local::describe(int local_rank, const Descriptor& d) const {
  return segment_.rank_name(segment_.members()[static_cast<size_t>(local_rank)]) + " called " +
         text_of(d);
}

void Local::run(const Call& call) {
  enter(call);
  act(call);
  leave(call);
}

void Local::enter(const Call& call) {
  post(call);
  segment_.barrier(Clock::now() + call.timeout, [&] { return call.text(); });
  compare(call);
}

void Local::leave(const Call& call) {
  if (!all_inline_) segment_.barrier(Clock::now() + call.timeout, [&] { return call.text(); });
}

void Local::post(const Call& call) {
  Slot& slot = segment_.mine();
  Post& mine = slot.posts[call.sequence % 2];
  Descriptor& d = mine.descriptor;
  fill(d, call);

  const size_t count = call.exposed.size();
  const size_t bytes = call.exposed_bytes();
  const size_t limit = std::min(kInlineBytes, kInlineTotal / segment_.ranks().size());
  d.is_inline = !call.by_address && bytes <= limit && count <= kInlineViews;
  View* views = mine.views;
  if (count > kInlineViews) {
    TORCH_INTERNAL_ASSERT(call.table.bytes >= count * sizeof(View));
    views = static_cast<View*>(call.table.data);
    mine.table = segment_.expose(views, count * sizeof(View));
  }
  std::byte* payload = mine.payload;
  for (size_t i = 0; i < count; ++i) {
    const Memory& memory = call.exposed[i];
    if (d.is_inline) {
      views[i] = {-1, static_cast<uint64_t>(payload - mine.payload), memory.bytes};
      if (memory.bytes > 0) std::memcpy(payload, memory.data, memory.bytes);
      payload += memory.bytes;
    } else {
      views[i] = segment_.expose(memory.data, memory.bytes);
    }
  }
  slot.sequence.store(call.sequence, std::memory_order_release);
}

void Local::compare(const Call& call) {
  all_inline_ = true;
  const int me = segment_.local_rank();
  const Descriptor& mine = post_of(me, call.sequence).descriptor;
  for (int r = 0; r < segment_.local_size(); ++r) {
    const Descriptor& theirs = post_of(r, call.sequence).descriptor;
    all_inline_ = all_inline_ && theirs.is_inline;
    const bool same_call = mine.sequence == theirs.sequence && mine.kind == theirs.kind &&
                           mine.root == theirs.root && mine.dtype == theirs.dtype &&
                           mine.reduction == theirs.reduction && mine.prescale == theirs.prescale &&
                           mine.postscale == theirs.postscale;
    const bool same_size = !has_equal_elements(call.kind) || mine.elements == theirs.elements;
    if (same_call && same_size) continue;
    const std::string text = "ranks of group " + segment_.name() +
                             " disagree: " + describe(std::min(me, r), me < r ? mine : theirs) +
                             ", but " + describe(std::max(me, r), me < r ? theirs : mine);
    segment_.poison(text);
    fail(kInvalid, text);
  }
}

const std::byte* Local::reach(const Call& call, int local_rank, const View& view) {
  try {
    return segment_.resolve(local_rank, view);
  } catch (const c10::DistBackendError& error) {
    const std::string where = call.text() + " of group " + segment_.name() + " can't finish";
    segment_.poison(where + ": " + reason_of(error));
    fail_in(where, error);
  }
}

const std::byte* Local::source(const Call& call, int local_rank, size_t index, size_t bytes) {
  const Post& post = post_of(local_rank, call.sequence);
  const Descriptor& d = post.descriptor;
  const View* views = post.views;
  if (d.views > kInlineViews)
    views = reinterpret_cast<const View*>(reach(call, local_rank, post.table));
  const bool exists = index < d.views;
  if (!exists || views[index].bytes != bytes) {
    const std::string text =
        call.text() + " of group " + segment_.name() + ": " +
        segment_.rank_name(segment_.members()[static_cast<size_t>(segment_.local_rank())]) +
        " expects " + std::to_string(bytes) + " bytes from " +
        segment_.rank_name(segment_.members()[static_cast<size_t>(local_rank)]) + ", which has " +
        (exists ? std::to_string(views[index].bytes) : "none") + " for it";
    segment_.poison(text);
    fail(kInvalid, text);
  }
  if (bytes == 0) return nullptr;
  return d.is_inline ? post.payload + views[index].offset : reach(call, local_rank, views[index]);
}

void Local::pull(const Call& call, int local_rank, size_t index, const Memory& out) {
  const std::byte* in = source(call, local_rank, index, out.bytes);
  if (in != out.data && out.bytes > 0) copy_bytes(out.data, in, out.bytes);
}

void Local::gather_from(const Call& call, size_t tensors) {
  const auto n = static_cast<size_t>(segment_.local_size());
  const auto me = static_cast<size_t>(segment_.local_rank());
  for (size_t k = 0; k < tensors; ++k) {
    for (size_t i = 0; i < n; ++i) {
      const size_t r = (me + i) % n;  // ranks start at different peers
      pull(call, static_cast<int>(r), k, call.outputs[k * n + r]);
    }
  }
}

void Local::all_reduce(const Call& call) {
  const auto n = static_cast<size_t>(segment_.local_size());
  const auto me = static_cast<size_t>(segment_.local_rank());
  const size_t width = c10::elementSize(call.dtype);
  const bool only_root = call.kind == Kind::kReduce;
  const auto root = static_cast<size_t>(std::max(call.root, 0));
  std::vector<const void*> inputs(n);
  std::vector<void*> outputs;
  for (size_t k = 0; k < call.exposed.size(); ++k) {
    const size_t count = call.exposed[k].bytes / width;
    // Every rank of small collectives computes all of its own result.
    size_t begin = 0, end = count;
    if (!all_inline_) {
      const size_t unit = std::max<size_t>(1, kLine / width);
      const size_t units = (count + unit - 1) / unit;
      begin = std::min(count, units * me / n * unit);
      end = std::min(count, units * (me + 1) / n * unit);
    } else if (only_root && me != root) {
      continue;
    }
    for (size_t r = 0; r < n; ++r) {
      const std::byte* in = source(call, static_cast<int>(r), k, call.exposed[k].bytes);
      inputs[r] = in == nullptr ? nullptr : in + begin * width;
    }
    if (begin == end) continue;
    outputs.clear();
    if (all_inline_) {
      outputs.push_back(call.exposed[k].data);
    } else {
      for (size_t r = 0; r < n; ++r)
        if (!only_root || r == root) outputs.push_back(const_cast<void*>(inputs[r]));
    }
    reduce(call.reduction, call.dtype, inputs.data(), n, outputs.data(), outputs.size(),
           end - begin, call.prescale, call.postscale);
  }
}

void Local::act(const Call& call) {
  const auto n = static_cast<size_t>(segment_.local_size());
  const auto me = static_cast<size_t>(segment_.local_rank());
  switch (call.kind) {
    case Kind::kBarrier:
      return;
    case Kind::kBroadcast:
      for (size_t k = 0; k < call.outputs.size(); ++k) pull(call, call.root, k, call.outputs[k]);
      return;
    case Kind::kAllReduce:
    case Kind::kReduce:
      return all_reduce(call);
    case Kind::kAllGather:
      return gather_from(call, call.exposed.size());
    case Kind::kGather:
      return gather_from(call, call.outputs.empty() ? 0 : 1);
    case Kind::kScatter:
      return pull(call, call.root, me, call.outputs[0]);
    case Kind::kReduceScatter: {
      std::vector<const void*> inputs(n);
      for (size_t k = 0; k < call.outputs.size(); ++k) {
        const Memory& out = call.outputs[k];
        for (size_t r = 0; r < n; ++r)
          inputs[r] = source(call, static_cast<int>(r), k * n + me, out.bytes);
        void* target = out.data;
        if (out.bytes > 0)
          reduce(call.reduction, call.dtype, inputs.data(), n, &target, 1,
                 out.bytes / c10::elementSize(call.dtype), call.prescale, call.postscale);
      }
      return;
    }
    case Kind::kAllToAll:
      for (size_t i = 0; i < n; ++i) {
        const size_t r = (me + i) % n;
        pull(call, static_cast<int>(r), me, call.outputs[r]);
      }
      return;
    case Kind::kSend:
    case Kind::kReceive:
      TORCH_INTERNAL_ASSERT(false, "the mailbox does this");
  }
}

}  // namespace torch_neuronx::distributed
