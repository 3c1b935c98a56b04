#pragma once

#include <pybind11/pybind11.h>

namespace torch_neuronx::gemm {

// gemm_run, gemm_run_method, gemm_pack, gemm_probe_report, gemm_cache_stats, gemm_clear, ...: for
// tests and benchmarks, on CPU tensors. Not part of the public interface.
void bind_gemm(pybind11::module& m);

}  // namespace torch_neuronx::gemm
