#include "distributed/bindings_network.h"

#include <ATen/core/Tensor.h>
#include <pybind11/stl.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "distributed/error.h"
#include "distributed/two_level.h"

namespace torch_neuronx::distributed {
namespace {

namespace py = pybind11;
using at::Tensor;

// The ranks of a host, as threads: what Neighbours promises with a mutex.
class ThreadHost {
 public:
  explicit ThreadHost(int ranks) : published(ranks) {}

  void barrier(const Errand& errand) {
    std::unique_lock lock(mutex_);
    const auto turn = turn_;
    if (++arrived_ == published.size()) {
      arrived_ = 0;
      ++turn_;
      changed_.notify_all();
      return;
    }
    const bool met = changed_.wait_until(lock, errand.deadline,
                                         [&] { return turn_ != turn || !failure_.empty(); });
    if (turn_ != turn) return;
    if (met) C10_THROW_ERROR(DistBackendError, failure_);
    fail(kTimeout, errand.describe() + ": a neighbour is missing");
  }

  void check() {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) C10_THROW_ERROR(DistBackendError, failure_);
  }

  void poison(const std::string& what) {
    std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = what;
    changed_.notify_all();
  }

  std::vector<std::vector<Span>> published;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t arrived_ = 0;
  uint64_t turn_ = 0;
  std::string failure_;
};

class ThreadNeighbours final : public Neighbours {
 public:
  ThreadNeighbours(std::shared_ptr<ThreadHost> host, int local)
      : host_(std::move(host)), local_(local) {}

  void open(const Errand& errand, const std::vector<Span>& views) override {
    host_->published.at(local_) = views;
    host_->barrier(errand);
  }
  const char* source(int local, size_t view, size_t bytes) override {
    const Span& span = host_->published.at(local).at(view);
    if (span.bytes != bytes) fail(kInvalid, "neighbours disagree about a size");
    return span.data;
  }
  void barrier(const Errand& errand) override { host_->barrier(errand); }
  void close(const Errand& errand) override { host_->barrier(errand); }

 private:
  std::shared_ptr<ThreadHost> host_;
  int local_;
};

char* data_of(const Tensor& t) {
  TORCH_CHECK((t.device().is_cpu() || t.device().is_privateuseone()) && t.is_contiguous(),
              "expected contiguous tensors on cpu or neuron");
  return static_cast<char*>(t.data_ptr());
}

std::vector<Span> spans_of(const std::vector<Tensor>& tensors) {
  std::vector<Span> spans;
  for (const auto& t : tensors) spans.push_back({data_of(t), t.nbytes()});
  return spans;
}

// Blocks of their own, or (one tensor) of one array.
Blocks blocks_of(const std::vector<Tensor>& tensors, const std::vector<int64_t>& bytes) {
  if (tensors.size() == 1 && bytes.size() > 1) return Blocks::of(data_of(tensors[0]), bytes);
  Blocks blocks;
  blocks.contiguous = false;
  for (const auto& t : tensors) blocks.data.push_back(data_of(t));
  return blocks;
}

// One rank. Its methods are collectives: all ranks call them, each in a thread of its own.
class TwoLevelRank {
 public:
  TwoLevelRank(const py::object& gloo, const py::object& store, int rank,
               const std::vector<std::string>& hosts, std::shared_ptr<ThreadHost> host)
      : network_(c10::intrusive_ptr<c10d::Backend>::unsafe_reclaim_from_nonowning(
                     gloo.cast<c10d::Backend*>()),
                 c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(
                     store.cast<c10d::Store*>()),
                 Topology(rank, hosts)),
        host_(std::move(host)),
        neighbours_(host_, network_.topology().local()),
        group_(network_, neighbours_) {}

  void set_timeout(double seconds) { timeout_ = std::chrono::duration<double>(seconds); }

  using Scales = std::pair<double, double>;

  void all_reduce(const std::string& what, const std::string& op, const Tensor& in,
                  const Tensor& out, Scales scales) {
    const Folding folding{reduction_of(op), in.scalar_type(), scales.first, scales.second};
    run(what, [&](const Errand& errand) {
      group_.all_reduce(errand, folding, data_of(in), data_of(out), in.numel());
    });
  }

