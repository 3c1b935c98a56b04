#include "inference/together.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>

#include "device/python_lock.h"
#include "dispatch/deferred.h"
#include "memory/host_limits.h"

namespace torch_neuronx::inference {
namespace {

// How many OpenMP threads this thread starts; the setting is each thread's own.
class Share {
 public:
  explicit Share(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~Share() { omp_set_num_threads(before_); }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

 private:
  const int before_;
};

// Outlives the call: a thread may come when everything is done.
struct Pieces {
  Pieces(int64_t count, int share, const std::function<void(int64_t)>& body)
      : count(count), share(share), body(body) {}

  void work() {
    for (int64_t i; (i = next.fetch_add(1)) < count;) {
      try {
        if (!failed.load()) {
          const Share threads(share);
          body(i);
          flush_deferred();  // whoever goes on is on another stream
        }
      } catch (...) {
        if (!failed.exchange(true)) failure = std::current_exception();
      }
      const std::lock_guard lock(mutex);
      if (++done == count) finished.notify_all();
    }
  }

  void wait() {
    std::unique_lock lock(mutex);
    finished.wait(lock, [this] { return done == count; });
  }

  const int64_t count;
  const int share;
  const std::function<void(int64_t)>& body;  // of a caller that waits for all pieces
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure;
  std::mutex mutex;
  std::condition_variable finished;
  int64_t done = 0;
};

}  // namespace

void run_together(int64_t count, int64_t most, const std::function<void(int64_t)>& body) {
  const int64_t threads = at::get_num_threads();
  // The processors that this process may use; more pieces at a time than these gain nothing.
  const int64_t host = std::max(threads, static_cast<int64_t>(host_processors()));
  const int64_t workers = std::min({count, most, host});
  if (workers <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  const auto share = static_cast<int>(std::max<int64_t>(1, threads / workers));
  const auto pieces = std::make_shared<Pieces>(count, share, body);
  const WithoutPythonLock unlocked;  // a piece may need Python
  flush_deferred();                  // the other threads are on other streams
  for (int64_t i = 1; i < workers; ++i) at::launch([pieces] { pieces->work(); });
  pieces->work();
  pieces->wait();
  if (pieces->failure) std::rethrow_exception(pieces->failure);
}

}  // namespace torch_neuronx::inference
