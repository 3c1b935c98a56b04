#include "program/team.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <thread>

namespace torch_neuronx::program {
namespace {

thread_local Team* led = nullptr;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Longer than most pieces take; after that others may need the core.
constexpr int kSpins = 2000;

template <class Done>
void wait(const Done& done) {
  for (int spins = 0; !done();) {
    if (spins < kSpins) {
      ++spins;
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace

Team* Team::current() { return led; }

void Team::work(int64_t thread) {
  try {
    function_(context_, thread);
  } catch (...) {
    if (!failed_.exchange(true)) failure_ = std::current_exception();
  }
}

void Team::run(Function fn, void* context) {
  if (size_ == 1) return fn(context, 0);
  function_ = fn;
  context_ = context;
  busy_.store(size_ - 1, std::memory_order_relaxed);
  piece_.fetch_add(1, std::memory_order_release);
  work(0);
  wait([&] { return busy_.load(std::memory_order_acquire) == 0; });
  if (failed_.load(std::memory_order_relaxed)) {
    failed_ = false;
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

void Team::follow(int64_t thread) {
  for (uint64_t seen = 0;; ++seen) {
    wait([&] { return piece_.load(std::memory_order_acquire) != seen; });
    if (piece_.load(std::memory_order_relaxed) == kOver) return;
    work(thread);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

void Team::lead_erased(void (*body)(const void*), const void* context) {
  Team team;
  struct Leading {
    explicit Leading(Team* team) { led = team; }
    ~Leading() { led = nullptr; }
  };
  const int threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  if (threads == 1) {
    const Leading leading(&team);
    return body(context);
  }
  std::exception_ptr failure;
#pragma omp parallel num_threads(threads)
  {
    if (omp_get_thread_num() != 0) {
      team.follow(omp_get_thread_num());
    } else {
      team.size_ = omp_get_num_threads();
      const Leading leading(&team);
      try {
        body(context);
      } catch (...) {
        failure = std::current_exception();
      }
      team.piece_.store(kOver, std::memory_order_release);
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace torch_neuronx::program
