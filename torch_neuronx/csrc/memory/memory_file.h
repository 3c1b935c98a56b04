// Files that are memory: they have no name in any file system and mode 0600, so who may open
// /proc/PID/fd/FD (the same user) can map them, and they are gone with the last process that has
// them, however that one ended.
#pragma once

#include <cstddef>
#include <string>

namespace torch_neuronx {

// A file of `bytes` zero bytes, whose size is fixed; the caller closes it. `name` is what /proc
// shows, `owner` names in errors what the memory is of. Throws c10::Error.
int make_memory_file(const std::string& name, size_t bytes, const std::string& owner);

}  // namespace torch_neuronx
