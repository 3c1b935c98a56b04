// What PyTorch calls to send and to receive.
#include <c10/core/StorageImpl.h>

#include <algorithm>

#include "device/faults.h"
#include "device/profiler.h"
#include "device/stream.h"
#include "dispatch/deferred.h"
#include "distributed/backend.h"
#include "distributed/error.h"
#include "distributed/predicted.h"
#include "memory/allocator.h"
#include "memory/shared.h"
#include "queue/queue.h"

namespace torch_neuronx::distributed {

using c10d::OpType;

c10::intrusive_ptr<c10d::Work> NeuronBackend::send(Tensors& tensors, int destination, int tag) {
  return transfer(OpType::SEND, tensors, destination, tag);
}

c10::intrusive_ptr<c10d::Work> NeuronBackend::recv(Tensors& tensors, int source, int tag) {
  return transfer(OpType::RECV, tensors, source, tag);
}

c10::intrusive_ptr<c10d::Work> NeuronBackend::recvAnysource(Tensors& tensors, int tag) {
  return transfer(OpType::RECVANYSOURCE, tensors, kAnySource, tag);
}

namespace {

// A message under way, for a profile. Sends and receives have rows of their own, since they run
// beside the group's collectives and beside each other.
std::unique_ptr<CommunicationActivity> activity_of(const Parcel& parcel, const std::string& name,
                                                   c10::DeviceIndex device, int peer,
                                                   const std::string& group, int size) {
  Facts facts{
      {"Collective name", name},
      {"Bytes", std::to_string(parcel.bytes)},
      {"dtype", c10::toString(parcel.dtype)},
      {"Process Group Name", group},
      {"Group size", std::to_string(size)},
      {"Peer", peer == kAnySource ? "any" : std::to_string(peer)},
      {"Tag", std::to_string(parcel.tag)},
  };
  auto activity = CommunicationActivity::start(name, device, group + ", " + name, std::move(facts));
  activity->begin();
  return activity;
}

}  // namespace

// A receive that is posted twice, for messages from this host and for those from others; who gets
// one first takes it from the other.
struct NeuronBackend::TwoWays {
  std::atomic<bool> is_taken{false};
  std::mutex mutex;
  std::shared_ptr<Transfer> here;
  std::shared_ptr<void> elsewhere;

  bool claim() { return !is_taken.exchange(true); }

  // After it was taken, either way.
  void cancel(Mailbox& mailbox, Courier& courier) {
    std::unique_lock<std::mutex> lock(mutex);
    const auto local = here;
    const auto remote = elsewhere;
    lock.unlock();
    mailbox.cancel(local);
    courier.cancel(remote);
  }
};

std::shared_ptr<Transfer> NeuronBackend::receive_from_all_hosts(const Parcel& parcel,
                                                                const Done& done) {
  auto ways = std::make_shared<TwoWays>();
  const auto members = segment_.members();
  const auto both = [this, ways, done](const std::exception_ptr& error, int source) {
    // A message was claimed when it was matched; an error must still be the first to come.
    if (error != nullptr && !ways->claim()) return;
    ways->cancel(*mailbox_, hosts_->courier());
    done(error, source);
  };
  Parcel here = parcel, elsewhere = parcel;
  here.peer = elsewhere.peer = kAnySource;
  here.claim = elsewhere.claim = [ways] { return ways->claim(); };
  here.done = [both, members](const std::exception_ptr& error, int source) {
    both(error, members[source]);
  };
  elsewhere.done = both;
  auto posted = mailbox_->receive(std::move(here));
  {
    const std::lock_guard<std::mutex> lock(ways->mutex);
    ways->here = posted;
  }
  auto other = hosts_->courier().receive(std::move(elsewhere));
  {
    const std::lock_guard<std::mutex> lock(ways->mutex);
    ways->elsewhere = other;
  }
  if (ways->is_taken) ways->cancel(*mailbox_, hosts_->courier());
  return posted;
}

namespace {

// A transfer that is posted when the core comes to its place in the queue of its stream.
class Posting final : public queue::Work {
 public:
  Posting(std::function<void()> post, std::shared_ptr<Operation> operation, std::string name)
      : post_(std::move(post)), operation_(std::move(operation)), name_(std::move(name)) {}
  void run() override {
    try {
      post_();
    } catch (...) {
      operation_->finish(std::current_exception());
    }
  }
  void skip() override {
    operation_->finish(
        error_of(kClosed, name_ + " did not begin: earlier work of the core failed"));
  }
  std::string name() const override { return name_; }

