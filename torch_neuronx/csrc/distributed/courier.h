// Messages between two ranks on different hosts: send, receive, receive from any.
//
// A message begins with a control message that says what it is. Up to kEager bytes travel in it,
// and its sender is done at once: the receiver keeps them until they are asked for. More bytes
// follow on a tag of their own when a receive wants them, straight into its memory, and the
// receiver tells the sender. So gloo never gets a message that is longer than what was posted for
// it, and tags are not limited to what gloo takes. Order and matching are those of the mailbox
// (mailbox.h).
//
// Every peer has a thread that waits for its control messages, from the first transfer that
// concerns it. A receive from any concerns all.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "distributed/mailbox.h"
#include "distributed/network.h"

namespace torch_neuronx::distributed {

class Courier {
 public:
  static constexpr size_t kEager = 3584;

  /// `check` throws if the group is of no use any more; `poison` makes it so, with a reason.
  Courier(Network& network, std::string group, std::function<void()> check,
          std::function<void(const std::string&)> poison);
  ~Courier();
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  /// As Mailbox::send and receive, with ranks of the group: a parcel's `peer` and what `done` gets.
  /// A receive from any takes what comes from other hosts, if its `claim` allows it.
  void send(Parcel parcel);
  std::shared_ptr<void> receive(Parcel parcel);

  /// Forgets a receive, unless a message was matched with it. Its `done` is not called.
  void cancel(const std::shared_ptr<void>& receive);

  /// Ends all transfers with an error that has `reason`, and the threads.
  void shutdown(const std::string& reason);

 private:
  enum class Note : uint32_t { kMessage, kTaken, kRefused, kReceived };
  struct Control {
    Note note = Note::kMessage;
    uint32_t dtype = 0;
    int64_t tag = 0;
    uint64_t bytes = 0;
    uint64_t number = 0;    // of the message between the two, from 1
    uint64_t received = 0;  // how many control messages the writer got from the reader
    std::array<char, kEager> payload;
  };
  static constexpr size_t kControlHead = sizeof(Control) - kEager;

  struct Receive {
    Parcel parcel;
    Clock::time_point deadline;
  };
  using ReceivePtr = std::shared_ptr<Receive>;
  struct Sending {
    Parcel parcel;
    Clock::time_point deadline;
    std::unique_ptr<Errand> errand;
    std::unique_ptr<Transfers> payload;
  };
  struct Job {  // a message and who takes it
    ReceivePtr receive;
    std::unique_ptr<Control> note;
  };
  struct Arrival {
    std::unique_ptr<Control> note;
    uint64_t stamp;
  };
  struct Line {  // to one peer
    int peer = -1;
    std::thread thread;
    c10::intrusive_ptr<c10d::Work> listening;
    uint64_t messages = 0;  // sent
    uint64_t written = 0;   // control messages
    uint64_t received = 0;  // the same, from the peer
    uint64_t reported = 0;  // of these, how many the peer knows of
    std::map<uint64_t, Sending> sending;
    // Control messages that the peer may not have got yet.
    std::deque<std::pair<std::unique_ptr<Control>, c10::intrusive_ptr<c10d::Work>>> under_way;
    std::map<int64_t, std::deque<Arrival>> unexpected;  // by tag
    std::deque<Job> jobs;                               // of its thread
    std::string closed;                                 // why nothing comes any more
  };
  using Lock = std::unique_lock<std::mutex>;
  struct End {
    Parcel parcel;
    std::exception_ptr error;
    int source;
  };

  // With the lock held.
  Line& line_to(int peer);
  void open_lines(int peer);
  void write(Line& line, Note kind, const Parcel* parcel, uint64_t number);
  void got(Line& line, const Control& note);
  ReceivePtr take_receive(int source, int64_t tag);
  bool take_unexpected(const ReceivePtr& receive, Job* job, int* source);
  void end_line(Line& line, const std::exception_ptr& error, std::vector<End>* ends);
  void check_open(int peer) const;

  // Without.
  void listen(Line& line);
  void handle(Line& line, std::unique_ptr<Control> note);
  void do_jobs(Line& line);
  void deliver(Line& line, const Job& job);
  bool look(Line& line);
  void finish(std::vector<End> ends);
  Errand errand_for(const Parcel& parcel, bool is_send, Clock::time_point deadline) const;
  std::string text_of(const Parcel& parcel, bool is_send) const;

  Network& network_;
  const std::string group_;
  const std::function<void()> check_;
  const std::function<void(const std::string&)> poison_;
  std::mutex mutex_;
  std::map<int, std::unique_ptr<Line>> lines_;
  std::list<ReceivePtr> posted_;  // in order
  uint64_t stamps_ = 0;
  std::atomic<bool> stopping_{false};
  std::string closed_;
};

}  // namespace torch_neuronx::distributed
