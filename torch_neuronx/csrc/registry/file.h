// The file of a process: where it lies, what it is made of, and whose it is.
#pragma once

#include <cstddef>
#include <string>

#include "registry/registry.h"

namespace torch_neuronx::registry {

struct Header {
#define HEADER_NUMBER(name) Counter name;
#define HEADER_TEXT(name, bytes) char name[bytes];
#include "../../../neuron_tools/registry/layout.inc"
};
struct Program {
#define PROGRAM_NUMBER(name) Counter name;
#define PROGRAM_TEXT(name, bytes) char name[bytes];
#include "../../../neuron_tools/registry/layout.inc"
};

// "NEURONTN" as a number.
inline constexpr uint64_t kMagic = 0x4e544e4f5255454e;

class File {
 public:
  File() = default;
  // A file of zeros but for what says how long its parts are and whose it is, under a name that
  // readers skip. Removes what dead processes left. Throws c10::Error.
  static File make(const std::string& directory, size_t cores);
  // Gives it the name that readers look for. Throws c10::Error.
  void publish();
  // Removes it, if this process made it. What is mapped stays: threads may still count.
  void remove();
  // In a forked child.
  void disown() { owned_ = false; }

  bool mapped() const { return memory_ != nullptr; }
  std::string path() const { return owned_ ? path_ : ""; }
  Header& header() const { return *static_cast<Header*>(memory_); }
  Core* cores() const { return reinterpret_cast<Core*>(static_cast<char*>(memory_) + kCores); }
  Program* programs() const { return reinterpret_cast<Program*>(cores() + cores_); }

 private:
  static constexpr size_t kCores = sizeof(Header);

  void* memory_ = nullptr;
  size_t cores_ = 0;
  bool owned_ = false;
  std::string path_, final_path_;
};

}  // namespace torch_neuronx::registry