  void reduce_scatter(const std::string& what, const std::string& op, const std::vector<Tensor>& in,
                      const Tensor& out, const std::vector<int64_t>& counts, Scales scales) {
    const Folding folding{reduction_of(op), out.scalar_type(), scales.first, scales.second};
    auto bytes = counts;
    for (auto& size : bytes) size *= static_cast<int64_t>(folding.element_bytes());
    run(what, [&](const Errand& errand) {
      group_.reduce_scatter(errand, folding, counts, blocks_of(in, bytes), data_of(out));
    });
  }

  void all_gather(const std::string& what, const std::vector<int64_t>& bytes, const Tensor& in,
                  const std::vector<Tensor>& out) {
    run(what, [&](const Errand& errand) {
      group_.all_gather(errand, bytes, data_of(in), blocks_of(out, bytes));
    });
  }

  void exchange(const std::string& what, const std::vector<Tensor>& to,
                const std::vector<Tensor>& from, int root) {
    run(what,
        [&](const Errand& errand) { group_.exchange(errand, spans_of(to), spans_of(from), root); });
  }

  void barrier() {
    run("barrier", [&](const Errand& errand) { group_.barrier(errand); });
  }

 private:
  template <class Body>
  void run(const std::string& what, const Body& body) {
    py::gil_scoped_release release;
    Errand errand;
    errand.number = ++number_;
    errand.text = c10::str(what, " ", number_);
    errand.agreement = what;
    errand.group = "0";
    errand.deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout_);
    errand.check = [this] { host_->check(); };
    try {
      body(errand);
    } catch (const std::exception& error) {
      host_->poison(first_line(error));
      throw;
    }
  }

  Network network_;
  std::shared_ptr<ThreadHost> host_;
  ThreadNeighbours neighbours_;
  TwoLevel group_;
  uint64_t number_ = 0;
  std::chrono::duration<double> timeout_{60};
};

using PlainPiece = std::tuple<int, int, int64_t, int64_t>;

std::vector<PlainPiece> plain_pieces(const std::vector<std::string>& hosts,
                                     const std::vector<int64_t>& blocks, int owners, int carriers,
                                     int64_t minimum, int64_t chunk) {
  std::vector<PlainPiece> pieces;
  for (const auto& p : split_blocks(Topology(0, hosts), blocks, owners, carriers, minimum, chunk)) {
    pieces.emplace_back(p.owner, p.carrier, p.begin, p.end);
  }
  return pieces;
}

}  // namespace

void bind_network(py::module_& m) {
  m.def("distributed_split_blocks", &plain_pieces, py::arg("hosts"), py::arg("blocks"),
        py::arg("owners"), py::arg("carriers"), py::arg("minimum"), py::arg("chunk"));
  py::class_<ThreadHost, std::shared_ptr<ThreadHost>>(m, "ThreadHost")
      .def(py::init<int>(), py::arg("ranks"));
  py::class_<TwoLevelRank>(m, "TwoLevelRank")
      .def(py::init<const py::object&, const py::object&, int, const std::vector<std::string>&,
                    std::shared_ptr<ThreadHost>>(),
           py::arg("gloo"), py::arg("store"), py::arg("rank"), py::arg("hosts"), py::arg("host"))
      .def("set_timeout", &TwoLevelRank::set_timeout, py::arg("seconds"))
      .def("all_reduce", &TwoLevelRank::all_reduce, py::arg("what"), py::arg("op"),
           py::arg("source"), py::arg("output"), py::arg("scales") = std::pair(1.0, 1.0))
      .def("reduce_scatter", &TwoLevelRank::reduce_scatter, py::arg("what"), py::arg("op"),
           py::arg("inputs"), py::arg("output"), py::arg("counts"),
           py::arg("scales") = std::pair(1.0, 1.0))
      .def("all_gather", &TwoLevelRank::all_gather, py::arg("what"), py::arg("sizes"),
           py::arg("source"), py::arg("outputs"))
      .def("exchange", &TwoLevelRank::exchange, py::arg("what"), py::arg("to"), py::arg("source"),
           py::arg("root") = -1)
      .def("barrier", &TwoLevelRank::barrier);
}

}  // namespace torch_neuronx::distributed
