#include "distributed/two_level.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <utility>

#include "distributed/error.h"

namespace torch_neuronx::distributed {
namespace {

// Elements of one message of a reduction: 2 MiB of float32, some 200 us of a fast network, so that
// folding, sending and receiving overlap.
constexpr int64_t kChunk = 512 * 1024;
constexpr int64_t kChunkBytes = 2 * 1024 * 1024;
// Elements that are folded to a partial result before they are folded with those of other hosts, so
// that it is still in the cache.
constexpr int64_t kStrip = 16 * 1024;
// Fewer bytes of a host's traffic aren't worth being split over its ranks.
constexpr int64_t kSmallest = 16 * 1024;
// An all_reduce of at most so many bytes is done by the first ranks of the hosts, each for its own
// host: half the trips for more bytes.
constexpr int64_t kSmallReduction = 64 * 1024;
// What a group keeps of the memory it needed, for the next time.
constexpr size_t kSpareBytes = 64 * 1024 * 1024;
constexpr size_t kSparePieces = 16;

std::vector<int64_t> offsets_of(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> offsets;
  int64_t at = 0;
  for (const int64_t size : sizes) offsets.push_back(std::exchange(at, at + size));
  return offsets;
}

std::vector<int64_t> times(std::vector<int64_t> counts, size_t element) {
  for (auto& count : counts) count *= static_cast<int64_t>(element);
  return counts;
}

// Publishes `blocks`: as one view, or each as its own.
void append_views(std::vector<Span>& views, const Blocks& blocks,
                  const std::vector<int64_t>& bytes) {
  if (!blocks.contiguous) {
    for (size_t r = 0; r < bytes.size(); ++r) {
      views.push_back({blocks.data[r], static_cast<size_t>(bytes[r])});
    }
    return;
  }
  size_t total = 0;
  for (const int64_t size : bytes) total += size;
  views.push_back({blocks.data.at(0), total});
}

void copy_unless_same(char* to, const char* from, int64_t bytes) {
  if (to != from && bytes > 0) copy_bytes(to, from, bytes);
}

}  // namespace

Blocks Blocks::of(char* array, const std::vector<int64_t>& bytes) {
  Blocks blocks;
  for (const int64_t offset : offsets_of(bytes)) blocks.data.push_back(array + offset);
  return blocks;
}

// One collective: its messages, the memory they need, and the greeting, in which the first ranks of
// the hosts tell each other what they were called with.
class TwoLevel::Operation {
 public:
  Operation(Network& network, const Errand& errand, std::vector<at::Tensor>& spare)
      : network_(network),
        spare_(spare),
        topology_(network.topology()),
        errand_(errand),
        tag_(Network::data_tag(errand.number, errand.agreement)),
        transfers_(network, errand) {}

  const Errand& errand() const { return errand_; }

  size_t send(int peer, const char* data, size_t bytes) {
    return transfers_.send(peer, tag_, data, bytes);
  }
  size_t receive(int peer, char* data, size_t bytes) {
    return transfers_.receive(peer, tag_, data, bytes);
  }
  Transfers& transfers() { return transfers_; }
  void wait(size_t ticket) { transfers_.wait(ticket); }

  // Memory until the end of the operation: a spare piece, or one of ATen's allocator for the CPU.
  // New pages cost more than what is computed in them.
  char* memory(size_t bytes) {
    const auto fits = [bytes](const at::Tensor& piece) {
      return piece.nbytes() >= bytes && piece.nbytes() / 2 <= bytes;
    };
    const auto found = std::find_if(spare_.begin(), spare_.end(), fits);
    if (found == spare_.end()) {
      memory_.push_back(at::empty({static_cast<int64_t>(bytes)}, at::kByte));
    } else {
      memory_.push_back(std::move(*found));
      spare_.erase(found);
    }
    return static_cast<char*>(memory_.back().data_ptr());
  }

  // After all transfers. What was used last is kept first.
  void give_back_memory() {
    memory_.insert(memory_.end(), std::make_move_iterator(spare_.begin()),
                   std::make_move_iterator(spare_.end()));
    spare_.clear();
    size_t bytes = 0;
    for (auto& piece : memory_) {
      if (bytes + piece.nbytes() > kSpareBytes || spare_.size() == kSparePieces) continue;
      bytes += piece.nbytes();
      spare_.push_back(std::move(piece));
    }
    memory_.clear();
  }

