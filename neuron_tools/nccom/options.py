"""The words of nccom-test."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from neuron_tools.machine import ToolError
from neuron_tools.nccom.operations import BY_NAME, DTYPES

_SIZE = re.compile(r"(\d{1,15})\s*([kmgt]?)i?b?", re.ASCII | re.IGNORECASE)
_UNIT = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_STAT = re.compile(r"avg|min|max|p(?:100|\d{1,2})")
_CHECKS = ("random", "all_ones")
_MOST_SIZES = 10_000
MOST_RANKS = 128

# What the vendor's tool has for machines that are not emulated, and why it is refused here.
_NODES = "several hosts are not emulated; torchrun with TORCH_NEURONX_HOST_ID tries them on one"
REFUSED: Final = {
    ("-s", "--hosts"): _NODES,
    ("--hosts-file",): _NODES,
    ("--mpi-log-dir",): _NODES,
    ("-S", "--slurm-mode"): _NODES,
    ("-u", "--slurm-vcpus-per-node"): _NODES,
    ("--slurm-setup-script",): _NODES,
    ("--slurm-job-id",): _NODES,
    ("--slurm-use-head-node-neuron-bench",): _NODES,
    ("--data-collector-port",): _NODES,
    ("--data-collector-host",): _NODES,
    ("--vcpu-pin-mode",): "ranks run where the host's scheduler puts them; use taskset",
    ("--sb2sb",): "a collective's data lies in device memory; SBUF is not emulated for it",
    ("--input-shape",): "data has one dimension here; give sizes in bytes",
    ("--output-shape",): "data has one dimension here; give sizes in bytes",
    ("--cc-dim",): "data has one dimension here; give sizes in bytes",
    ("--streams-json",): "operations run one after another here",
    ("--shared-output-buff",): "each operation has its own result here",
    ("--show-algorithm",): "the algorithm of a NeuronCore is not emulated: ranks share memory",
}  # fmt: skip


def size(text: str) -> int:
    """Read a size such as "32M", "1kb" or "8"; in bytes."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write e.g. 8, 1kb or 32MB")
    return int(found[1]) << _UNIT[found[2].lower()]


def _whole(low: int, high: int) -> Any:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text[:12]) <= high):
            raise argparse.ArgumentTypeError(f"must be a whole number from {low} to {high}")
        return int(text)

    return read


def _stat(text: str) -> str:
    if _STAT.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is none of avg, min, max, p0 to p100")
    return text


