// Threads that stay together for many small pieces of work in a row.
//
// Waking ATen's threads costs microseconds, which is more than most instructions of a kernel take.
// A team is one parallel region: its leader runs the program, the others wait, first spinning, for
// the next piece. Handing out a piece and collecting it costs two trips of a cache line.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

namespace torch_neuronx::program {

class Team {
 public:
  // void fn(void* context, int64_t thread)
  using Function = void (*)(void*, int64_t);

  // The team that the calling thread leads; null if it leads none.
  static Team* current();

  // Runs `body` as the leader of a team of ATen's threads: alone inside a parallel region, or where
  // there is one thread. Throws what `body` throws. The caller leads no team yet.
  template <class Body>
  static void lead(const Body& body) {
    lead_erased([](const void* context) { (*static_cast<const Body*>(context))(); }, &body);
  }

  // The leader: runs fn(context, 0) .. fn(context, size() - 1) on one thread each, the first on this
  // one, and returns when all are done. Throws the first exception that one of them threw.
  void run(Function fn, void* context);

  int64_t size() const { return size_; }

 private:
  static void lead_erased(void (*body)(const void*), const void* context);
  void follow(int64_t thread);
  void work(int64_t thread);

  static constexpr uint64_t kOver = ~uint64_t(0);

  int64_t size_ = 1;
  Function function_ = nullptr;
  void* context_ = nullptr;
  std::exception_ptr failure_;
  std::atomic<bool> failed_{false};
  alignas(64) std::atomic<uint64_t> piece_{0};  // number of the piece handed out last
  alignas(64) std::atomic<int64_t> busy_{0};    // followers that have not done it yet
};

}  // namespace torch_neuronx::program
