#include "distributed/hosts.h"

#include <sstream>

#include "distributed/error.h"

namespace torch_neuronx::distributed {
namespace {

std::vector<std::string> hosts_of(const Segment& segment) {
  std::vector<std::string> hosts;
  for (const auto& identity : segment.ranks()) hosts.push_back(identity.host);
  return hosts;
}

// `count` pieces from `first` on; one array if they follow on each other.
Blocks blocks_of(const std::vector<Memory>& pieces, size_t first, size_t count) {
  Blocks blocks;
  char* base = nullptr;
  size_t offset = 0;
  for (size_t i = first; i < first + count; ++i) {
    auto* data = static_cast<char*>(pieces[i].data);
    if (pieces[i].bytes > 0) {
      if (base == nullptr) base = data - offset;
      blocks.contiguous = blocks.contiguous && data == base + offset;
    }
    offset += pieces[i].bytes;
  }
  offset = 0;
  for (size_t i = first; i < first + count; ++i) {
    blocks.data.push_back(blocks.contiguous ? base + offset : static_cast<char*>(pieces[i].data));
    offset += pieces[i].bytes;
  }
  return blocks;
}

std::vector<int64_t> bytes_of(const std::vector<Memory>& pieces, size_t first, size_t count) {
  std::vector<int64_t> bytes;
  for (size_t i = first; i < first + count; ++i) {
    bytes.push_back(static_cast<int64_t>(pieces[i].bytes));
  }
  return bytes;
}

Span span_of(const Memory& memory) { return {static_cast<char*>(memory.data), memory.bytes}; }

}  // namespace

void SegmentNeighbours::open(const Errand&, const std::vector<Span>& views) {
  call_.exposed.clear();
  for (const auto& view : views) call_.exposed.push_back({view.data, view.bytes});
  if (!alone()) local_.enter(call_);
}

const char* SegmentNeighbours::source(int local, size_t view, size_t bytes) {
  if (!alone()) return reinterpret_cast<const char*>(local_.source(call_, local, view, bytes));
  const Memory& own = call_.exposed.at(view);
  TORCH_INTERNAL_ASSERT(own.bytes == bytes);
  return static_cast<const char*>(own.data);
}

void SegmentNeighbours::barrier(const Errand& errand) {
  if (!alone()) segment_.barrier(errand.deadline, [&] { return call_.text(); });
}

void SegmentNeighbours::close(const Errand&) {
  if (!alone()) local_.leave(call_);
}

Hosts::Hosts(Segment& segment, Local& local, int rank, c10::intrusive_ptr<c10d::Backend> gloo,
             const c10::intrusive_ptr<c10d::Store>& store, const std::vector<std::string>& names)
    : segment_(segment),
      network_(std::move(gloo), store, Topology(rank, hosts_of(segment), names)),
      neighbours_(segment, local),
      group_(network_, neighbours_),
      courier_(
          network_, segment.name(),
          [&segment] {
            if (segment.poisoned()) fail(kClosed, segment.poison_text());
          },
          [&segment](const std::string& reason) { segment.poison(reason); }) {}

void Hosts::shutdown() { courier_.shutdown("group " + segment_.name() + " was shut down"); }

void Hosts::abort(const std::string& reason) {
  network_.announce("neuron: " + reason + " [" + kClosed + "]");
  network_.close();
}

void Hosts::run(const Call& call) {
  if (segment_.poisoned()) fail(kClosed, segment_.poison_text());
  Errand errand;
  errand.text = call.text();
  errand.group = segment_.name();
  errand.deadline = Clock::now() + call.timeout;
  Segment::Watch watch(segment_, Clock::time_point::max());
  const auto exited = [this] {
    std::vector<int> gone;
    for (int r = 0; r < segment_.local_size(); ++r) {
      if (r != segment_.local_rank() && segment_.has_exited(r)) gone.push_back(r);
    }
    return gone;
  };
  errand.check = [&] { watch.look(exited, [&] { return call.text(); }); };
  Call local = call;
  local.by_address = true;
  neighbours_.begin(local);
  try {
    dispatch(call, errand);
  } catch (const c10::DistBackendError& error) {
    segment_.poison(reason_of(error));
    throw;
  }
}

void Hosts::dispatch(const Call& call, Errand& errand) {
  switch (call.kind) {
    case Kind::kBarrier:
      agree_on(call, errand, {});
      return group_.barrier(errand);
    case Kind::kBroadcast:
      return broadcast(call, errand);
    case Kind::kAllReduce:
    case Kind::kReduce:
      return reduce(call, errand);
    case Kind::kAllGather:
      return all_gather(call, errand);
    case Kind::kReduceScatter:
      return reduce_scatter(call, errand);
    case Kind::kGather:
    case Kind::kScatter:
    case Kind::kAllToAll:
      return exchange(call, errand);
    case Kind::kSend:
    case Kind::kReceive:
      TORCH_INTERNAL_ASSERT(false, "the mailbox and the courier do this");
  }
}

// One step of a collective (of its tensors, say) that all ranks must ask for alike.
void Hosts::agree_on(const Call& call, Errand& errand, const std::vector<int64_t>& bytes) {
  std::ostringstream text;
  text << std::hexfloat << static_cast<int>(call.kind) << ' ' << static_cast<int>(call.dtype) << ' '
       << static_cast<int>(call.reduction) << ' ' << call.prescale << ' ' << call.postscale << ' '
       << call.root;
  for (const int64_t size : bytes) text << ' ' << size;
  errand.agreement = text.str();
  errand.number = ++number_;
}

void Hosts::broadcast(const Call& call, Errand& errand) {
  const bool is_root = network_.topology().rank() == call.root;
  for (const auto& memory : is_root ? call.exposed : call.outputs) {
    std::vector<int64_t> bytes(network_.topology().size());
    bytes[call.root] = static_cast<int64_t>(memory.bytes);
    agree_on(call, errand, bytes);
    auto* data = static_cast<char*>(memory.data);
    group_.all_gather(errand, bytes, is_root ? data : nullptr, Blocks::of(data, bytes));
  }
}

void Hosts::reduce(const Call& call, Errand& errand) {
  const Folding folding{call.reduction, call.dtype, call.prescale, call.postscale};
  for (const auto& memory : call.exposed) {
    const auto bytes = static_cast<int64_t>(memory.bytes);
    const auto count = bytes / static_cast<int64_t>(folding.element_bytes());
    auto* data = static_cast<char*>(memory.data);
    agree_on(call, errand, {bytes});
    if (call.kind == Kind::kAllReduce) {
      group_.all_reduce(errand, folding, data, data, count);
      continue;
    }
    std::vector<int64_t> counts(network_.topology().size()), sizes(counts.size());
    counts[call.root] = count;
    sizes[call.root] = bytes;
    group_.reduce_scatter(errand, folding, counts, Blocks::of(data, sizes), data);
  }
}

void Hosts::all_gather(const Call& call, Errand& errand) {
  const auto n = static_cast<size_t>(network_.topology().size());
  for (size_t k = 0; k < call.exposed.size(); ++k) {
    const auto bytes = bytes_of(call.outputs, k * n, n);
    agree_on(call, errand, bytes);
    const auto& mine = call.exposed[k];
    const auto& own = call.outputs[k * n + network_.topology().rank()];
    if (mine.bytes != own.bytes) {
      network_.raise(kInvalid,
                     c10::str(errand.describe(), ": ",
                              network_.topology().describe(network_.topology().rank()), " gives ",
                              mine.bytes, " bytes, but has room for ", own.bytes, " from itself"));
    }
    group_.all_gather(errand, bytes, static_cast<char*>(mine.data),
                      blocks_of(call.outputs, k * n, n));
  }
}

void Hosts::reduce_scatter(const Call& call, Errand& errand) {
  const Folding folding{call.reduction, call.dtype, call.prescale, call.postscale};
  const auto n = static_cast<size_t>(network_.topology().size());
  for (size_t k = 0; k < call.outputs.size(); ++k) {
    const auto bytes = bytes_of(call.exposed, k * n, n);
    agree_on(call, errand, bytes);
    const auto& out = call.outputs[k];
    const auto& own = call.exposed[k * n + network_.topology().rank()];
    if (out.bytes != own.bytes) {
      network_.raise(kInvalid, c10::str(errand.describe(), ": ",
                                        network_.topology().describe(network_.topology().rank()),
                                        " has room for ", out.bytes, " bytes, but gives ",
                                        own.bytes, " for itself"));
    }
    auto counts = bytes;
    for (auto& count : counts) count /= static_cast<int64_t>(folding.element_bytes());
    group_.reduce_scatter(errand, folding, counts, blocks_of(call.exposed, k * n, n),
                          static_cast<char*>(out.data));
  }
}

void Hosts::exchange(const Call& call, Errand& errand) {
  const auto n = static_cast<size_t>(network_.topology().size());
  const bool is_root = network_.topology().rank() == call.root;
  std::vector<Span> to(n), from(n);
  // Only the root has as many pieces as there are ranks, on the side that is not the other's.
  const bool all_out = call.kind == Kind::kAllToAll || (call.kind == Kind::kScatter && is_root);
  const bool all_in = call.kind == Kind::kAllToAll || (call.kind == Kind::kGather && is_root);
  if (all_out) {
    for (size_t r = 0; r < n; ++r) to[r] = span_of(call.exposed[r]);
  } else if (call.kind == Kind::kGather) {
    to[call.root] = span_of(call.exposed[0]);
  }
  if (all_in) {
    for (size_t r = 0; r < n; ++r) from[r] = span_of(call.outputs[r]);
  } else if (call.kind == Kind::kScatter) {
    from[call.root] = span_of(call.outputs[0]);
  }
  agree_on(call, errand, {});
  group_.exchange(errand, to, from, call.root);
}

}  // namespace torch_neuronx::distributed