  void greet() {
    if (!topology_.is_leader()) return;
    mine_.number = errand_.number;
    mine_.agreement = Network::hash(0, errand_.agreement);
    errand_.text.copy(mine_.text.data(), mine_.text.size() - 1);
    theirs_.resize(topology_.hosts());
    const int tag = Network::number_tag(errand_.number);
    for (int host = 0; host < topology_.hosts(); ++host) {
      if (host == topology_.host()) continue;
      const int peer = topology_.leader_of(host);
      transfers_.send(peer, tag, &mine_, sizeof(Hello));
      tickets_.emplace_back(host, transfers_.receive(peer, tag, &theirs_[host], sizeof(Hello)));
    }
  }

  void check_greetings() {
    for (const auto& [host, ticket] : tickets_) {
      wait(ticket);
      const auto& hello = theirs_[host];
      if (hello.number == mine_.number && hello.agreement == mine_.agreement) continue;
      const auto called = [this](int rank, const Hello& theirs) {
        return topology_.describe(rank) + " called " + theirs.text.data();
      };
      auto one = called(topology_.rank(), mine_);
      auto other = called(topology_.leader_of(host), hello);
      if (host < topology_.host()) std::swap(one, other);  // the same text on both hosts
      network_.raise(kInvalid,
                     "ranks of group " + errand_.group + " disagree: " + one + ", but " + other);
    }
  }

 private:
  struct Hello {
    uint64_t number = 0;
    uint64_t agreement = 0;
    std::array<char, 240> text{};
  };

  Network& network_;
  std::vector<at::Tensor>& spare_;
  const Topology& topology_;
  const Errand& errand_;
  const int tag_;
  Hello mine_;
  std::vector<Hello> theirs_;
  std::vector<std::pair<int, size_t>> tickets_;
  std::vector<at::Tensor> memory_;
  Transfers transfers_;  // last: what it drops may point to all of the above
};

// In this order, so that who sees connections close finds the reason.
template <class Error>
void TwoLevel::abandon(const Error& reason) {
  network_.announce(first_line(reason));
  network_.close();
}

template <class Body>
void TwoLevel::run(const Errand& errand, const Body& body) {
  Operation operation(network_, errand, spare_);
  try {
    operation.greet();
    body(operation);
    operation.transfers().wait_all();
    operation.give_back_memory();
    neighbours_.close(errand);
  } catch (const c10::DistBackendError& error) {
    abandon(error);
    throw;
  } catch (const std::exception& error) {
    const Topology& topology = network_.topology();
    const std::string who = topology.describe(topology.rank());
    abandon(error_of(kClosed, errand.describe() + " failed on " + who + ": " + first_line(error)));
    throw;
  }
}

// Block `rank` in what a neighbour published from `view` on, in the manner of append_views(`like`).
const char* TwoLevel::block(int local, size_t view, const Blocks& like,
                            const std::vector<int64_t>& offsets, const std::vector<int64_t>& bytes,
                            int rank) {
  if (!like.contiguous) return neighbours_.source(local, view + rank, bytes[rank]);
  const int64_t whole = offsets.back() + bytes.back();
  return neighbours_.source(local, view, whole) + offsets[rank];
}

// ---- Reductions ------------------------------------------------------------------------------

// What other hosts computed of the own block.
struct TwoLevel::Partials {
  struct Part {
    int64_t begin;
    size_t ticket;
  };
  std::vector<char*> of_host;
  std::vector<Part> parts;  // of all hosts, in order of `begin`
  size_t next = 0;

