// Threads that stay together for many small pieces of work in a row.
//
// Waking ATen's threads costs microseconds, which is more than most instructions of a kernel take.
// A team is one parallel region: its leader runs the program, the others wait, first spinning, for
// the next piece. Handing out a piece and collecting it costs a few trips of a cache line. A thread
// that has lost its core when a piece is handed out holds nobody up: the leader does its part.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>

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

  // The leader: runs fn(context, 0) .. fn(context, size() - 1) on one thread each, the first on
  // this one, the others on any, and returns when all are done. Throws the first exception that one
  // of them threw.
  void run(Function fn, void* context);

  int64_t size() const { return size_; }

 private:
  static void lead_erased(void (*body)(const void*), const void* context);
  explicit Team(int64_t size);
  void follow(int64_t thread);
  void work(int64_t thread);
  // Whether the caller is to do the part of `thread` of this piece.
  bool claim(int64_t thread, uint64_t piece);

  static constexpr uint64_t kOver = ~uint64_t(0);

  struct alignas(64) Claim {
    std::atomic<uint64_t> piece{0};  // the last one that somebody took this thread's part of
  };

  const int64_t size_;
  std::unique_ptr<Claim[]> claims_;
  Function function_ = nullptr;
  void* context_ = nullptr;
  std::exception_ptr failure_;
  std::atomic<bool> failed_{false};
  alignas(64) std::atomic<uint64_t> piece_{0};  // number of the piece handed out last
  alignas(64) std::atomic<int64_t> busy_{0};    // parts of it that are not done
};

}  // namespace torch_neuronx::program
