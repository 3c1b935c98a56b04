// The thread that tells users that operations have ended: it calls what they have asked to be
// called, in order. Such code may wait for later operations, which a thread that has operations to
// run, or messages to move, could not do meanwhile. One for the process, started when it is first
// needed.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace torch_neuronx::distributed {

class Announcer {
 public:
  static Announcer& instance();

  // Calls `call` soon, without any lock; once stopped, at once.
  void post(std::function<void()> call);
  // Waits until all that was posted has been called; not in what is called itself.
  void drain();
  // The same, and ends the thread: before the interpreter ends.
  void stop();

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool busy_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace torch_neuronx::distributed