def _refusal(why: str) -> type[argparse.Action]:
    class Refuse(argparse.Action):
        def __call__(
            self, parser: argparse.ArgumentParser, _1: Any, _2: Any, option: str | None = None
        ) -> NoReturn:
            parser.error(f"{option} is not possible: {why}")

    return Refuse


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's words."""
    made = argparse.ArgumentParser(
        prog="nccom-test",
        description="Time collectives between emulated NeuronCores, on this computer, and check "
        "their results.",
        epilog="Operations: " + ", ".join(sorted(BY_NAME)) + ". Sizes may be written as 1kb, 32MB.",
    )
    add = made.add_argument
    add("operation", choices=sorted(BY_NAME), metavar="operation", help="what is run")
    add("-r", "--nworkers", type=_whole(1, MOST_RANKS), required=True, help="how many ranks")
    add("-N", "--nnodes", type=_whole(1, 10**6), default=1, help="how many hosts: 1")
    add("-b", "--minbytes", type=size, default=32 << 20, help="first size; default 32M")
    add("-e", "--maxbytes", type=size, default=None, help="last size; default 32M or the first")
    add("-i", "--stepbytes", type=size, help="added to a size for the next; default (max-min)/10")
    add("-f", "--stepfactor", type=_whole(2, 10**6), help="or multiplied with it")
    add("-n", "--iters", type=_whole(1, 10**6), default=20, help="executions that are timed")
    add("-w", "--warmup_iters", type=_whole(0, 10**6), default=5, help="executions before")
    add("-I", "--neff_iters", type=_whole(1, 10**4), default=1,
        help="operations that are timed in an execution")  # fmt: skip
    add("-W", "--neff_warmup_iters", type=_whole(0, 10**4), default=0,
        help="operations before them in an execution")  # fmt: skip
    add("-d", "--datatype", choices=DTYPES, default="uint8", help="of the data; fp8 is fp8e4")
    add("-c", "--check", choices=_CHECKS, help="compare results, of random data or of ones")
    add("--seed", type=_whole(0, (1 << 32) - 1), default=0, help="of random data")
    add("--unique-buff", action="store_true", help="every operation has its own data")
    add("--coalesced-cc-size-ratio", metavar="A:B:...",
        help="divide the data by ratios into operations that are issued together")  # fmt: skip
    add("--variable-size-op-metadata", type=Path, metavar="FILE",
        help="counts and places of all_gatherv and alltoallv, as JSON")  # fmt: skip
    add("--data-parallel-dimension", type=_whole(1, MOST_RANKS),
        help="groups of ranks that are so far apart")  # fmt: skip
    add(
        "--custom-replica-groups",
        type=Path,
        metavar="FILE",
        help='{"replica_groups": [[0, 1], ...]}',
    )
    add("--custom-src-target-pairs", type=Path, metavar="FILE",
        help='{"src_target_pairs": [[0, 1], ...]}, of sendrecv and permute')  # fmt: skip
    add("--non-interactive", action="store_true", help="no progress on standard error")
    add("--report-to-json-file", type=Path, metavar="FILE", help="write the results there too")
    add("-t", "--stats", nargs="+", type=_stat, default=["avg"], help="avg min max p0..p100")
    add("--show-input-output-size", action="store_true", help="two more columns")
    add("--predict", metavar="INSTANCE",
        help="ours: also print what is predicted for one, e.g. trn2.48xlarge")  # fmt: skip
    add("--predict-only", action="store_true", help="ours: run nothing; with --predict")
    add("--debug", action="store_true", help="show what the ranks print to standard error")
    for names, why in REFUSED.items():
        add(*names, nargs="*", action=_refusal(why), help=argparse.SUPPRESS)
    return made


