"""Variables of `torch.compile`, of the compile cache, and of what counts as portable."""

from __future__ import annotations

from neuronxcc.environment.variable import FLAG, PATH, TEXT, Reader, Section, choice, number

_OURS = "TorchNeuron"
_AHEAD = "Neuron parallel compile"
_ROUNDING = "Runtime configuration guide, rounding modes"

PORTABILITY = Section("Portability")

TORCH_NEURONX_PORTABILITY = PORTABILITY.variable(
    "TORCH_NEURONX_PORTABILITY", choice("permissive", "warn", "strict"),
    "What happens when a program uses something that a NeuronCore would truncate, refuse or leave "
    "to the host: nothing (`permissive`), a warning (`warn`) or an error (`strict`). See "
    "[operators.md](operators.md)",
    default="permissive", source=_OURS, readers={Reader.DEVICE},
)  # fmt: skip

COMPILATION = Section("Compilation", "[neff.md](neff.md) explains the cache and the options.")

# Its options are checked by `neuronxcc.options`.
NEURON_CC_FLAGS = COMPILATION.variable(
    "NEURON_CC_FLAGS", TEXT,
    "Options of the compiler, and of its cache: `--cache_dir`, `--no_cache`, `--log_level`, "
    "`--retry_failed_compilation`. Eager mode reads `--native-int64` and "
    "`--implicit-integer-downcast`, which decide what counts as portable; the right-most option "
    "wins",
    default="", source="Compiler command line reference", readers={Reader.COMPILER, Reader.DEVICE},
)  # fmt: skip
TORCH_NEURONX_NEFF_CACHE_DIR = COMPILATION.variable(
    "TORCH_NEURONX_NEFF_CACHE_DIR", TEXT,
    "Directory or URL (`s3://...`) of compiled programs. `diffusers` pipelines set it when they "
    "are given a directory",
    default="", source=_OURS, readers={Reader.COMPILER, Reader.DEVICE}, said="`/tmp/neff_cache`",
)  # fmt: skip
NEURON_COMPILE_CACHE_URL = COMPILATION.variable(
    "NEURON_COMPILE_CACHE_URL", TEXT,
    "Used where the variable above is not set",
    default="", source="Neuron persistent cache", readers={Reader.COMPILER},
)  # fmt: skip
NEURON_FRAMEWORK_DEBUG = COMPILATION.variable(
    "NEURON_FRAMEWORK_DEBUG", FLAG,
    "1: leave the HLO, the NEFF and the options of every graph in the current directory",
    default=False, source="Neuron SDK", readers={Reader.DEVICE},
)  # fmt: skip
NEURON_DUMP = COMPILATION.variable(
    "NEURON_DUMP", PATH,
    "A directory: every stage of every compilation is written there as a text file, and the "
    "cache is not read meanwhile. See [compiler.md](compiler.md)",
    default=None, source=_OURS, readers={Reader.DEVICE},
)  # fmt: skip
NEURON_CACHE_EXPLAIN = COMPILATION.variable(
    "NEURON_CACHE_EXPLAIN", FLAG,
    "1: say for every program that is compiled which part of its key is new",
    default=False, source=_OURS, readers={Reader.COMPILER},
)  # fmt: skip
TORCH_NEURONX_MAX_SHAPES = COMPILATION.variable(
    "TORCH_NEURONX_MAX_SHAPES", number(1, (1 << 31) - 1),
    "For how many different sizes a graph with symbolic sizes is compiled, and for how many places "
    "of arguments one that depends on these; further ones run operator by operator, with a warning",
    default=16, source=_OURS, readers={Reader.DEVICE},
)  # fmt: skip
TORCH_NEURONX_EXECUTOR = COMPILATION.variable(
    "TORCH_NEURONX_EXECUTOR", choice("native", "program", "reference", "device"),
    "What runs compiled graphs: `native`; `device`, the instructions that a NeuronCore would run, "
    "by the executors of NKI; or `reference`, the compiler's NumPy reference, which is slow and "
    "for finding defects",
    default="native", source=_OURS, readers={Reader.DEVICE},
)  # fmt: skip
TORCH_NEURONX_PROGRESS = COMPILATION.variable(
    "TORCH_NEURONX_PROGRESS", FLAG,
    "0: no progress line for long compilations; 1: one by every process that a launcher started, "
    "not just the first",
    default=None, source=_OURS, readers={Reader.COMPILER}, said="auto",
)  # fmt: skip

