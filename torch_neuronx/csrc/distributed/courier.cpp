#include "distributed/courier.h"

#include <ATen/ops/from_blob.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "distributed/error.h"

namespace torch_neuronx::distributed {
namespace {

constexpr int kNotes = Network::kMessages + (1 << 29);
// After so many messages that nobody has told the sender of, it is told.
constexpr uint64_t kReportEvery = 32;
// How long a rank that leaves waits for its last messages to be taken.
constexpr std::chrono::seconds kLinger{10};

int payload_tag(uint64_t number) {
  return Network::kMessages + static_cast<int>(number % (1 << 29));
}

at::Tensor bytes_at(void* data, size_t bytes) {
  return at::from_blob(data, {static_cast<int64_t>(bytes)}, at::kByte);
}

}  // namespace

Courier::Courier(Network& network, std::string group, std::function<void()> check,
                 std::function<void(const std::string&)> poison)
    : network_(network),
      group_(std::move(group)),
      check_(std::move(check)),
      poison_(std::move(poison)) {}

Courier::~Courier() { shutdown("group " + group_ + " was destroyed"); }

std::string Courier::text_of(const Parcel& parcel, bool is_send) const {
  std::string text = is_send ? "send to " : "receive from ";
  text += parcel.peer == kAnySource ? "any rank" : network_.topology().describe(parcel.peer);
  text +=
      c10::str(" (tag ", parcel.tag, ", ", parcel.bytes, " bytes, ", c10::toString(parcel.dtype),
               ") by ", network_.topology().describe(network_.topology().rank()));
  return text;
}

Errand Courier::errand_for(const Parcel& parcel, bool is_send, Clock::time_point deadline) const {
  Errand errand;
  errand.text = text_of(parcel, is_send);
  errand.group = group_;
  errand.deadline = deadline;
  errand.check = check_;
  return errand;
}

void Courier::check_open(int peer) const {
  if (!closed_.empty()) fail(kClosed, closed_);
  check_();
  const auto line = lines_.find(peer);
  if (line != lines_.end() && !line->second->closed.empty()) {
    C10_THROW_ERROR(DistBackendError, line->second->closed);
  }
}

Courier::Line& Courier::line_to(int peer) {
  auto& line = lines_[peer];
  if (line == nullptr) {
    line = std::make_unique<Line>();
    line->peer = peer;
    line->thread = std::thread([this, l = line.get()] { listen(*l); });
    pthread_setname_np(line->thread.native_handle(), "neuron-courier");
  }
  return *line;
}

void Courier::open_lines(int peer) {
  const auto& topology = network_.topology();
  for (int r = 0; r < topology.size(); ++r) {
    if (topology.host_of(r) != topology.host() && (peer == kAnySource || peer == r)) line_to(r);
  }
}

void Courier::write(Line& line, Note kind, const Parcel* parcel, uint64_t number) {
  auto note = std::make_unique<Control>();
  note->note = kind;
  note->number = number;
  note->received = line.reported = line.received;
  size_t bytes = kControlHead;
  if (parcel != nullptr) {
    note->tag = parcel->tag;
    note->bytes = parcel->bytes;
    note->dtype = static_cast<uint32_t>(parcel->dtype);
    if (kind == Note::kMessage && parcel->bytes > 0 && parcel->bytes <= kEager) {
      std::memcpy(note->payload.data(), parcel->data, parcel->bytes);
      bytes += parcel->bytes;
    }
  }
  std::vector<at::Tensor> tensors{bytes_at(note.get(), bytes)};
  auto work = network_.gloo().send(tensors, line.peer, kNotes);
  ++line.written;
  line.under_way.emplace_back(std::move(note), std::move(work));
}

void Courier::send(Parcel parcel) {
  const auto deadline = Clock::now() + parcel.timeout;
  const bool is_eager = parcel.bytes <= kEager;
  std::vector<End> ends;
  std::exception_ptr broken;
  {
    const Lock lock(mutex_);
    check_open(parcel.peer);
    Line& line = line_to(parcel.peer);
    const uint64_t number = ++line.messages;
    broken = error_of([&] {
      write(line, Note::kMessage, &parcel, number);
      if (is_eager) {
        ends.push_back({std::move(parcel), nullptr, network_.topology().rank()});
        return;
      }
      Sending sending;
      sending.deadline = deadline;
      sending.errand = std::make_unique<Errand>(errand_for(parcel, true, deadline));
      sending.payload = std::make_unique<Transfers>(network_, *sending.errand);
      sending.payload->send(parcel.peer, payload_tag(number), parcel.data, parcel.bytes);
      sending.parcel = std::move(parcel);
      line.sending.emplace(number, std::move(sending));
    });
  }
  if (broken != nullptr) {
    network_.fail(parcel.peer, errand_for(parcel, true, deadline), first_line(broken));
  }
  finish(std::move(ends));
}

std::shared_ptr<void> Courier::receive(Parcel parcel) {
  auto receive = std::make_shared<Receive>();
  receive->deadline = Clock::now() + parcel.timeout;
  receive->parcel = std::move(parcel);
  const int peer = receive->parcel.peer;
  const Lock lock(mutex_);
  if (!closed_.empty()) fail(kClosed, closed_);
  open_lines(peer);
  Job job;
  int source = -1;
  if (take_unexpected(receive, &job, &source)) {
    if (job.receive != nullptr) {
      Line& line = *lines_.at(source);
      line.jobs.push_back(std::move(job));
      if (line.listening) line.listening->abort();  // wakes its thread
    }
    return receive;
  }
  check_open(peer);
  posted_.push_back(receive);
  return receive;
}

// The first message that has come for `receive`. True without a job if another took the receive.
bool Courier::take_unexpected(const ReceivePtr& receive, Job* job, int* source) {
  const Parcel& parcel = receive->parcel;
  Line* first = nullptr;
  for (auto& [peer, line] : lines_) {
    if (parcel.peer != kAnySource && parcel.peer != peer) continue;
    const auto arrived = line->unexpected.find(parcel.tag);
    if (arrived == line->unexpected.end()) continue;
    if (first == nullptr ||
        arrived->second.front().stamp < first->unexpected.at(parcel.tag).front().stamp) {
      first = line.get();
    }
  }
  if (first == nullptr) return false;
  if (parcel.claim && !parcel.claim()) return true;
  auto arrived = first->unexpected.find(parcel.tag);
  *job = {receive, std::move(arrived->second.front().note)};
  *source = first->peer;
  arrived->second.pop_front();
  if (arrived->second.empty()) first->unexpected.erase(arrived);
  return true;
}

Courier::ReceivePtr Courier::take_receive(int source, int64_t tag) {
  for (auto each = posted_.begin(); each != posted_.end();) {
    const Parcel& parcel = (*each)->parcel;
    if (parcel.tag != tag || (parcel.peer != kAnySource && parcel.peer != source)) {
      ++each;
      continue;
    }
    const ReceivePtr receive = *each;
    each = posted_.erase(each);
    if (!parcel.claim || parcel.claim()) return receive;
  }
  return nullptr;
}

void Courier::cancel(const std::shared_ptr<void>& receive) {
  const Lock lock(mutex_);
  posted_.remove_if([&](const ReceivePtr& each) { return each == receive; });
}

void Courier::listen(Line& line) {
  while (!stopping_) {
    auto note = std::make_unique<Control>();
    try {
      std::vector<at::Tensor> tensors{bytes_at(note.get(), sizeof(Control))};
      auto work = network_.gloo().recv(tensors, line.peer, kNotes);
      {
        const Lock lock(mutex_);
        line.listening = work;
      }
      for (bool is_here = false; !is_here;) {
        do_jobs(line);
        is_here = network_.wait_a_moment(*work);
        if (stopping_ || (!is_here && !look(line))) return;
      }
      handle(line, std::move(note));
    } catch (const std::exception& error) {
      if (stopping_) return;
      std::vector<End> ends;
      Errand errand;
      errand.text = "a transfer between " +
                    network_.topology().describe(network_.topology().rank()) + " and " +
                    network_.topology().describe(line.peer);
      errand.group = group_;
      errand.check = check_;
      bool is_needed = false;
      {
        const Lock lock(mutex_);
        line.listening.reset();
        is_needed = !line.sending.empty() || !line.jobs.empty() ||
                    std::any_of(posted_.begin(), posted_.end(), [&](const ReceivePtr& each) {
                      return each->parcel.peer == line.peer;
                    });
      }
      // A peer that nobody waits for may go. Who asks for it later learns of it then.
      const auto lost = error_of([&] {
        const std::string reason = first_line(error);
        if (is_needed) network_.fail(line.peer, errand, reason);
        fail(kPeerLost, network_.topology().describe(line.peer) + " has left group " + group_);
      });
      {
        const Lock lock(mutex_);
        end_line(line, lost, &ends);
      }
      finish(std::move(ends));
      return;
    }
  }
}

// What the peer has got, as it says.
void Courier::got(Line& line, const Control& note) {
  ++line.received;
  const uint64_t first = line.written - line.under_way.size();  // that is still kept
  for (uint64_t i = first; i < note.received && !line.under_way.empty(); ++i) {
    line.under_way.pop_front();
  }
}

void Courier::handle(Line& line, std::unique_ptr<Control> note) {
  std::vector<End> ends;
  Job job;
  {
    const Lock lock(mutex_);
    got(line, *note);
    if (note->note == Note::kMessage) {
      const int64_t tag = note->tag;
      if (auto receive = take_receive(line.peer, tag)) {
        job = {std::move(receive), std::move(note)};
      } else {
        line.unexpected[tag].push_back({std::move(note), ++stamps_});
      }
    } else if (const auto sent = line.sending.find(note->number); sent != line.sending.end()) {
      auto error = note->note == Note::kTaken ? nullptr : error_of([&] {
        fail(kInvalid, text_of(sent->second.parcel, true) + " of group " + group_ +
                           " does not fit: " + network_.topology().describe(line.peer) + " wants " +
                           std::to_string(note->bytes) + " bytes, " +
                           c10::toString(static_cast<c10::ScalarType>(note->dtype)));
      });
      ends.push_back({std::move(sent->second.parcel), error, network_.topology().rank()});
      line.sending.erase(sent);
    }
    if (line.received - line.reported >= kReportEvery) {
      write(line, Note::kReceived, nullptr, 0);
    }
  }
  finish(std::move(ends));
  if (job.receive != nullptr) deliver(line, job);
}

void Courier::do_jobs(Line& line) {
  while (true) {
    Job job;
    {
      const Lock lock(mutex_);
      if (line.jobs.empty()) return;
      job = std::move(line.jobs.front());
      line.jobs.pop_front();
    }
    deliver(line, job);
  }
}

void Courier::deliver(Line& line, const Job& job) {
  Parcel& parcel = job.receive->parcel;
  const Control& note = *job.note;
  const bool is_eager = note.bytes <= kEager;
  const auto answer = [&](Note kind) {
    const Lock lock(mutex_);
    write(line, kind, &parcel, note.number);
  };
  const auto error = error_of([&] {
    if (note.bytes != parcel.bytes || note.dtype != static_cast<uint32_t>(parcel.dtype)) {
      if (!is_eager) answer(Note::kRefused);
      fail(kInvalid, text_of(parcel, false) + " of group " + group_ +
                         " does not fit: " + network_.topology().describe(line.peer) + " sent " +
                         std::to_string(note.bytes) + " bytes, " +
                         c10::toString(static_cast<c10::ScalarType>(note.dtype)));
    }
    if (is_eager) {
      if (parcel.bytes > 0) std::memcpy(parcel.data, note.payload.data(), parcel.bytes);
      return;
    }
    const Errand errand = errand_for(parcel, false, job.receive->deadline);
    Transfers transfers(network_, errand);
    transfers.receive(line.peer, payload_tag(note.number), parcel.data, parcel.bytes);
    transfers.wait_all();
    answer(Note::kTaken);
  });
  std::vector<End> ends;
  ends.push_back({std::move(parcel), error, line.peer});
  finish(std::move(ends));
}

// Between two looks at the line: has something gone wrong? False ends the line.
bool Courier::look(Line& line) {
  std::vector<End> ends;
  auto error = error_of(check_);
  bool is_open = error == nullptr;
  {
    const Lock lock(mutex_);
    const auto now = Clock::now();
    const auto mine = [&](const ReceivePtr& each) {
      return each->parcel.peer == line.peer || each->parcel.peer == kAnySource;
    };
    const Parcel* late = nullptr;
    bool is_send = false;
    for (const auto& [number, sending] : line.sending) {
      if (sending.deadline <= now) late = &sending.parcel, is_send = true;
    }
    for (const auto& each : posted_) {
      if (mine(each) && each->deadline <= now) late = &each->parcel, is_send = false;
    }
    if (is_open && late != nullptr) {
      // A message that comes yet would be taken by a receive that is meant for a later one.
      const std::string text = text_of(*late, is_send) + " of group " + group_ + " timed out";
      error = error_of([&] { network_.raise(kTimeout, text); });
      poison_(text);
      is_open = false;
    }
    if (!is_open) end_line(line, error, &ends);
  }
  finish(std::move(ends));
  return is_open;
}

// Everything that waits for this peer ends with `error`.
void Courier::end_line(Line& line, const std::exception_ptr& error, std::vector<End>* ends) {
  line.closed = first_line(error);
  line.listening.reset();
  for (auto& [number, sending] : line.sending) {
    ends->push_back({std::move(sending.parcel), error, network_.topology().rank()});
  }
  line.sending.clear();
  for (auto& job : line.jobs) ends->push_back({std::move(job.receive->parcel), error, line.peer});
  line.jobs.clear();
  // A receive from any may still get something from another rank, until it is late.
  const bool is_last = std::all_of(lines_.begin(), lines_.end(),
                                   [](auto& each) { return !each.second->closed.empty(); });
  for (auto each = posted_.begin(); each != posted_.end();) {
    Parcel& parcel = (*each)->parcel;
    if (parcel.peer == line.peer || (parcel.peer == kAnySource && is_last && !parcel.claim)) {
      ends->push_back({std::move(parcel), error, line.peer});
      each = posted_.erase(each);
    } else {
      ++each;
    }
  }
}

void Courier::finish(std::vector<End> ends) {
  for (auto& end : ends) {
    if (end.parcel.done) end.parcel.done(end.error, end.source);
  }
}

void Courier::shutdown(const std::string& reason) {
  // Messages that were small enough to be "sent" at once may still have to be taken.
  const auto until = Clock::now() + kLinger;
  std::vector<c10::intrusive_ptr<c10d::Work>> last;
  {
    const Lock lock(mutex_);
    if (stopping_) return;
    closed_ = reason;
    for (auto& [peer, line] : lines_) {
      if (!line->closed.empty()) continue;
      for (auto& [note, work] : line->under_way) {
        if (note->note == Note::kMessage) last.push_back(work);
      }
    }
  }
  const auto hopeless = error_of([&] {
    for (const auto& work : last) {
      while (!network_.wait_a_moment(*work) && Clock::now() < until) check_();
    }
  });
  stopping_ = true;
  std::vector<End> ends;
  const auto error = hopeless != nullptr ? hopeless : error_of([&] { fail(kClosed, reason); });
  {
    const Lock lock(mutex_);
    for (auto& [peer, line] : lines_) {
      if (line->listening) line->listening->abort();
      if (line->closed.empty()) end_line(*line, error, &ends);
    }
    for (auto& receive : posted_) ends.push_back({std::move(receive->parcel), error, -1});
    posted_.clear();
  }
  finish(std::move(ends));
  for (auto& [peer, line] : lines_) {
    if (!line->thread.joinable()) continue;
    if (line->thread.get_id() == std::this_thread::get_id()) {
      line->thread.detach();
    } else {
      line->thread.join();
    }
  }
}

}  // namespace torch_neuronx::distributed
