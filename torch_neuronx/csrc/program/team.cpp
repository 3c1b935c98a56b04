#include "program/team.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <thread>
#include <utility>

#include "device/relax.h"

namespace torch_neuronx::program {
namespace {

thread_local Team* led = nullptr;

// Longer than most pieces take; after that others may need the core.
constexpr int kSpins = 2000;
// How long the leader waits for a thread that may not have begun, some 0.3 us.
constexpr int kPatience = 20;

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

Team::Team(int64_t size) : size_(size), claims_(new Claim[size_t(size)]) {}

void Team::work(int64_t thread) {
  try {
    function_(context_, thread);
  } catch (...) {
    if (!failed_.exchange(true)) failure_ = std::current_exception();
  }
}

bool Team::claim(int64_t thread, uint64_t piece) {
  uint64_t before = piece - 1;
  return claims_[thread].piece.compare_exchange_strong(before, piece, std::memory_order_acq_rel);
}

void Team::run(Function fn, void* context) {
  if (size_ == 1) return fn(context, 0);
  function_ = fn;
  context_ = context;
  busy_.store(size_ - 1, std::memory_order_relaxed);
  const uint64_t piece = piece_.fetch_add(1, std::memory_order_release) + 1;
  work(0);
  const auto done = [&] { return busy_.load(std::memory_order_acquire) == 0; };
  for (int spins = 0; spins < kPatience && !done(); ++spins) relax();
  if (!done()) {
    for (int64_t thread = 1; thread < size_; ++thread) {
      if (!claim(thread, piece)) continue;
      work(thread);
      busy_.fetch_sub(1, std::memory_order_relaxed);
    }
    wait(done);
  }
  if (failed_.load(std::memory_order_relaxed)) {
    failed_ = false;
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

void Team::follow(int64_t thread) {
  for (uint64_t seen = 0;;) {
    uint64_t piece = seen;
    wait([&] { return (piece = piece_.load(std::memory_order_acquire)) != seen; });
    if (piece == kOver) return;
    seen = piece;
    if (!claim(thread, piece)) continue;
    work(thread);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

void Team::lead_erased(void (*body)(const void*), const void* context) {
  const int threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  Team team(threads);
  struct Leading {
    explicit Leading(Team* team) { led = team; }
    ~Leading() { led = nullptr; }
  };
  if (threads == 1) {
    const Leading leading(&team);
    return body(context);
  }
  std::exception_ptr failure;
#pragma omp parallel num_threads(threads)
  {
    // There may be fewer threads than were asked for: the leader does what nobody takes.
    if (omp_get_thread_num() != 0) {
      team.follow(omp_get_thread_num());
    } else {
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