 private:
  const std::function<void()> post_;
  const std::shared_ptr<Operation> operation_;
  const std::string name_;
};

}  // namespace

c10::intrusive_ptr<c10d::Work> NeuronBackend::transfer(OpType type, const Tensors& tensors,
                                                       int peer, int tag) {
  if (closed_) fail(kClosed, "group " + segment_.name() + " was destroyed");
  const bool is_send = type == OpType::SEND;
  const char* name = is_send ? "send" : "receive";
  TORCH_CHECK_VALUE(tensors.size() == 1, name, ": got ", tensors.size(),
                    " tensors, but one message is one tensor");
  // What is sent is only read: it is copied if it isn't in one piece.
  const bool is_strided = tensors[0].layout() == at::kStrided && !tensors[0].is_contiguous();
  const at::Tensor tensor = is_send && is_strided ? tensors[0].detach().contiguous() : tensors[0];
  TORCH_CHECK_VALUE(type == OpType::RECVANYSOURCE || (peer >= 0 && peer < size_), name, ": rank ",
                    peer, " is not a rank of a group of ", size_);
  TORCH_CHECK_VALUE(tensor.layout() != at::kStrided || tensor.is_contiguous(), name,
                    ": tensors must be contiguous, but got strides ", tensor.strides(), " for ",
                    tensor.sizes(), "; call .contiguous() first");
  Request request(is_send ? Kind::kSend : Kind::kReceive, type, size_, true, options_->timeout);
  if (is_send) {
    request.expose(tensor);
  } else {
    request.output(tensor);
  }
  const Memory memory = (is_send ? request.call.exposed : request.call.outputs).at(0);
  const auto device = static_cast<c10::DeviceIndex>(request.call.device);
  if (faults::armed())
    (void)faults::reach(faults::Point::kCommunication, name, device, memory.bytes);
  const c10::Stream stream = current_stream(device);
  if (memory.bytes > kSmallMessage && segment_.local_size() > 1) share_arena(device);

  Parcel parcel;
  parcel.data = memory.data;
  parcel.bytes = memory.bytes;
  parcel.dtype = request.call.dtype;
  parcel.sizes = request.call.sizes;
  parcel.peer = peer;
  parcel.tag = tag;
  parcel.timeout = request.call.timeout;
  // Where the stream has work that is not done, what is sent may not be computed yet, and what is
  // received into may be read: the core posts the transfer when it comes to it.
  order_deferred();
  const bool later = queue::asynchronous() && queue::busy(stream);
  queue::order_exchange(later ? std::optional<c10::Stream>(stream) : std::nullopt);
  if (!later) {
    flush_deferred();
    for (const auto& completion : pending_of(stream)) completion->wait();
  }
  auto operation = std::make_shared<Operation>(nullptr, Tensors{tensor}, request.kept, device);
  if (profiling())
    operation->profile(activity_of(parcel, name, device, peer, segment_.name(), size_));
  operation->moves(memory.bytes);
  report(operation, type, sequence_);
  // Without the object in Python, which may need Python's lock when it goes.
  const at::Tensor kept = tensor.detach();
  registry::Prediction* const prediction =
      predicting::asked() ? &prediction_of(is_send ? Kind::kSend : Kind::kReceive, memory.bytes,
                                           memory.bytes, size_, *options_)
                          : nullptr;
  const auto post = [this, operation, prediction, is_send, kept, parcel,
                     request = std::move(request)] {
    if (is_send) request.stage_in();
    const Done done = [operation, prediction, is_send, kept, request](
                          const std::exception_ptr& error, int source) {
      if (!is_send && error == nullptr) {
        request.stage_out();
        if (kept.has_storage()) mark_written(*kept.storage().unsafeGetStorageImpl());
      }
      if (prediction != nullptr && error == nullptr) prediction->count(operation->device(), 0);
      operation->finish(error, source);
    };
    begin_transfer(parcel, is_send, *operation, done);
  };
  if (later) {
    const std::string text = c10::str("a ", name, " of ", parcel.bytes, " bytes");
    queue::push(stream, std::make_unique<Posting>(post, operation, text));
    queue::note_exchange(stream);
  } else {
    post();
  }

  const std::lock_guard<std::mutex> lock(issue_mutex_);
  if (coalescing_) coalesced_.push_back(operation);
  return c10::make_intrusive<NeuronWork>(
      rank_, type, std::vector<std::shared_ptr<Operation>>{operation}, sequence_);
}

// `parcel.peer` is a rank of the group.
void NeuronBackend::begin_transfer(Parcel parcel, bool is_send, Operation& operation,
                                   const Done& done) {
  const int peer = parcel.peer;
  const auto& members = segment_.members();
  const auto member = std::find(members.begin(), members.end(), peer);
  std::shared_ptr<Transfer> posted;  // of the mailbox
  if (member != members.end() || size_ == segment_.local_size()) {
    parcel.peer = member == members.end() ? kAnySource : static_cast<int>(member - members.begin());
    parcel.done = [done, members](const std::exception_ptr& error, int source) {
      done(error, members[source]);
    };
    posted = is_send ? mailbox_->send(std::move(parcel)) : mailbox_->receive(std::move(parcel));
  } else if (peer != kAnySource || segment_.local_size() == 1) {
    parcel.done = done;
    if (is_send) {
      hosts_->courier().send(std::move(parcel));
    } else {
      hosts_->courier().receive(std::move(parcel));
    }
  } else {
    posted = receive_from_all_hosts(parcel, done);
  }
  if (posted == nullptr) return;
  operation.attended_by(
      [mailbox = mailbox_, posted](Clock::time_point until) { mailbox->attend(*posted, until); });
}

}  // namespace torch_neuronx::distributed
