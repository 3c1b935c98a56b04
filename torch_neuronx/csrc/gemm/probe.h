// Which method computes a product: a fixed rule, corrected once per class of shapes by a short
// measurement of our methods and ATen's operator on made-up operands of that class.
//
// A class is dtype, rounded sizes, operand layouts, the methods that apply and thread count, so
// calls of one class always take the same method, whatever was running while it was measured.
// TORCH_NEURONX_GEMM_PROBE=0 leaves the fixed rule alone, which makes the choice the same on every
// machine with the same instruction sets.
//
// Methods add in different orders, and two processes that measure one class may find different
// methods faster. Their results must have the same bits all the same: ranks of a job compute many
// things each for itself from equal numbers (what PowerSGD's hook makes of reduced factors, a layer
// that is not sharded), and nothing compares them ever again. So a measurement is a proposal. It
// is appended to a file of the user's cache, and the first line about a class is what counts, for
// whoever measured it as for everybody else. Where there is no such file the fixed rule is kept,
// and so do ranks that don't read the same one (agree_with).
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "gemm/gemm.h"

namespace torch_neuronx::gemm {

enum class Layout : uint8_t { kAlongK, kAcrossK, kOther };  // the direction of neighbours in memory

struct ShapeClass {
  at::ScalarType dtype;
  uint8_t batch, m, n, k;  // size_bucket of each
  Layout a, b;
  uint8_t methods;  // of ours that apply: bit Method::kDot, ...
  uint16_t threads;
  bool operator==(const ShapeClass&) const = default;
};
struct ShapeClassHash {
  size_t operator()(const ShapeClass& c) const;
};

struct Decision {
  Method method = Method::kPanel;
  float ours_us = 0, aten_us = 0;  // best times measured; zero: not measured
};
using Decisions = std::unordered_map<ShapeClass, Decision, ShapeClassHash>;

// 1, 2, 3, 4 for themselves, then two buckets per doubling.
uint8_t size_bucket(int64_t size);
ShapeClass class_of(const Problem& p);  // p normalised
Method choose(const Problem& p);        // p normalised, nothing in it empty
Method choose_by_rule(const Problem& p);
bool probe_enabled();

// What this process knows of the file, and where it keeps the rule for want of one.
Decisions decisions();
void forget_decisions();  // in memory only

// Names the file that this process decides by: equal in processes that decide alike. Makes the
// file if it can. "rule" where the fixed rule is kept, as where there is no place for a file.
std::string agreement();
// To be called with the agreement() of all processes that are to get the same bits: if they are
// not one, this process keeps the fixed rule from now on.
void agree_with(const std::vector<std::string>& agreements);
bool keeps_rule();  // for want of an agreement, or by TORCH_NEURONX_GEMM_PROBE

// As if `method` had been found the fastest for the class of `p` (normalised), for tests; the
// method that counts.
Method propose_decision(const Problem& p, Method method);

// measure.cpp: best microseconds of each method for a problem of the class of `p`.
struct Timing {
  Method method;
  double microseconds;
};
std::vector<Timing> measure(const Problem& p, const std::vector<Method>& methods);

// probe_file.cpp
std::string probe_file_path();  // empty if there is no place for it
std::string host_identity();    // processor and torch version: a file of another host is not used

// One reader and writer of a file of decisions. The file is only ever appended to, a line at a
// time, so all its readers see the same first line about a class. Not for several threads at once.
class DecisionFile {
 public:
  // Adds what was written since the last call, where nothing is known yet. False if there is no
  // file to decide by: no place, not to be written, or one that another user could have written.
  bool read(Decisions* known);
  // Appends a proposal; false if that can't be. The next read() says what counts.
  bool propose(const ShapeClass& shape, const Decision& decision);
  // As agreement(); empty without a file.
  std::string name();

 private:
  uint64_t device_ = 0, inode_ = 0;  // of the file that was read up to
  size_t offset_ = 0;
};

}  // namespace torch_neuronx::gemm