AHEAD = Section(
    "Compiling ahead of a run",
    "[parallel_compile.md](parallel_compile.md) explains the command `neuron_parallel_compile`.",
)

NEURON_EXTRACT_GRAPHS_ONLY = AHEAD.variable(
    "NEURON_EXTRACT_GRAPHS_ONLY", FLAG,
    "1: collect graphs instead of compiling them; their results are zeros. Set by the command for "
    "the script that it runs",
    default=False, source=_AHEAD, readers={Reader.DEVICE, Reader.TOOLS},
)  # fmt: skip
NEURON_NUM_PARALLEL_COMPILE = AHEAD.variable(
    "NEURON_NUM_PARALLEL_COMPILE", number(0, 9999),
    "How many graphs are compiled at once; 0 is one a processor, at most 8",
    default=0, source=_AHEAD, readers={Reader.TOOLS},
)  # fmt: skip
NEURON_PARALLEL_COMPILE_MAX_RETRIES = AHEAD.variable(
    "NEURON_PARALLEL_COMPILE_MAX_RETRIES", number(0, 9999),
    "How often a graph that could not be compiled is tried again",
    default=0, source=_AHEAD, readers={Reader.TOOLS},
)  # fmt: skip
NEURON_IGNORE_TRAINING_SCRIPT_ERROR_AND_COMPILE = AHEAD.variable(
    "NEURON_IGNORE_TRAINING_SCRIPT_ERROR_AND_COMPILE", FLAG,
    "1: compile what was collected although the script failed",
    default=False, source=_AHEAD, readers={Reader.TOOLS},
)  # fmt: skip
# A name that ends in .json, 1 for a documented name, or 0.
NEURON_PARALLEL_COMPILE_DUMP_RESULTS = AHEAD.variable(
    "NEURON_PARALLEL_COMPILE_DUMP_RESULTS", TEXT,
    "1, or a name that ends in `.json`: the summary, with the time of every compilation, is "
    "written to `neuron_parallel_compile_results.json` or to that file",
    default="", source=_AHEAD, readers={Reader.TOOLS}, said="0",
)  # fmt: skip
TORCH_NEURONX_GRAPH_FACTS = AHEAD.variable(
    "TORCH_NEURONX_GRAPH_FACTS", PATH,
    "A directory in which every compiled graph leaves a file about its operators. Set by "
    "`neuron_parallel_compile --command analyze` for the script that it runs",
    default=None, source=_OURS, readers={Reader.DEVICE, Reader.TOOLS},
)  # fmt: skip

ROUNDING = Section(
    "Rounding",
    """\
[compiler.md](compiler.md#stochastic-rounding) says what is rounded how. Both are read when a graph
is compiled or loaded from the cache.""",
)

# Its text is checked by `neuronxcc.options`, and compared with 1 by the native core.
NEURON_RT_STOCHASTIC_ROUNDING_EN = ROUNDING.variable(
    "NEURON_RT_STOCHASTIC_ROUNDING_EN", choice("0", "1"),
    "1: compiled programs round results of bfloat16 and float16 stochastically instead of to "
    "nearest even. Eager operators always round to nearest; the first use of the device warns of "
    "that once",
    default="0", source=_ROUNDING, readers={Reader.COMPILER, Reader.CORE},
)  # fmt: skip
NEURON_RT_STOCHASTIC_ROUNDING_SEED = ROUNDING.variable(
    "NEURON_RT_STOCHASTIC_ROUNDING_SEED", number(0, (1 << 64) - 1),
    "Seed of the chances, 0 to 2^64 - 1. Ranks with equal seeds that make equal calls round alike",
    default=0, source=_ROUNDING, readers={Reader.DEVICE},
)  # fmt: skip