def sizes(options: argparse.Namespace) -> list[int]:
    """Return the sizes that are run, in bytes.

    Raises:
        ToolError: There are none, or too many.
    """
    low, high = options.minbytes, options.maxbytes
    if high is None:
        high = max(32 << 20, low)
    if not 0 < low <= high:
        raise ToolError(f"--minbytes {low} must be from 1 to --maxbytes {high}")
    if options.stepbytes is not None and options.stepfactor is not None:
        raise ToolError("give --stepbytes or --stepfactor, not both")
    found: list[int] = []
    now = low
    step = max(1, (high - low) // 10) if options.stepbytes is None else options.stepbytes
    if step == 0:
        raise ToolError("--stepbytes must be at least 1")
    while now <= high and len(found) <= _MOST_SIZES:
        found.append(now)
        now = now * options.stepfactor if options.stepfactor else now + step
    if len(found) > _MOST_SIZES:
        raise ToolError(f"more than {_MOST_SIZES} sizes: choose a larger step")
    return found


def _document(path: Path, key: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ToolError(f'{path} is no JSON object with "{key}": {error}') from error


def _is_lists(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(part, list) and all(type(n) is int for n in part) for part in value
    )


def groups(options: argparse.Namespace) -> list[list[int]]:
    """Return the ranks of each group: all in one, if nothing else is said.

    Raises:
        ToolError: The groups do not divide the ranks.
    """
    ranks = options.nworkers
    if options.custom_replica_groups is not None:
        if options.data_parallel_dimension is not None:
            raise ToolError("give --custom-replica-groups or --data-parallel-dimension, not both")
        found = _document(options.custom_replica_groups, "replica_groups")
        if not _is_lists(found) or sorted(r for g in found for r in g) != list(range(ranks)):
            raise ToolError(f"replica groups must hold each of the ranks 0-{ranks - 1} once")
        if len({len(group) for group in found}) != 1:
            raise ToolError("replica groups must be equally large")
        return [list(group) for group in found]
    apart = options.data_parallel_dimension or 1
    if ranks % apart != 0:
        raise ToolError(f"--data-parallel-dimension {apart} does not divide {ranks} ranks")
    return [list(range(first, ranks, apart)) for first in range(apart)]


def pairs(options: argparse.Namespace) -> list[list[int]]:
    """Return who sends to whom: each rank to the next one of its group, if nothing else is said.

    Raises:
        ToolError: A rank is none, or sends or receives twice.
    """
    ranks = options.nworkers
    if options.custom_src_target_pairs is None:
        return [
            [rank, group[(place + 1) % len(group)]]
            for group in groups(options)
            for place, rank in enumerate(group)
        ]
    found = _document(options.custom_src_target_pairs, "src_target_pairs")
    good = _is_lists(found) and all(len(p) == 2 and set(p) <= set(range(ranks)) for p in found)
    if not good or any(len({p[end] for p in found}) < len(found) for end in (0, 1)):
        raise ToolError(f"pairs are of ranks 0-{ranks - 1}, each of which sends and receives once")
    return [list(pair) for pair in found]


def metadata(options: argparse.Namespace, ranks: int) -> list[dict[str, list[int]]] | None:
    """Return counts and places, in elements, of each rank of a group.

    Raises:
        ToolError: They do not fit each other.
    """
    path = options.variable_size_op_metadata
    if path is None:
        return None
    if not BY_NAME[options.operation].name.endswith("v"):
        raise ToolError("--variable-size-op-metadata is of all_gatherv and alltoallv")
    found = _document(path, "metadata")
    keys = ("send_counts", "send_displs", "recv_counts", "recv_displs")
    if not (
        isinstance(found, list)
        and len(found) == ranks
        and all(isinstance(of, dict) and _is_lists([of.get(key) for key in keys]) for of in found)
        and all(len(of[key]) == ranks and min(of[key]) >= 0 for of in found for key in keys)
    ):
        raise ToolError(
            f'{path}: "metadata" must have {", ".join(keys)}, of {ranks} numbers each, for '
            f"each of the {ranks} ranks"
        )
    for rank, of in enumerate(found):
        for other, peer in enumerate(found):
            if of["send_counts"][other] != peer["recv_counts"][rank]:
                raise ToolError(
                    f"{path}: rank {rank} sends {of['send_counts'][other]} elements to rank "
                    f"{other}, which receives {peer['recv_counts'][rank]}"
                )
    return [{key: list(of[key]) for key in keys} for of in found]


def ratios(options: argparse.Namespace) -> list[int]:
    """Return how the data is divided into operations that are issued together.

    Raises:
        ToolError: They are no ratios, or the operation has none.
    """
    text = options.coalesced_cc_size_ratio
    if text is None:
        return [1]
    parts = re.split(r"[:,]", text)
    if not all(part.isascii() and part.isdigit() and 0 < int(part[:9]) < 10**6 for part in parts):
        raise ToolError(f"--coalesced-cc-size-ratio {text!r} must be numbers as in 1:2:1")
    if BY_NAME[options.operation].name.endswith("v"):
        raise ToolError("--coalesced-cc-size-ratio is not of operations with sizes of their own")
    return [int(part) for part in parts]


def read(words: Sequence[str]) -> argparse.Namespace:
    """Read the words. A check without a name is that of random data."""
    told = []
    for number, word in enumerate(words):
        told.append(word)
        following = words[number + 1] if number + 1 < len(words) else ""
        if word in {"-c", "--check"} and following not in _CHECKS:
            told.append("random")
    # "-t avg p50 allr": the operation ends the list.
    return parser().parse_args(_operation_first(told))


def _operation_first(words: Sequence[str]) -> list[str]:
    named = [word for word in words if word in BY_NAME]
    rest = [word for word in words if word not in BY_NAME]
    return [*named, *rest]
