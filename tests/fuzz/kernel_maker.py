"""Makes random NKI kernels from the instruction table; `tests/fuzz/kernels.py` runs them.

A kernel is a row of steps that work on a pool of tensors: a new tensor, partly written, of any type
and memory; an instruction of the table on views of what is there; a loop of the device around some
steps. Calls that a rule of the table refuses are left out, so the rules choose what is legal.
Results of arithmetic, where a NaN has no documented bits, are looked at at once and then written
over, so that in the end all bytes of all tensors must agree.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nki.dtypes import NAMES, info
from nki.errors import NkiError
from nki.isa.act import ACTIVATIONS
from nki.isa.alu import ALU, COMPARISONS
from nki.isa.rows import random as random_rows
from nki.isa.spec import REQUIRED, Attribute, Instruction, Kind, Operand, Role
from nki.isa.table import TABLE
from tests.nki.lowering_tools import WORDS

Rng = random.Random

ROWS, COLUMNS = 128, 128  # of every input
PARTITIONS = (1, 3, 16, 32, 32, 64, 128)
FREE = (1, 2, 6, 8, 12, 16, 24, 33)
SMALL = ("uint8", "uint16", "uint32", "int32")  # inputs of small numbers, for indices
_CORES = {"sendrecv", "core_barrier"}  # need two cores, tests/nki/test_merge.py has them
_NOTHING = {"register_alloc", "get_nc_version", "get_nc_sub_version", "register_move"}
ROWS_TRIED = {n: r for n, r in TABLE.items() if n not in _CORES | _NOTHING}
# Sums in another order and functions with ulps, for which tests/nki/lowering_cases.py has bounds.
APPROXIMATE = {
    "activation", "activation_reduce", "activate2", "exponential", "reciprocal", "nc_matmul",
    "nc_matmul_mx", "bn_stats", "bn_aggr", "tensor_reduce", "tensor_partition_reduce",
    "tensor_scalar_reduce", "tensor_scalar_cumulative", "tensor_tensor_scan", "dma_compute",
}  # fmt: skip
_INEXACT_OPS = {"power", "rsqrt", "reciprocal", "divide", "fmod", "mod"}
# What only moves items keeps every bit where the types agree.
MOVES = {
    "tensor_copy", "memset", "tensor_copy_predicated", "dma_copy", "dma_transpose", "nc_transpose",
    "affine_select", "local_gather", "nc_n_gather", "nc_stream_shuffle", "rng", "rand_get_state",
    "register_store", "iota", "nc_find_index8", "nonzero_with_count", "sequence_bounds",
}  # fmt: skip


def _operators(attributes: dict[str, Any]) -> set[str]:
    return {str(v) for key, v in attributes.items() if key.startswith(("op", "reduce_op"))}


def _is_approximate(row: Instruction, attributes: dict[str, Any]) -> bool:
    return row.name in APPROXIMATE or bool(_operators(attributes) & _INEXACT_OPS)


@dataclass
class Looked:
    """A result that is compared by value: its name, type, and whether it is only looked at."""

    what: str
    dtype: str
    approximate: bool


@dataclass
class Maker:
    """Makes one kernel while it is recorded.

    Attributes:
        seed: decides everything, together with `left_out`.
        left_out: numbers of steps that do nothing, for shrinking.
        beside: operands of the instruction that is being made.
        log: what was done, to be read.
        used: how often each instruction was issued.
    """

    seed: int
    left_out: frozenset[int] = frozenset()
    steps: int = 12
    log: list[str] = field(default_factory=list)
    used: Counter[str] = field(default_factory=Counter)
    looked: list[Looked] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    pool: list[Any] = field(default_factory=list)
    beside: list[Any] = field(default_factory=list)
    address: int = 0
    depth: int = 0
    # Whether the accumulation registers may hold sums of what is not exact.
    inexact_sums: bool = False
    counters: list[tuple[Any, int]] = field(default_factory=list)

    def kernel(self, arrays: dict[str, Any], small: dict[str, Any]) -> Any:
        """As `nki.jit` takes it: returns the bytes of all tensors, and what was looked at."""
        self.arrays, self.small = arrays, small
        self.done = 0
        while self.done < self.steps:
            self._step()
        for tensor in self.pool:
            self.results.append(self._bytes_of(tensor))
        return tuple(self.results)

    # --- tensors -------------------------------------------------------------------------------

    def new(self, rng: Rng, shape: tuple[int, ...], dtype: str, region: str) -> Any:
        """Return a new tensor, wholly, partly or not written."""
        address = None
        size = math.prod(shape[1:]) * info(dtype).itemsize
        if region == "sbuf" and self.depth == 0 and rng.random() < 0.25:
            first = (
                0
                if shape[0] > 64
                else rng.choice((0, 64))
                if shape[0] > 32
                else rng.choice((0, 32, 64, 96))
            )
            address, self.address = (first, self.address), self.address + -(-size // 64) * 64
        tensor = nl.ndarray(shape, dtype, getattr(nl, region), address=address)
        self.log.append(f"new {dtype}{list(shape)} {region} {address}")
        how = rng.random()
        if how < 0.7:
            self.load(rng, tensor)
        elif how < 0.9:
            self.load(rng, self.part(rng, tensor))
        return tensor

    def load(self, rng: Rng, view: Any, *, small: bool = False) -> None:
        """Write a view from an input of its type, bit by bit."""
        rows, free = view.shape[0], math.prod(view.shape[1:])
        if view.dtype in self.small and (small or rng.random() < 0.3):
            source = self.small[view.dtype]
        else:
            source = self.arrays[view.dtype].view(view.dtype)
        at = rng.randrange(COLUMNS - free + 1) if free <= COLUMNS else 0
        if free > COLUMNS or rows > ROWS:
            return
        source = source[:rows, at : at + free].reshape(view.shape)
        if view.buffer.name == "psum":
            between = nl.ndarray(view.shape, view.dtype)
            nisa.dma_copy(between, source)
            nisa.tensor_copy(view, between)
        else:
            nisa.dma_copy(view, source)

    def part(self, rng: Rng, tensor: Any) -> Any:
        """Return a view of a tensor: rows, columns with steps, permuted, or of another type."""
        view = tensor
        if rng.random() < 0.3:
            kind = rng.choice(NAMES)
            scale = info(view.dtype).itemsize * view.shape[-1] % info(kind).itemsize
            if scale == 0 and view.pattern.strides[-1] == 1:
                with suppress(NkiError):  # whose rules need not be said again here
                    view = view.view(kind)
        first = 0
        if view.shape[0] > 32 and rng.random() < 0.3:
            first = rng.choice((0, 32, 64, 96) if view.shape[0] > 96 else (0, 32))
        rows = view.shape[0] - first
        if rng.random() < 0.4:
            rows = rng.randint(1, rows)
        key = [slice(first, first + rows)]
        for size in view.shape[1:]:
            low = rng.randrange(size) if rng.random() < 0.4 else 0
            key.append(slice(low, rng.randint(low + 1, size) if rng.random() < 0.4 else size,
                             rng.choice((1, 1, 1, 2, 3))))  # fmt: skip
        view = view[tuple(key)]
        if view.ndim == 3 and rng.random() < 0.3:
            view = view.permute((0, 2, 1))
        return view

    def moved(self, rng: Rng, tensor: Any, shape: tuple[int, ...]) -> Any | None:
        """Return a view of a shape whose place a counter or a value of the run decides."""
        columns = math.prod(tensor.shape[1:])
        free = math.prod(shape[1:])
        if len(shape) != 2 or free > columns or shape[0] > tensor.shape[0]:
            return None
        row = columns if tensor.buffer.on_chip else int(tensor.pattern.strides[0])
        steps = columns - free + 1
        if tensor.ndim != 2 or tensor.pattern.offset or tensor.pattern.strides[-1] != 1:
            return None
        index: Any
        if self.counters and rng.random() < 0.7:
            index, most = self.counters[-1]
            if most > steps:
                return None
        else:
            at = rng.randrange(min(steps, 4))
            index = nl.ndarray((1, 1), nl.int32)
            nisa.memset(index, at)
            if rng.random() < 0.5:
                register = nisa.register_alloc()
                nisa.register_load(register, index)
                index = register
        return tensor.ap([[row, shape[0]], [1, free]], scalar_offset=index, indirect_dim=1)

    def find(
        self, rng: Rng, shape: tuple[int, ...], dtypes: Any, regions: Any, *, written: bool
    ) -> Any:
        """Return a view of a shape: another operand, of what is there, or of a new tensor."""
        allowed = sorted(set(dtypes or NAMES))
        places = sorted(set(regions) & {"sbuf", "psum", "private_hbm", "shared_hbm"})
        if rng.random() < 0.15:
            for view in self.beside:
                same = view.dtype in allowed and tuple(view.shape) == tuple(shape)
                if same and view.buffer.name in places:
                    return view
        for _ in range(3):
            if not self.pool or rng.random() < 0.3:
                break
            tensor = rng.choice(self.pool)
            view = self.moved(rng, tensor, shape) if rng.random() < 0.2 else None
            if view is None:
                view = self._fitted(self.part(rng, tensor), shape)
            if view is not None and view.buffer.name in places and view.dtype in allowed:
                return view
        region = rng.choice(["sbuf"] * ("sbuf" in places) * 3 + places)
        tensor = self.new(rng, shape, rng.choice(allowed), region)
        if self.depth == 0:
            self.pool.append(tensor)
        free = math.prod(shape[1:])
        if not written and rng.random() < 0.2 and region != "psum" and len(shape) == 2 and free > 1:
            return tensor[:, 0:1].broadcast(1, free)
        return tensor

    def _fitted(self, view: Any, shape: tuple[int, ...]) -> Any | None:
        """Return a part of a view that has a shape, None if there is none."""
        free = math.prod(shape[1:])
        if view.shape[0] < shape[0]:
            return None
        view = view[: shape[0]]
        if math.prod(view.shape[1:]) == free:
            with suppress(NkiError):  # dimensions that do not merge are good too
                return view.reshape(shape)
            return view
        wide = view.ndim == 2 == len(shape) and view.shape[1] > free
        return view[:, :free] if wide else None

    def _bytes_of(self, tensor: Any) -> Any:
        raw = tensor.view(nl.uint8)
        out = nl.ndarray(raw.shape, nl.uint8, nl.shared_hbm)
        if raw.buffer.name == "psum":
            between = nl.ndarray(raw.shape, nl.uint8)
            nisa.tensor_copy(between, raw)
            raw = between
        nisa.dma_copy(out, raw)
        return out

    # --- steps ---------------------------------------------------------------------------------

    def _step(self) -> None:
        number = self.done
        self.done += 1
        if number in self.left_out:
            return
        rng = random.Random(f"{self.seed}/{number}")  # noqa: S311 (no secret)
        if self.depth < 2 and rng.random() < 0.12:
            self._loop(rng)
        else:
            self._instruction(rng)

    def _loop(self, rng: Rng) -> None:
        count = rng.randint(1, 3)
        end: Any = count
        if rng.random() < 0.4:
            count = rng.randint(0, 2)
            held = nl.ndarray((1, 1), nl.int32)
            nisa.memset(held, count)
            end = nisa.register_alloc()
            nisa.register_load(end, held)
        inner = rng.randint(1, 3)
        self.log.append(f"loop {count} {'register' if end is not count else ''} of {inner} steps")

        def body(i: Any) -> None:
            self.depth += 1
            self.counters.append((i, max(count, 1)))
            for _ in range(inner):
                if self.done < self.steps:
                    self._step()
            self.counters.pop()
            self.depth -= 1

        nl.fori_loop(0, end, body)

    def _instruction(self, rng: Rng) -> None:
        row = rng.choice(list(ROWS_TRIED.values()))
        partitions = 32 if "mx" in row.name else rng.choice(PARTITIONS)
        free = rng.choice(FREE)
        if row.name in ("local_gather", "topk", "nonzero_with_count"):
            partitions = rng.choice((16, 32, 64))
        make = _SHAPES.get(row.name)
        shapes = {} if make is None else make(rng, partitions, free)
        plain = (partitions, free)
        self.beside = []
        if free % 2 == 0 and rng.random() < 0.2:
            plain = (partitions, 2, free // 2)  # type: ignore[assignment]
        try:
            operands = {
                o.name: self._operand(rng, o, shapes.get(o.name, plain)) for o in row.operands
            }
            operands = {name: value for name, value in operands.items() if value is not _ABSENT}
            self._agree(rng, row, operands)
            attributes = {
                a.name: value
                for a in row.attributes
                if (value := self._attribute(rng, row, a, operands, shapes)) is not _ABSENT
            }
            getattr(nisa, row.name)(**operands, **attributes)
        except NkiError as error:
            self.used[f"refused {row.name} {error.code}"] += 1
            return
        self.used[row.name] += 1
        shown = {
            n: f"{v.dtype}{list(v.shape)}{v.pattern.strides}@{v.pattern.offset}"
            if hasattr(v, "pattern")
            else v
            for n, v in {**operands, **attributes}.items()
        }
        self.log.append(f"{row.name} {shown}")
        adds_up = any(a.name == "reduce_cmd" for a in row.attributes)
        self.inexact_sums |= adds_up and _is_approximate(row, attributes)
        for operand in row.operands:
            if operand.role is not Role.READ and operand.name in operands:
                self._look(row, operand.name, operands, attributes)

    def _operand(self, rng: Rng, operand: Operand, shape: tuple[int, ...]) -> Any:
        optional = operand.default is not REQUIRED
        if optional and rng.random() < 0.5:
            return _ABSENT
        kind = operand.kind
        numbers = kind in (Kind.SCALAR_OR_VECTOR, Kind.SCALAR_OR_TILE)
        if numbers and rng.random() < 0.5:
            return 0.25 if operand.name == "prob" else rng.choice((0.0, 1.0, -2.5, 3.0, 0.125))
        if kind is Kind.REGISTER_OR_INT:
            return rng.choice((0, 3, -9))
        if kind is Kind.REGISTER:
            register = nisa.register_alloc()
            nisa.register_move(register, rng.choice((0, 5, -7)))
            return register
        if kind in (Kind.VECTOR, Kind.SCALAR_OR_VECTOR):
            shape = (shape[0], 1)
        written = operand.role is not Role.READ
        if operand.name in ("index", "indices"):
            tensor = nl.ndarray(shape, rng.choice(sorted(operand.dtypes or ())))
            self.load(rng, tensor, small=True)
            return tensor
        count = rng.randint(1, 3) if kind is Kind.TILES else 1
        made = [
            self.find(rng, shape, operand.dtypes, operand.regions, written=written)
            for _ in range(count)
        ]
        self.beside += made
        return made if kind is Kind.TILES else made[0]

    def _agree(self, rng: Rng, row: Instruction, operands: dict[str, Any]) -> None:
        """Give two operands one type where a rule asks for that, and sometimes else."""
        names = _ALIKE.get(row.name)
        if names is None and row.name in ("tensor_copy", "dma_copy") and rng.random() < 0.5:
            names = ("dst", "src")
        if names is None or not all(hasattr(operands.get(name), "pattern") for name in names):
            return
        dst, src = (operands[name] for name in names)
        same = info(dst.dtype).itemsize == info(src.dtype).itemsize
        if same and src.pattern.indirect is None:
            operands[names[1]] = src.view(dst.dtype)
        else:
            operands[names[1]] = self.new(rng, src.shape, dst.dtype, "sbuf")

    def _attribute(
        self, rng: Rng, row: Instruction, attribute: Attribute, operands: Any, shapes: Any
    ) -> Any:
        name = attribute.name
        if name in shapes:
            return shapes[name]
        if name == "name" or (attribute.default is not REQUIRED and rng.random() < 0.5):
            return _ABSENT
        if row.name.startswith("activ") and name == "op":
            return rng.choice(sorted(ACTIVATIONS))
        if name == "engine":
            allowed = [e for e in row.engines.allowed[4] if hasattr(nisa.engine, e)]
            return getattr(nisa.engine, rng.choice(allowed)) if allowed else _ABSENT
        choose = _ATTRIBUTES.get(name)
        for _ in range(20):
            if choose is None:
                break
            value = choose(rng, operands)
            try:
                attribute.convert(value)
            except ValueError:
                continue
            return value
        return _ABSENT

    def _look(self, row: Instruction, name: str, operands: Any, attributes: Any) -> None:
        """Return what an instruction wrote, if its bits are not documented, and write over it."""
        view = operands[name]
        if not hasattr(view, "pattern"):
            return
        # Only DMA takes rows from any partition on.
        moved_by_dma = row.name.startswith("dma_") or not view.buffer.on_chip
        copy = nisa.dma_copy if moved_by_dma else nisa.tensor_copy
        ops = _operators(attributes)
        # Of two results in one place the first one's NaNs may be seen as other items.
        written = [o.name for o in row.operands if o.role is not Role.READ and o.name != name]
        places = [getattr(operands.get(n), "storage", None) for n in written]
        approximate = (
            _is_approximate(row, attributes)
            or (name == "reduce_res" and self.inexact_sums)
            or view.storage in places
        )
        sources = [v.dtype for n, v in operands.items() if n != name and hasattr(v, "pattern")]
        moves = row.name in MOVES and (view.dtype in sources or not sources)
        bitwise = any(op in ALU and ALU[op].bitvec for op in ops)
        kind = info(view.dtype)
        if not approximate and (moves or bitwise or kind.is_packed or not kind.is_float):
            return
        if view.pattern.indirect is None:
            shape = (view.shape[0], math.prod(view.shape[1:]))
            copied = nl.ndarray(view.shape, view.dtype)
            copy(copied, view)
            out = nl.ndarray(shape, WORDS_OF[view.dtype], nl.shared_hbm)
            nisa.dma_copy(out.view(view.dtype), copied.reshape(shape))
            self.looked.append(Looked(f"{row.name} {name}", view.dtype, approximate))
            self.results.append(out)
        filled = nl.ndarray(view.shape, view.dtype)
        nisa.memset(filled, 0 if info(view.dtype).is_packed else 1)
        copy(view, filled)


class _Absent:
    pass


_ABSENT = _Absent()
WORDS_OF = {name: WORDS[info(name).itemsize] for name in NAMES}


def _pattern(rng: Rng, operands: Any) -> list[list[int]]:
    dst = operands["dst"]
    free = math.prod(dst.shape[1:])
    if free % 2 == 0 and rng.random() < 0.4:
        return [[rng.choice((1, -3, 0)), 2], [rng.choice((1, 2, -1)), free // 2]]
    return [[rng.choice((1, 2, -1)), free]]


# Operands that a rule gives one type.
_ALIKE = {
    "tensor_copy_predicated": ("dst", "src"), "dma_transpose": ("dst", "src"),
    "nc_transpose": ("dst", "data"), "local_gather": ("dst", "src_buffer"),
    "nc_n_gather": ("dst", "data"), "nc_stream_shuffle": ("dst", "src"),
    "sequence_bounds": ("dst", "segment_ids"), "dropout": ("dst", "data"),
}  # fmt: skip
_OPS = sorted(ALU)
_COMPARISONS = sorted(COMPARISONS)


def _mask(rng: Rng, operands: Any) -> list[int]:
    rows = min(32, operands["src"].shape[0])
    return [rng.choice((rng.randrange(rows), 255)) for _ in range(32)]


_ATTRIBUTES: dict[str, Callable[[Rng, Any], Any]] = {
    "value": lambda rng, _: rng.choice((0, 1, 7, 0.0, 1.5, -3.0)),
    "reverse_pred": lambda rng, _: rng.random() < 0.5,
    "op": lambda rng, _: rng.choice(_OPS),
    "op0": lambda rng, _: rng.choice(_OPS),
    "op1": lambda rng, _: rng.choice(_OPS),
    "reduce_op": lambda rng, _: rng.choice(("add", "maximum", "minimum")),
    "reverse0": lambda rng, _: rng.random() < 0.5,
    "reverse1": lambda rng, _: rng.random() < 0.5,
    "axis": lambda rng, o: list(range(1, len(o["data"].shape))),
    "negate": lambda rng, _: rng.random() < 0.5,
    "reduce_cmd": lambda rng, _: rng.choice(list(nisa.reduce_cmd)),
    "pattern": _pattern,
    "channel_multiplier": lambda rng, _: rng.choice((0, 1, -1)),
    "on_false_value": lambda rng, _: rng.choice((0.0, -3.5)),
    "cmp_op": lambda rng, _: rng.choice(_COMPARISONS),
    "comp_op0": lambda rng, _: rng.choice(("greater", "greater_equal")),
    "comp_op1": lambda rng, _: rng.choice(("less", "less_equal")),
    "range_start": lambda rng, _: rng.choice((0, 3)),
    "shuffle_mask": _mask,
    "imm": lambda rng, _: rng.choice((0.0, -1.5)),
    "index_offset": lambda rng, _: rng.choice((0, 7)),
    "padding_val": lambda rng, _: rng.choice((-1, 0)),
    "accumulate": lambda rng, _: rng.choice((None, True, False)),
}  # fmt: skip


def _transposed(rng: Rng, partitions: int, free: int) -> dict[str, Any]:
    return {"dst": (free, partitions), "data": (partitions, free), "src": (partitions, free)}


def _products(rng: Rng, partitions: int, free: int) -> dict[str, Any]:
    columns = 2 * rng.randint(1, 16)
    scales = (4, columns), (4, free)
    return {
        "dst": (columns, free), "stationary": (partitions, columns), "moving": (partitions, free),
        "stationary_scale": scales[0], "moving_scale": scales[1],
    }  # fmt: skip


def _gathered(rng: Rng, partitions: int, free: int) -> dict[str, Any]:
    columns = rng.randint(1, 2)
    return {"src_buffer": (partitions, free), "index": (partitions, columns),
            "dst": (partitions, 16 * columns), "num_elem_per_idx": 1}  # fmt: skip


def _topk(rng: Rng, partitions: int, free: int) -> dict[str, Any]:
    k = rng.randint(1, 8)
    return {"src": (partitions, free), "val_dst": (partitions, k), "idx_dst": (partitions, k),
            "n": rng.randint(8, max(8, 16 * free))}  # fmt: skip


Shapes = Callable[[Rng, int, int], dict[str, Any]]
_SHAPES: dict[str, Shapes] = {
    "nc_transpose": _transposed,
    "dma_transpose": _transposed,
    "nc_matmul": _products,
    "nc_matmul_mx": _products,
    "quantize_mx": lambda _, p, f: {"src": (p, 4 * f), "dst": (p, f), "dst_scale": (p, f)},
    "tensor_reduce": lambda _, p, f: {"dst": (p, 1), "data": (p, f)},
    "tensor_partition_reduce": lambda _, p, f: {"dst": (1, f), "data": (p, f)},
    "local_gather": _gathered,
    "topk": _topk,
    "max8": lambda _, p, f: {"dst": (p, 8), "src": (p, 8 + f)},
    "nc_find_index8": lambda _, p, f: {"dst": (p, 8), "vals": (p, 8), "data": (p, 8 + f)},
    "nc_match_replace8": lambda _, p, f: {"dst": (p, 8 + f), "data": (p, 8 + f), "vals": (p, 8),
                                          "dst_idx": (p, 8)},
    "nonzero_with_count": lambda _, p, f: {"dst": (p, f + 1), "src": (p, f)},
    "bn_stats": lambda _, p, f: {"dst": (p, 6), "data": (p, f)},
    "bn_aggr": lambda _, p, f: {"dst": (p, 2), "data": (p, 6)},
    "sequence_bounds": lambda _, p, f: {"dst": (1, 2, f), "segment_ids": (1, f)},
    "set_rng_seed": lambda *_: {"src_seeds": (1, 1)},
    "rand_set_state": lambda _, p, f: {"src_seeds": (p, 6)},
    "rand_get_state": lambda _, p, f: {"dst": (p, 6)},
    "register_load": lambda *_: {"src": (1, 1)},
    "register_store": lambda *_: {"dst": (1, 1)},
}  # fmt: skip
assert {row.name for row in random_rows.ROWS} <= set(TABLE)
