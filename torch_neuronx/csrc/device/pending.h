// What runs elsewhere while the device's operators run in the order of their issue.
#pragma once

#include <c10/core/Stream.h>

#include <memory>
#include <vector>

namespace torch_neuronx {

class Completion {
 public:
  virtual ~Completion() = default;
  virtual bool done() const noexcept = 0;
  virtual void wait() = 0;  // throws what failed
};

inline void add_pending(c10::Stream, const std::shared_ptr<Completion>& completion) {
  completion->wait();
}
inline std::vector<std::shared_ptr<Completion>> pending_of(c10::Stream) { return {}; }

}  // namespace torch_neuronx
