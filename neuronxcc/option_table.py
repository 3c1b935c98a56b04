"""Every option of `neuronx-cc compile`, as data: the reader of flags, `--help` and the docs use it.

Documented options come first, with the vendor's names, values and defaults; then those that are
deprecated or undocumented but publicly used, which are accepted and recorded so that existing
command lines work; last the ones that only the caching wrapper reads.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from neuronxcc.targets import target_names

DOWNCASTS = ("dot", "scatter", "all_reduce", "reduce_scatter", "pow")
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class Value(enum.Enum):
    """The form of what follows the name of an option."""

    CHOICE = "one of the choices"
    INT = "one of the choices, a number"
    TARGET = "the name of a target"
    LEVEL = "a level of messages: a name or a number"
    DOWNCASTS = "default, all, none, or a list of operators separated by commas"
    TEXT = "any text"
    ON = "nothing: the option switches something on"
    OFF = "nothing: the option switches something off"
    MANY = "any number of words"


class Status(enum.Enum):
    """Where an option comes from."""

    DOCUMENTED = "documented"
    DEPRECATED = "deprecated"  # documented once; says what replaced it
    INTERNAL = "internal"  # accepted and recorded
    WRAPPER = "wrapper"  # read by the cache, never by the compiler


@dataclass(frozen=True, slots=True)
class Flag:
    """One option.

    Attributes:
        names: All spellings, the main one first.
        field: The field of `Options` (of `Wrapper` for wrapper options) that it sets, "" if the
            option is only recorded.
        value: What it takes.
        choices: Allowed values of CHOICE and INT.
        aliases: Old names of choices.
        program: Whether a compiled program can depend on it, so that it belongs in the cache's key.
        sets: The value of `field`, for deprecated options that mean a fixed one.
        help: One line for `--help`.
        instead: For deprecated options, what to write.
    """

    names: tuple[str, ...]
    field: str
    value: Value
    help: str
    choices: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    status: Status = Status.DOCUMENTED
    program: bool = True
    sets: str = ""
    instead: str = ""

    @property
    def name(self) -> str:
        """The main spelling, with its dashes."""
        return self.names[0]

    @property
    def allowed(self) -> str:
        """The allowed values as text."""
        match self.value:
            case Value.CHOICE | Value.INT:
                return ", ".join(self.choices)
            case Value.TARGET:
                return ", ".join(target_names())
            case Value.LEVEL:
                return f"{', '.join(LEVELS)}, or a number"
            case Value.DOWNCASTS:
                return f"default, all, none, or a list of {', '.join(DOWNCASTS)}"
            case _:
                return str(self.value.value)


def _internal(name: str, value: Value, text: str, *, program: bool = True) -> Flag:
    return Flag((name,), "", value, text, status=Status.INTERNAL, program=program)


_OPTLEVELS = ("1", "2", "3")

FLAGS: tuple[Flag, ...] = (
    Flag(("--framework",), "framework", Value.CHOICE, "Form of the model file", ("XLA",)),
    Flag(("--target",), "target", Value.TARGET, "Family of instances to compile for"),
    Flag(
        ("--model-type",),
        "model_type",
        Value.CHOICE,
        "Passes for a kind of model",
        ("generic", "transformer", "unet-inference"),
    ),
    Flag(
        ("--auto-cast",),
        "auto_cast",
        Value.CHOICE,
        "Which float32 operators compute in a smaller type; inputs and outputs never do",
        ("none", "matmult", "all"),
    ),
    Flag(
        ("--auto-cast-type",),
        "auto_cast_type",
        Value.CHOICE,
        "The smaller type of --auto-cast",
        ("bf16", "fp16", "tf32", "fp8_e4m3"),
    ),
    Flag(
        ("--native-int64",),
        "native_int64",
        Value.CHOICE,
        "Compute 64-bit integers in 64 bits, from trn2 on; default is disabled",
        ("default", "enabled", "disabled"),
    ),
    Flag(
        ("--implicit-integer-downcast",),
        "implicit_integer_downcast",
        Value.DOWNCASTS,
        "Operators that may compute integers with loss; default is all",
    ),
    Flag(
        ("--distribution-strategy",),
        "distribution_strategy",
        Value.CHOICE,
        "Passes for sharded training",
        ("llm-training", "fsdp"),
        (("nemo", "llm-training"), ("FSDP", "fsdp")),
    ),
    Flag(
        ("--lnc", "-lnc", "--logical-nc-config"),
        "lnc",
        Value.INT,
        "Physical cores of a logical core; the default is the target's",
        ("1", "2"),
    ),
    Flag(
        ("--optlevel", "-O"), "optlevel", Value.INT, "1 compiles fastest, 3 is thorough", _OPTLEVELS
    ),
    Flag(
        ("--enable-mixed-precision-accumulation",),
        "enable_mixed_precision_accumulation",
        Value.ON,
        "Sums and normalisations of 16-bit types accumulate in float32 (on by default)",
    ),
    Flag(
        ("--disable-mixed-precision-accumulation",),
        "enable_mixed_precision_accumulation",
        Value.OFF,
        "They accumulate in their own type",
    ),
    Flag(
        ("--enable-saturate-infinity",),
        "enable_saturate_infinity",
        Value.ON,
        "The compiler's own transposes on the tensor engine turn infinities into the largest value",
    ),
    Flag(
        ("--enable-fast-context-switch",),
        "enable_fast_context_switch",
        Value.ON,
        "Load weights when the model starts",
    ),
    Flag(
        ("--enable-fast-loading-neuron-binaries",),
        "enable_fast_loading_neuron_binaries",
        Value.ON,
        "Do not compress the NEFF",
        program=False,
    ),
    Flag(("--logfile",), "logfile", Value.TEXT, "File of the log", program=False),
    Flag(("--output",), "output", Value.TEXT, "File of the NEFF", program=False),
    Flag(("--verbose",), "verbose", Value.LEVEL, "What is printed", program=False),
    # Deprecated
    Flag(
        ("--enable-experimental-O1",),
        "optlevel",
        Value.ON,
        "Quick compilation",
        status=Status.DEPRECATED,
        sets="1",
        instead="-O1",
    ),
    # Publicly used without documentation
    _internal("--num-parallel-jobs", Value.TEXT, "Processes of the compiler", program=False),
    _internal("--disable-dge", Value.ON, "No descriptor generation on the device"),
    _internal("--hbm-scratchpad-page-size", Value.TEXT, "MiB, a multiple of 512"),
    _internal("--pipeline", Value.MANY, "Stages to run", program=False),
    _internal("--workdir", Value.TEXT, "Directory of temporary files", program=False),
    _internal("--execute-repetition", Value.TEXT, "How often the program repeats itself"),
    _internal("--enable-internal-neff-wrapper", Value.ON, "Form of the NEFF"),
    _internal("--tensorizer-options", Value.TEXT, "Options of a stage"),
    _internal("--internal-hlo2tensorizer-options", Value.TEXT, "Options of a stage"),
    _internal("--internal-backend-options", Value.TEXT, "Options of a stage"),
    _internal("--internal-enable-dge-levels", Value.MANY, "Uses of descriptor generation"),
    _internal("--internal-max-instruction-limit", Value.TEXT, "Limit of instructions"),
    _internal("--internal-disable-fma-on-ios", Value.ON, "A pass"),
    _internal("--internal-dma-order-constraints", Value.TEXT, "JSON"),
    _internal("--internal-bir-enable-sb-allocation", Value.ON, "A pass"),
    _internal("--internal-tensorizer-opt-level", Value.TEXT, "Level of a stage"),
    _internal("--internal-compiler-debug-mode", Value.ON, "Debugging", program=False),
    _internal(
        "--experimental-unsafe-fp8e4m3fn-as-fp8e4m3",
        Value.ON,
        "Take the OCP format for the one of trn1 and trn2, whose largest value is 240",
    ),
    # Read by the cache
    Flag(
        ("--cache_dir",),
        "cache_dir",
        Value.TEXT,
        "Directory or URL of the compile cache",
        status=Status.WRAPPER,
        program=False,
    ),
    Flag(
        ("--no_cache",),
        "no_cache",
        Value.ON,
        "Compile always, keep nothing",
        status=Status.WRAPPER,
        program=False,
    ),
    Flag(
        ("--retry_failed_compilation",),
        "retry_failed_compilation",
        Value.ON,
        "Accepted: failed compilations are never cached here",
        status=Status.WRAPPER,
        program=False,
    ),
    Flag(
        ("--log_level",),
        "log_level",
        Value.CHOICE,
        "Messages of the cache",
        ("WARNING", "INFO", "ERROR"),
        status=Status.WRAPPER,
        program=False,
    ),
    Flag(
        ("--model_name",),
        "model_name",
        Value.TEXT,
        "Name of the model, for people (TorchNeuron's own option)",
        status=Status.WRAPPER,
        program=False,
    ),
)

BY_NAME = {name: flag for flag in FLAGS for name in flag.names}


def find(name: str) -> Flag | None:
    """The option of a spelling with its dashes; unknown `--internal-...` ones are made up."""
    flag = BY_NAME.get(name)
    if flag is None and name.startswith("--internal-"):
        return _internal(name, Value.MANY, "not known here")
    return flag


def find_key(key: str) -> Flag | None:
    """The option of a key of `torch.compile(options=...)`: dashes or underscores, none in front."""
    bare = key.strip().lstrip("-")
    for dashes in ("--", "-"):
        for name in (bare, bare.replace("_", "-"), bare.replace("-", "_")):
            flag = find(dashes + name)
            if flag is not None:
                return flag
    return None
