"""What is fuzzed: one entry per parser, with what it may answer to a bad file.

A target takes bytes and returns what became of them, "ok" or the name of a documented error.
Any other exception, a crash, more than `SECONDS` or more than `BYTES` of memory is a finding.
"""

from __future__ import annotations

import io
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import jax
import torch

import nki.language as nl
import torch_neuronx
from neuronxcc.cli import compile as cli
from neuronxcc.compiler import compile_graph
from neuronxcc.frontends.hlo import import_hlo
from neuronxcc.frontends.hlo.errors import HloError
from neuronxcc.frontends.hlo.exporter import export_hlo
from neuronxcc.frontends.stablehlo import is_stablehlo, to_hlo
from neuronxcc.ir.op import Op
from neuronxcc.neff import NeffError, NeffInfo, read_neff, write_neff
from neuronxcc.options import parse
from neuronxcc.program.footprint import programs
from neuronxcc.program.memory import buffer_bytes
from neuronxcc.program.program import CallStep, ForStep, Program, WhileStep
from tests.compiler.ir_samples import samples_of
from tests.frontends.programs import PROGRAMS
from tests.fuzz.mutate import mutate_bytes, mutate_module, mutate_neff
from torch_neuronx import nki
from torch_neuronx.program.dtypes import TO_TORCH
from torch_neuronx.program.executable import Executable

SECONDS: Final = 20
BYTES: Final = 4 << 30
_MOST_RUN: Final = 1 << 20  # bytes of a program that is not only read but also run

Mutate = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True, slots=True)
class Target:
    """A parser.

    Attributes:
        run: Reads a file; "ok", or how it was refused.
        seeds: Good files to begin with.
        mutate: Changes a file so that it still is one from outside.
    """

    run: Callable[[bytes], str]
    seeds: Callable[[], Mapping[str, bytes]]
    mutate: Mutate


def _reader(read: Callable[[bytes], object]) -> Callable[[bytes], str]:
    """Tells a reader's answer: the code of its error."""

    def run(content: bytes) -> str:
        try:
            read(content)
        except HloError as error:
            return error.code
        return "ok"

    return run


def _command(content: bytes) -> str:
    """As `neuronx-cc compile` does it, up to the file that is written."""
    if is_stablehlo(content):
        return "other"  # a process of its own each time; see the target for it
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "model.pb"
        source.write_bytes(content)
        options = parse("--target trn2", environ={})
        job = cli.Job(source, Path(folder) / "model.neff", options, explain=True)
        try:
            cli.compile_file(job)
        except cli.EXPECTED as error:
            return type(error).__name__
        return "ok"


def _neff(content: bytes) -> str:
    """Read, checked, and what is small also run: a program that is accepted must not crash."""
    try:
        program = read_neff(content, most_bytes=1 << 28).program
    except NeffError:
        return "refused"
    if not _is_small(program):
        return "large"
    try:
        executable = Executable(program, "cpu")
    except NeffError:
        return "refused to load"
    try:
        executable(list(_arguments(program)))
    except ValueError:
        return "refused to run"
    except (RuntimeError, IndexError, TypeError) as error:  # those of PyTorch's operators
        return type(error).__name__
    return "ok"


def _is_small(program: Program) -> bool:
    """Whether it can be run here: no loops, since nobody can tell whether they end."""
    total = program.scratch_bytes
    for part in programs(program):
        total += sum(buffer_bytes(buffer) for buffer in part.buffers)
        for step in part.steps:
            if isinstance(step, WhileStep | ForStep):
                return False
            if isinstance(step, CallStep) and step.kind == "while":
                return False
    return total <= _MOST_RUN


def _arguments(program: Program) -> Iterator[torch.Tensor]:
    inputs = {b.index: b for b in program.buffers if b.kind == "input"}
    for _, buffer in sorted(inputs.items()):
        yield torch.empty_strided(
            buffer.shape, buffer.strides, dtype=TO_TORCH[buffer.dtype]
        ).zero_()


@cache
def modules() -> dict[str, bytes]:
    """The JAX programs of the front end's tests as HLO, and operators that are text in HLO."""
    made = {op.value: export_hlo(list(samples_of(op))[-1].graph) for op in (Op.LGAMMA, Op.SORT)}
    for name, program in PROGRAMS.items():
        module: Any = jax.jit(program.function).lower(*program.args).compiler_ir("hlo")
        made[name] = module.as_serialized_hlo_module_proto()
    return made


def _stablehlo_modules() -> dict[str, bytes]:
    """The same as text and as bytecode."""
    made = {}
    for name, program in PROGRAMS.items():
        module = jax.jit(program.function).lower(*program.args).compiler_ir("stablehlo")
        stream = io.BytesIO()
        module.operation.write_bytecode(stream)  # type: ignore[union-attr]
        made[name], made[f"{name}_bytecode"] = str(module).encode(), stream.getvalue()
    return made


@nki.jit
def _kernel(x: Any) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for row in nl.affine_range(2):
        tile = nl.load(x[row * 128 : row * 128 + 128])
        nl.store(out[row * 128 : row * 128 + 128], value=nl.softmax(tile, axis=1))
    return out


def _from_torch() -> Iterator[tuple[str, bytes]]:
    """Programs with steps that the front end makes none of: PyTorch's operators, NKI's tapes."""

    def function(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        sums: torch.Tensor = _kernel(x).cumsum(0).index_add(0, index, x)
        result: torch.Tensor = torch.linalg.qr(sums[:8, :8]).R + sums[:8, :8].sort().values
        return result

    x, index = torch.rand(256, 16, device="neuron"), torch.arange(256, device="neuron")
    options: dict[str, Any] = {"enable_fast_loading_neuron_binaries": True}
    with tempfile.TemporaryDirectory() as folder:
        compiled = torch.compile(function, backend="neuron", options=options)
        with torch_neuronx.compile_only(cache_dir=folder) as made:
            compiled(x, index)
        for number, path in enumerate(made.paths):
            yield f"torch{number}", path.read_bytes()


@cache
def _neffs() -> dict[str, bytes]:
    made = dict(_from_torch())
    for name, content in modules().items():
        program = compile_graph(import_hlo(content).graph, parse("", environ={}))
        made[name] = write_neff(program, NeffInfo(name, "trn2", 1, ()), compress=False)
    return made


TARGETS: Final[dict[str, Target]] = {
    "hlo": Target(_reader(import_hlo), modules, mutate_module),
    "command": Target(_command, modules, mutate_module),
    "stablehlo": Target(_reader(to_hlo), _stablehlo_modules, mutate_bytes),
    "neff": Target(_neff, _neffs, mutate_neff),
}
