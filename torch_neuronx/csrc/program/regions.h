// Regions: calls that stand one behind the other in the queue of a stream, and run as one program.
//
// While a core is behind, its thread looks at the calls that wait. Those of operators whose
// compiled form gives the same bits become a region; a region that comes again is compiled, beside
// execution, and then run instead of its calls. What nobody can read any more is not written.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace torch_neuronx::program {

// Has the threads of the cores look for regions where the eager mode is `fused`.
void install_regions();

struct RegionStats {
  int64_t regions = 0;    // that were run as programs
  int64_t calls = 0;      // in them
  int64_t unwritten = 0;  // results of calls in them that nobody could read any more
  int64_t compiled = 0, given_up = 0;
  int64_t forgotten = 0;  // to make room for others
  // Why regions ended: an operator that takes no part, or memory that calls share in another way;
  // the most calls of a region; nothing more was enqueued in time; somebody waited.
  int64_t ended_boundary = 0, ended_full = 0, ended_idle = 0, ended_read = 0;
};
RegionStats region_stats();
void reset_region_stats();
// Regions that came by since reset_region_stats(), as dictionaries; see explain_eager in Python.
pybind11::list regions_seen();

// No region begins while at most so many pieces of work wait: the core is not behind.
void set_low_threshold(size_t calls);
// Whether results that nobody can read any more are left unwritten.
void set_skips_unread(bool on);
// How long calls must have taken one by one before they are compiled.
int64_t worth();
void set_worth(int64_t nanoseconds);

// For the thread that compiles: the next region that is wanted, as (number, inputs, calls,
// outputs); None when the interpreter ends. Then `program`, or None if it can't be had.
pybind11::object next_region();
void finish_region(size_t number, pybind11::object program);
void stop_regions();

}  // namespace torch_neuronx::program
