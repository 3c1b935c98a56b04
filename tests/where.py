"""Where the tests of a source file are: `python -m tests.where neuronxcc/program/steps/copy.py`.

Tests are by mechanism and not by file, so the rule is one line for each directory of sources, or
for a file whose tests are elsewhere than its neighbours'. The longest line that fits counts.
`tests/nodevice/test_where.py` holds that every source file and every test file has one.
"""

from __future__ import annotations

import sys
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parent.parent
# The packages that users import, and nothing else.
SOURCES = ("neuronxcc", "nki", "neuron_dtypes", "nrtpy", "neuron_tools", "torch_neuronx")

# Of what is seen at every door, so that none of the directories below is its home.
EVERYWHERE = (
    "smoke/*", "nodevice/test_import_boundaries.py", "nodevice/test_where.py",
    "nodevice/test_judged.py", "nodevice/test_interpreter.py", "nodevice/test_docs.py",
    "nodevice/test_benchmark_tables.py", "programs/*", "clients/*",
)  # fmt: skip

# Sources (a directory, or a file) -> their tests, below tests/.
TESTS: dict[str, tuple[str, ...]] = {
    "neuronxcc": ("compiler/test_options.py", "compiler/test_results_share.py",
                  "frontends/test_cli.py"),
    "neuronxcc/addresses.py": ("compiler/test_results_share.py", "nki/test_nki_memory.py",
                               "nki/test_lowering_plans.py"),
    "neuronxcc/cache": ("compiler/test_cache_*",),
    "neuronxcc/cli": ("frontends/test_cli.py", "frontends/test_flags.py"),
    "neuronxcc/driver": ("frontends/test_cli.py",),
    "neuronxcc/codegen": ("compiler/test_codegen_*", "compiler/test_executable_bounds.py"),
    "neuronxcc/codegen/llvm": ("compiler/test_codegen_*", "compiler/test_special_values.py",
                               "compiler/test_complex_values.py",
                               "compiler/test_activations_16bits.py"),
    "neuronxcc/collected.py": ("compiler/test_collector.py",),
    "neuronxcc/collector.py": ("compiler/test_collector.py",),
    "neuronxcc/environment": ("nodevice/test_environment.py",),
    "neuronxcc/error_codes.py": ("frontends/test_error_codes.py",),
    "neuronxcc/extras.py": ("nodevice/test_extras.py",),
    "neuronxcc/host_limits.py": ("nodevice/test_host_limits.py",
                                 "multiprocess/test_machines.py"),
    "neuronxcc/frontends": ("frontends/test_hlo_*", "frontends/test_stablehlo.py",
                            "frontends/test_foreign_files.py"),
    "neuronxcc/ir": ("compiler/test_ir_*", "compiler/test_conversions.py",
                     "compiler/test_moved_bits.py"),
    "neuronxcc/ir/loops.py": ("nki/test_device_control.py", "nodevice/test_perf_growth.py"),
    "neuronxcc/lowering": ("compiler/test_lowering_*", "compiler/test_movement.py",
                           "compiler/test_around_products.py", "compiler/test_conv_*"),
    "neuronxcc/neff": ("compiler/test_neff_*", "fuzz/test_fuzz.py"),
    "neuronxcc/nki": ("nki/compat/*", "nki/test_entry_points.py"),
    "neuronxcc/option_table.py": ("compiler/test_options.py",),
    "neuronxcc/options.py": ("compiler/test_options.py",),
    "neuronxcc/passes": ("compiler/test_passes_*", "compiler/test_fold_checks.py",
                         "compiler/test_stochastic_rounding.py"),
    "neuronxcc/perf": ("nodevice/test_perf_*",),
    "neuronxcc/perf/graphs": ("nodevice/test_perf_gr*", "device/test_estimate.py",
                              "device/test_operator_times.py"),
    "neuronxcc/perf/graphs/kept.py": ("compiler/test_kept_predictions.py",
                                      "neuron_tools/test_live.py"),
    "neuronxcc/program": ("compiler/test_executable_*", "compiler/test_foreign_memory.py",
                          "compiler/test_neff_golden.py", "compiler/test_executors.py"),
    "neuronxcc/program/natives": ("nki/test_native_*", "kernels/test_nki_natives.py"),
    "neuronxcc/program/natives/alu.py": ("nki/test_alu.py", "nki/test_isa_cast.py"),
    "neuronxcc/program/steps/collective.py": ("compiler/test_collectives.py",),
    "neuronxcc/program/steps/conv.py": ("compiler/test_conv_*",),
    "neuronxcc/program/steps/tape.py": ("compiler/test_tape*.py",),
    "neuronxcc/program/tape_functions.py": ("compiler/test_tape*.py", "kernels/test_tape_*"),
    "neuronxcc/program/tape_writer.py": ("compiler/test_tape*.py",),
    "neuronxcc/progress.py": ("compiler/test_progress*",),
    "neuronxcc/targets": ("nodevice/test_targets.py", "multiprocess/test_made_up_chip.py"),
    "neuronxcc/targets/wiring.py": ("neuron_tools/test_ls.py",),
    "neuronxcc/targets/engines.py": ("nki/test_engines.py", "compiler/test_ir_table.py"),
    "neuronxcc/unread.py": ("nodevice/test_unread_output.py",),
    "nki": ("nki/test_*", "nki/examples/*"),
    "nki/absent.py": ("nki/test_absent.py",),
    "nki/checks": ("nki/test_checks_*", "nki/test_unwritten.py"),
    "nki/collectives": ("nki/test_collectives*",),
    "nki/device": ("nki/test_device_*", "nki/torch/test_device_kernels.py",
                   "compiler/test_device_models.py", "compiler/test_device_opinfo.py",
                   "compiler/test_device_training.py",
                   "integrations/test_diffusers_device.py"),
    "nki/first_generation": ("nki/compat/*", "nki/torch/test_first_generation.py",
                             "fuzz/test_first_generation.py"),
    "nki/isa": ("nki/test_isa_*", "nki/test_nki_refusals.py"),
    "nki/language": ("nki/test_language_*", "nki/test_nki_language.py"),
    "nki/lint": ("nki/test_lint.py",),
    "nki/lowering": ("nki/test_lowering*", "nki/test_native_*", "kernels/test_nki_lowering.py",
                     "fuzz/test_kernels.py"),
    "nki/merging": ("nki/test_merge.py",),
    "nki/perf": ("nki/test_perf_*",),
    "nki/repeats.py": ("nki/test_repeats.py", "fuzz/test_recording.py"),
    "nki/replay.py": ("nki/test_repeats.py", "fuzz/test_recording.py"),
    "nki/source.py": ("nki/test_source.py", "nki/test_lint.py"),
    "neuron_dtypes": ("nki/test_entry_points.py",),
    "neuron_tools": ("neuron_tools/*", "nrtpy/test_packager.py"),
    "neuron_tools/ls.py": ("neuron_tools/test_ls.py",),
    "neuron_tools/monitor": ("neuron_tools/test_monitor.py", "neuron_tools/test_prometheus.py"),
    "neuron_tools/nccom": ("neuron_tools/test_nccom.py",),
    "neuron_tools/parallel_compile.py": ("neuron_tools/test_parallel_compile.py",),
    "neuron_tools/prometheus.py": ("neuron_tools/test_prometheus.py",),
    "neuron_tools/registry": ("neuron_tools/test_model_clock.py", "neuron_tools/test_registry.py",
                              "neuron_tools/test_live.py"),
    "neuron_tools/sysfs": ("neuron_tools/test_sysfs.py",),
    "neuron_tools/top": ("neuron_tools/test_top.py",),
    "neuronxcc/tables.py": ("neuron_tools/test_explorer*", "nki/test_perf_*"),
    "neuron_tools/explorer": ("neuron_tools/test_explorer*", "device/test_profiling.py",
                              "nrtpy/test_explorer_capture.py"),
    "nrtpy": ("nrtpy/*",),
    "torch_neuronx": ("multiprocess/test_autoload.py", "nodevice/test_unavailable.py",
                      "compiler/test_compile_only.py"),
    "torch_neuronx/_config.py": ("nodevice/test_config.py",),
    "torch_neuronx/_host.py": ("multiprocess/test_machines.py",
                               "multiprocess/test_instruction_set.py"),
    "torch_neuronx/csrc/attention": ("kernels/test_attention_*", "device/test_attention.py",
                                     "device/test_varlen_attention.py"),
    "torch_neuronx/csrc/bindings": ("device/test_device.py", "device/test_neuron_module.py",
                                    "device/test_bindings.py"),
    "torch_neuronx/csrc/conv": ("kernels/test_conv.py", "compiler/test_conv_step.py",
                                "device/test_convolutions.py"),
    "torch_neuronx/csrc/device": ("device/test_device.py", "device/test_streams_events.py",
                                  "device/test_pending.py", "device/test_rng.py",
                                  "device/test_amp.py", "device/test_profiler.py",
                                  "device/test_profiling.py", "device/test_injected_faults.py",
                                  "device/test_mixed_precision_page.py"),
    "torch_neuronx/csrc/dispatch": (
        "neuron_tools/test_operator_times.py",
        "device/test_ops.py", "device/test_device_type.py", "device/test_misuse.py",
        "device/test_integer_quotients.py", "device/test_outs.py",
        "device/test_fake_results.py", "device/test_layouts.py", "device/test_modules.py",
        "device/test_copy.py", "device/test_transforms.py", "device/test_variants.py",
        "device/test_windows.py", "device/test_sums_of_16_bits.py",
        "device/test_activation_layouts.py", "device/test_autograd.py", "device/test_clients.py",
        "device/test_foreach_deferred.py", "device/test_fused_optimizers.py", "device/test_nn.py",
        "device/test_traced.py", "device/test_writes_counted.py",
        "device/test_scaled_products.py", "device/test_strided_parameters.py",
        "device/test_zero_tensors.py", "device/test_portability.py", "fuzz/test_operators.py"),
    "torch_neuronx/csrc/distributed": ("distributed/*",),
    "torch_neuronx/csrc/gemm": ("kernels/test_gemm_*", "distributed/test_same_products.py"),
    "torch_neuronx/csrc/inference": ("inference/*",),
    "torch_neuronx/csrc/kernels": ("kernels/test_mersenne.py", "kernels/test_multi_tensor.py",
                                   "kernels/test_norm.py", "kernels/test_philox.py",
                                   "kernels/test_pointwise.py", "kernels/test_pool.py",
                                   "nodevice/test_other_processors.py"),
    "torch_neuronx/compat": ("multiprocess/test_release.py", "nodevice/test_make_releases.py",
                             "nodevice/test_release_operators.py"),
    "torch_neuronx/csrc/compat": ("device/test_scaled_products.py",),
    "torch_neuronx/csrc/memory": ("device/test_memory.py", "device/test_memory_history.py",
                                  "device/test_guard_pages.py",
                                  "device/test_shared_memory.py", "device/test_faults.py",
                                  "device/test_storage.py", "device/test_dlpack.py",
                                  "device/test_dataloader.py", "device/test_serialization.py"),
    "torch_neuronx/csrc/nki": ("kernels/test_nki_natives.py", "kernels/test_tape_products.py",
                               "nki/test_native_*"),
    "torch_neuronx/csrc/program": ("compiler/test_executable_*", "compiler/test_foreign_memory.py",
                                   "compiler/test_tape*.py", "compiler/test_threads.py"),
    "torch_neuronx/csrc/registry": ("neuron_tools/test_live.py",
                                    "neuron_tools/test_operator_times.py"),
    "torch_neuronx/csrc/memory/overlap.cpp": ("compiler/test_places.py",),
    "torch_neuronx/csrc/memory/overlap.h": ("compiler/test_places.py",),
    "torch_neuronx/csrc/memory/stream_order.cpp": ("device/test_eager_streams.py",
                                                   "device/test_streams_events.py"),
    "torch_neuronx/csrc/memory/stream_order.h": ("device/test_eager_streams.py",),
    "torch_neuronx/csrc/queue": ("device/test_eager_*", "device/test_limits.py",
                                 "distributed/test_enqueued.py"),
    "torch_neuronx/distributed": ("distributed/*",),
    "torch_neuronx/distributed/planning": ("distributed/test_planning.py",),
    "torch_neuronx/dynamo": ("compiler/test_dynamo_*", "compiler/test_partition.py",
                             "compiler/test_windows.py", "compiler/test_zoo.py"),
    "torch_neuronx/dynamo/autograd_metadata.py": ("compiler/test_results_share.py",
                                                  "compiler/test_written_arguments.py"),
    "torch_neuronx/dynamo/beyond.py": ("compiler/test_places.py", "compiler/test_storage.py"),
    "torch_neuronx/dynamo/effects.py": ("compiler/test_effects.py",),
    "torch_neuronx/dynamo/places.py": ("compiler/test_places.py", "fuzz/test_histories.py"),
    "torch_neuronx/dynamo/variants.py": ("compiler/test_dynamo_shapes.py",
                                         "compiler/test_places.py", "compiler/test_threads.py"),
    "torch_neuronx/dynamo/portability.py": ("compiler/test_portability.py",),
    "torch_neuronx/dynamo/lowerings": ("compiler/test_lowerings_opinfo.py",
                                       "compiler/test_misuse_compiled.py",
                                       "compiler/test_nan_and_infinity.py",
                                       "compiler/test_refused_types_opinfo.py",
                                       "compiler/test_dynamo_*", "compiler/test_boundaries.py",
                                       "compiler/test_checks*.py",
                                       "compiler/test_constants.py", "compiler/test_creation.py",
                                       "compiler/test_efficient_attention.py",
                                       "compiler/test_embedding_bag.py",
                                       "compiler/test_indexing.py",
                                       "compiler/test_norms_mixed.py",
                                       "compiler/test_random_layouts.py",
                                       "compiler/test_shared_results.py",
                                       "compiler/test_small_gradients.py",
                                       "compiler/test_sparse_gradients.py",
                                       "compiler/test_storage.py"),
    "torch_neuronx/estimate.py": ("device/test_estimate.py",),
    "torch_neuronx/_operator_bodies.py": ("nki/torch/test_estimated_kernels.py",),
    "torch_neuronx/estimation": ("device/test_estimate*", "device/test_operator_times.py",
                                 "nodevice/test_perf_gr*",
                                 "neuron_tools/test_operator_times.py",
                                 "nki/torch/test_estimated_kernels.py"),
    "torch_neuronx/inference": ("inference/*",),
    "torch_neuronx/integrations": ("integrations/*",),
    "torch_neuronx/integrations/_lightning": ("clients/test_lightning.py",),
    "torch_neuronx/integrations/lightning.py": ("clients/test_lightning.py",),
    "torch_neuronx/integrations/pytorch_lightning.py": ("clients/test_lightning.py",),
    "torch_neuronx/kernels": ("nki/torch/test_kernels_*", "nki/torch/test_compiled_kernels.py"),
    "torch_neuronx/neuron": ("device/test_neuron_module.py", "device/test_memory.py",
                             "device/test_memory_history.py", "neuron_tools/test_usage.py",
                             "device/test_streams_events.py"),
    "torch_neuronx/nki": ("nki/torch/*", "nki/test_store.py"),
    "torch_neuronx/nki_hop.py": ("nki/torch/test_kernel_calls.py",),
    "torch_neuronx/nrt": ("nrtpy/*",),
    "torch_neuronx/ops": ("nodevice/test_ops_*", "device/test_portability.py"),
    "torch_neuronx/ops/batching.py": ("device/test_transforms.py",),
    "torch_neuronx/profiling": ("device/test_profiling.py",),
    "torch_neuronx/program": ("compiler/test_executable_*", "compiler/test_allowed.py"),
    "torch_neuronx/program/model_time.py": ("neuron_tools/test_live.py",),
    "torch_neuronx/program/operator_time.py": ("neuron_tools/test_operator_times.py",),
    "torch_neuronx/collect_env.py": ("neuron_tools/test_live.py",
                                     "multiprocess/test_ci_example.py"),
    "torch_neuronx/testing": ("device/test_injected_faults.py",
                              "distributed/test_injected_faults.py"),
    "torch_neuronx/serving": ("serving/*",),
    "torch_neuronx/tools": ("compiler/test_tools.py",),
    "torch_neuronx/tools/nccom.py": ("neuron_tools/test_nccom.py",),
    "torch_neuronx/tools/explain_eager.py": ("device/test_explain_eager.py",),
}  # fmt: skip


def row_of(source: str) -> str | None:
    """The longest key of `TESTS` that is the file or a directory above it."""
    fitting = [key for key in TESTS if source == key or source.startswith(f"{key}/")]
    return max(fitting, key=len, default=None)


def files_with_tests() -> list[str]:
    """All files with tests, as they are below tests/."""
    folder = ROOT / "tests"
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("test_*.py"))


def matching(patterns: tuple[str, ...]) -> list[str]:
    """Files with tests that fit one of some patterns."""
    return [name for name in files_with_tests() if any(fnmatch(name, p) for p in patterns)]


def main() -> int:
    """Print the tests of the source files that are named."""
    found: list[str] = []
    for argument in sys.argv[1:]:
        source = Path(argument).resolve().relative_to(ROOT).as_posix()
        row = row_of(source)
        if row is None:
            print(f"{source} is no source file of {', '.join(SOURCES)}", file=sys.stderr)  # noqa: T201
            return 1
        found += matching(TESTS[row])
    print("\n".join(f"tests/{name}" for name in dict.fromkeys(found)))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
