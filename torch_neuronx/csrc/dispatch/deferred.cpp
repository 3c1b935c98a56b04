#include "dispatch/deferred.h"

namespace torch_neuronx {
std::atomic<bool> g_deferred_pending{false};
void flush_deferred_slow() {}
}  // namespace torch_neuronx