  // Waits for elements below `end`.
  void wait(Operation& operation, int64_t end) {
    for (; next < parts.size() && parts[next].begin < end; ++next) {
      operation.wait(parts[next].ticket);
    }
  }
};

TwoLevel::Partials TwoLevel::post_partials(Operation& operation, const Folding& folding,
                                           const std::vector<int64_t>& counts) {
  const int rank = topology_.rank();
  const auto size = static_cast<int64_t>(folding.partial_bytes());
  Partials partials;
  partials.of_host.resize(topology_.hosts());
  for (int host = 0; host < topology_.hosts(); ++host) {
    if (host == topology_.host()) continue;
    char* memory = operation.memory(counts[rank] * size);
    partials.of_host[host] = memory;
    for (const auto& piece :
         split_blocks(topology_, counts, topology_.host(), host, kSmallest / size, kChunk)) {
      if (piece.owner != rank) continue;
      partials.parts.push_back(
          {piece.begin, operation.receive(piece.carrier, memory + piece.begin * size,
                                          (piece.end - piece.begin) * size)});
    }
  }
  std::stable_sort(partials.parts.begin(), partials.parts.end(),
                   [](auto& a, auto& b) { return a.begin < b.begin; });
  return partials;
}

// Sends other hosts what this one computes of their blocks, and folds the own block. The
// neighbours' input is view 0. finished(begin, end) is called when these elements of `out` are
// there.
template <class Finished>
void TwoLevel::reduce_blocks(Operation& operation, Partials& partials, const Folding& folding,
                             const std::vector<int64_t>& counts, const Blocks& in, char* out,
                             const Finished& finished) {
  const int rank = topology_.rank(), host = topology_.host();
  const auto size = static_cast<int64_t>(folding.partial_bytes());
  const auto element = static_cast<int64_t>(folding.element_bytes());
  const auto bytes = times(counts, element);
  const auto offsets = offsets_of(bytes);
  const int neighbours = static_cast<int>(topology_.neighbours().size());
  // One rank alone has nothing to fold: what it has can be sent as it is.
  const bool as_it_is = neighbours == 1 && folding.partial_is_input();
  std::vector<const char*> inputs(neighbours);
  const auto inputs_at = [&](int owner, int64_t begin) {
    for (int l = 0; l < neighbours; ++l) {
      inputs[l] = block(l, 0, in, offsets, bytes, owner) + begin * element;
    }
  };

  for (int other = 0; other < topology_.hosts(); ++other) {
    if (other == host) continue;
    auto pieces = split_blocks(topology_, counts, other, host, kSmallest / size, kChunk);
    std::erase_if(pieces, [rank](auto& piece) { return piece.carrier != rank; });
    int64_t total = 0;
    for (const auto& piece : pieces) total += piece.end - piece.begin;
    char* memory = as_it_is ? nullptr : operation.memory(total * size);
    for (const auto& piece : pieces) {
      const int64_t count = piece.end - piece.begin;
      inputs_at(piece.owner, piece.begin);
      if (as_it_is) {
        operation.send(piece.owner, inputs[0], count * size);
        continue;
      }
      fold_inputs(folding, inputs, memory, count);
      operation.send(piece.owner, memory, count * size);
      memory += count * size;
    }
  }

  operation.check_greetings();
  char* strip = operation.memory(kStrip * size);
  std::vector<const char*> of_hosts(topology_.hosts());
  for (int64_t chunk = 0; chunk < counts[rank]; chunk += kChunk) {
    const int64_t end = std::min(chunk + kChunk, counts[rank]);
    partials.wait(operation, end);
    for (int64_t at = chunk; at < end; at += kStrip) {
      const int64_t count = std::min(kStrip, end - at);
      inputs_at(rank, at);
      if (!as_it_is) fold_inputs(folding, inputs, strip, count);
      for (int h = 0; h < topology_.hosts(); ++h) {
        of_hosts[h] = h != host ? partials.of_host[h] + at * size : as_it_is ? inputs[0] : strip;
      }
      fold_partials(folding, of_hosts, out + at * element, count);
    }
    finished(chunk, end);
  }
}

void TwoLevel::reduce_scatter(const Errand& errand, const Folding& folding,
                              const std::vector<int64_t>& counts, const Blocks& in, char* out) {
  run(errand, [&](Operation& operation) {
    auto partials = post_partials(operation, folding, counts);
    std::vector<Span> views;
    append_views(views, in, times(counts, folding.element_bytes()));
    neighbours_.open(errand, views);
    reduce_blocks(operation, partials, folding, counts, in, out, [](int64_t, int64_t) {});
  });
}

void TwoLevel::all_reduce(const Errand& errand, const Folding& folding, char* in, char* out,
                          int64_t count) {
  const int rank = topology_.rank(), host = topology_.host();
  const auto element = static_cast<int64_t>(folding.element_bytes());
  if (count * element <= kSmallReduction) {
    run(errand,
        [&](Operation& operation) { all_reduce_small(operation, folding, in, out, count); });
    return;
  }
  // A reduce_scatter of one block per rank, and an all_gather of the results: a chunk is sent on
  // when it is there. If `out` is `in`, a result may overwrite the input of what a neighbour still
  // computes from? No: another host sends a chunk's result after it got all partial results of that
  // chunk, for which the neighbours have read it; and the own block is read by this rank alone.
  const auto counts = equal_blocks(count, topology_.size());
  const auto bytes = times(counts, element);
  const auto offsets = offsets_of(bytes);
  const auto pieces_between = [&](int owners, int carriers) {
    return split_blocks(topology_, counts, owners, carriers, kSmallest / element, kChunk);
  };
  run(errand, [&](Operation& operation) {
    auto partials = post_partials(operation, folding, counts);
    std::vector<Piece> incoming, outgoing;
    for (int other = 0; other < topology_.hosts(); ++other) {
      if (other == host) continue;
      for (const auto& piece : pieces_between(other, host)) incoming.push_back(piece);
      for (const auto& piece : pieces_between(host, other)) {
        if (piece.owner == rank) outgoing.push_back(piece);
      }
    }
    std::vector<size_t> results;
    const auto at = [&](const Piece& piece) {
      return offsets[piece.owner] + piece.begin * element;
    };
    for (const auto& piece : incoming) {
      if (piece.carrier != rank) continue;
      results.push_back(
          operation.receive(piece.owner, out + at(piece), (piece.end - piece.begin) * element));
    }
    const auto whole = static_cast<size_t>(count * element);
    neighbours_.open(errand, {{in, whole}, {out, whole}});
    const auto send_on = [&](int64_t begin, int64_t end) {
      for (const auto& piece : outgoing) {
        if (piece.begin < begin || piece.begin >= end) continue;
        operation.send(piece.carrier, out + at(piece), (piece.end - piece.begin) * element);
      }
    };
    reduce_blocks(operation, partials, folding, counts, Blocks::of(in, bytes), out + offsets[rank],
                  send_on);
    for (const size_t ticket : results) operation.wait(ticket);
    neighbours_.barrier(errand);
    for (const int peer : topology_.neighbours()) {
      if (peer == rank) continue;
      const char* theirs = neighbours_.source(topology_.local_of(peer), 1, whole);
      copy_unless_same(out + offsets[peer], theirs + offsets[peer], bytes[peer]);
    }
    for (const auto& piece : incoming) {
      if (piece.carrier == rank) continue;
      const char* theirs = neighbours_.source(topology_.local_of(piece.carrier), 1, whole);
      copy_unless_same(out + at(piece), theirs + at(piece), (piece.end - piece.begin) * element);
    }
  });
}

void TwoLevel::all_reduce_small(Operation& operation, const Folding& folding, char* in, char* out,
                                int64_t count) {
  const int host = topology_.host();
  const auto size = static_cast<int64_t>(folding.partial_bytes());
  const auto bytes = static_cast<size_t>(count) * folding.element_bytes();
  std::vector<const char*> of_hosts;
  std::vector<size_t> tickets;
  if (topology_.is_leader()) {
    char* memory = operation.memory(topology_.hosts() * count * size);
    for (int other = 0; other < topology_.hosts(); ++other, memory += count * size) {
      of_hosts.push_back(memory);
      if (other == host) continue;
      tickets.push_back(operation.receive(topology_.leader_of(other), memory, count * size));
    }
  }
  neighbours_.open(operation.errand(), {{in, bytes}, {out, bytes}});
  if (topology_.is_leader()) {
    std::vector<const char*> inputs;
    for (const int peer : topology_.neighbours()) {
      inputs.push_back(neighbours_.source(topology_.local_of(peer), 0, bytes));
    }
    fold_inputs(folding, inputs, const_cast<char*>(of_hosts[host]), count);
    for (int other = 0; other < topology_.hosts(); ++other) {
      if (other == host) continue;
      operation.send(topology_.leader_of(other), of_hosts[host], count * size);
    }
    operation.check_greetings();
    for (const size_t ticket : tickets) operation.wait(ticket);
    fold_partials(folding, of_hosts, out, count);
  }
  neighbours_.barrier(operation.errand());
  if (!topology_.is_leader()) {
    copy_unless_same(out, neighbours_.source(0, 1, bytes), static_cast<int64_t>(bytes));
  }
}

// ---- Copies ----------------------------------------------------------------------------------

void TwoLevel::all_gather(const Errand& errand, const std::vector<int64_t>& bytes, char* in,
                          const Blocks& out) {
  const int rank = topology_.rank(), host = topology_.host();
  const auto offsets = offsets_of(bytes);
  run(errand, [&](Operation& operation) {
    std::vector<Piece> incoming, outgoing;
    for (int other = 0; other < topology_.hosts(); ++other) {
      if (other == host) continue;
      const auto to = split_blocks(topology_, bytes, other, host, kSmallest, kChunkBytes);
      incoming.insert(incoming.end(), to.begin(), to.end());
      const auto from = split_blocks(topology_, bytes, host, other, kSmallest, kChunkBytes);
      outgoing.insert(outgoing.end(), from.begin(), from.end());
    }
    std::vector<size_t> tickets;
    for (const auto& piece : incoming) {
      if (piece.carrier != rank) continue;
      tickets.push_back(operation.receive(piece.owner, out.data[piece.owner] + piece.begin,
                                          piece.end - piece.begin));
    }
    for (const auto& piece : outgoing) {
      if (piece.owner != rank) continue;
      operation.send(piece.carrier, in + piece.begin, piece.end - piece.begin);
    }
    std::vector<Span> views{{in, static_cast<size_t>(bytes[rank])}};
    append_views(views, out, bytes);
    neighbours_.open(errand, views);
    for (const int peer : topology_.neighbours()) {
      const char* from =
          peer == rank ? in : neighbours_.source(topology_.local_of(peer), 0, bytes[peer]);
      copy_unless_same(out.data[peer], from, bytes[peer]);
    }
    operation.check_greetings();
    for (const size_t ticket : tickets) operation.wait(ticket);
    neighbours_.barrier(errand);
    for (const auto& piece : incoming) {
      if (piece.carrier == rank) continue;
      const char* from =
          block(topology_.local_of(piece.carrier), 1, out, offsets, bytes, piece.owner);
      copy_unless_same(out.data[piece.owner] + piece.begin, from + piece.begin,
                       piece.end - piece.begin);
    }
  });
}

void TwoLevel::exchange(const Errand& errand, const std::vector<Span>& to,
                        const std::vector<Span>& from, int root) {
  const int rank = topology_.rank();
  const auto talk = [root](int a, int b) { return root < 0 || a == root || b == root; };
  const auto tag_of = [&](size_t bytes) {
    return Network::data_tag(errand.number, c10::str(errand.agreement, ", ", bytes));
  };
  const auto agree = [&](int peer, size_t theirs) {
    if (theirs == from[peer].bytes) return;
    network_.raise(kInvalid, c10::str(errand.describe(), ": ", topology_.describe(rank),
                                      " expects ", from[peer].bytes, " bytes from ",
                                      topology_.describe(peer), ", which has ", theirs, " for it"));
  };
  run(errand, [&](Operation& operation) {
    auto& transfers = operation.transfers();
    const int n = topology_.size();
    // Announced lengths: out in the first half, in in the second.
    auto* lengths = reinterpret_cast<uint64_t*>(operation.memory(2 * n * sizeof(uint64_t)));
    std::vector<std::pair<int, size_t>> announced;
    const int tag = Network::number_tag(errand.number);
    for (int step = 1; step < n; ++step) {
      // Beginning with the next rank, so that not all send to the same one first.
      const int peer = (rank + step) % n;
      if (topology_.host_of(peer) == topology_.host() || !talk(rank, peer)) continue;
      lengths[peer] = to[peer].bytes;
      transfers.send(peer, tag, &lengths[peer], sizeof(uint64_t));
      announced.emplace_back(peer,
                             transfers.receive(peer, tag, &lengths[n + peer], sizeof(uint64_t)));
      transfers.receive(peer, tag_of(from[peer].bytes), from[peer].data, from[peer].bytes);
      transfers.send(peer, tag_of(to[peer].bytes), to[peer].data, to[peer].bytes);
    }
    // A rank that sends to the root alone publishes that alone.
    const auto view_of = [&](int peer) { return root < 0 || peer == root ? rank : 0; };
    neighbours_.open(errand, root < 0 || rank == root ? to : std::vector<Span>{to[root]});
    for (const int peer : topology_.neighbours()) {
      if (!talk(rank, peer)) continue;
      const size_t expected = from[peer].bytes;
      if (peer == rank) agree(peer, to[rank].bytes);
      const char* theirs =
          peer == rank ? to[rank].data
                       : neighbours_.source(topology_.local_of(peer), view_of(peer), expected);
      copy_unless_same(from[peer].data, theirs, static_cast<int64_t>(expected));
    }
    operation.check_greetings();
    for (const auto& [peer, ticket] : announced) {
      operation.wait(ticket);
      agree(peer, lengths[n + peer]);
    }
  });
}

void TwoLevel::barrier(const Errand& errand) {
  run(errand, [&](Operation& operation) {
    neighbours_.open(errand, {});
    operation.check_greetings();
    if (!topology_.is_leader()) return;
    // Greetings were sent before the neighbours had come; these are sent now that they have.
    char* here = operation.memory(topology_.hosts() + 1);
    std::vector<size_t> tickets;
    for (int host = 0; host < topology_.hosts(); ++host) {
      if (host == topology_.host()) continue;
      operation.send(topology_.leader_of(host), here, 1);
      tickets.push_back(operation.receive(topology_.leader_of(host), here + 1 + host, 1));
    }
    for (const size_t ticket : tickets) operation.wait(ticket);
  });
}

}  // namespace torch_neuronx::distributed
