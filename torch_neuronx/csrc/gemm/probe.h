// Which method computes a product: a fixed rule, corrected once per class of shapes by a short
// measurement of our methods and ATen's operator on made-up operands of that class.
//
// A class is dtype, rounded sizes, operand layouts and thread count, so calls of one class always
// take the same method, whatever was running while it was measured. Decisions live in the process
// and in a file of the user's cache; TORCH_NEURONX_GEMM_PROBE=0 leaves the fixed rule alone, which
// makes the choice the same on every machine with the same instruction sets.
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

// What was decided in this process or read from the file, measured or not.
Decisions decisions();
void forget_decisions();  // in memory only
void save_decisions();    // now, if there are new ones

// measure.cpp: best microseconds of each method for a problem of the class of `p`.
struct Timing {
  Method method;
  double microseconds;
};
std::vector<Timing> measure(const Problem& p, const std::vector<Method>& methods);

// probe_file.cpp
std::string probe_file_path();  // empty if there is no place for it
std::string host_identity();    // processor and torch version: a file of another host is not used
// Nothing if the file is absent, damaged, of another host, or another user could have written it.
std::optional<Decisions> read_decisions(const std::string& path);
// Writes a temporary file beside `path` and renames it; false if the place cannot be written.
bool write_decisions(const std::string& path, const Decisions& decisions);

}  // namespace torch_neuronx::gemm
