"""From the instructions of a recording to works of the performance model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from neuronxcc.perf.stream import ENGINES, QUEUES, RINGS, TENSOR, Product, Transfer, Work
from nki.dtypes import info
from nki.isa.cost import MIN_II
from nki.isa.spec import PMAX, Call, Role, Tile
from nki.memory import MemoryRegion
from nki.recording import Template, TileForm

__all__ = ["SPILL", "choices", "columns", "is_timed", "spreads", "unpriced", "work_of"]

#: Of a copy that is no instruction of the kernel's: its memory is too small.
SPILL: Final = "spill"
# Instructions whose formula is a slope that the model has as a parameter, and the operand whose
# elements count.
_SLOPES: Final = {"reciprocal": ("reciprocal_slope", "data")}
_NOBODY: Final[frozenset[str]] = frozenset()
# Elements of a partition in a cycle, at the most, of instructions that have such modes.
_MODES: Final = {(3, "vector"): 4, (4, "vector"): 4, (4, "scalar"): 2}
_WITH_MODES: Final = frozenset({"tensor_copy", "tensor_scalar"})
# What a debugger shows takes no part in the program's time.
_NOT_TIMED: Final = frozenset({"device_print"})
# Rates of what the DMA engines turn around, of a copy's: trainium2_arch.rst.
_TURNED_FROM_HBM, _TURNED_ON_CHIP = 0.9, 0.5
_LOAD, _STORE, _MOVE = (QUEUES.index(name) for name in RINGS)


def is_timed(template: Template) -> bool:
    """Return whether hardware runs an instruction: not those that fill what is new here."""
    return not template.hidden and template.row.name not in _NOT_TIMED


def unpriced(template: Template) -> bool:
    """Return whether no cost of an instruction is published or derived."""
    return template.row.cost is None and template.call.engine != "dma"


def choices(template: Template) -> tuple[str, ...]:
    """Return the engines that may run an instruction, where the kernel leaves that open.

    GpSimd is none of them where another engine is: compilers of the first generation left it idle,
    as public profiles of trn1 show (AccelOpt, NKIBench: it is busy for at most 1.2 %).
    """
    call = template.call
    if call.attributes.get("engine", "unknown") != "unknown":
        return (call.engine,)
    if template.row.name == "tensor_copy":
        # Of what PSUM holds Scalar makes copies, as the profiles of products show.
        return ("scalar",) if call.tile("src").region == "psum" else ("vector", "scalar")
    if template.row.name == "tensor_scalar" and call.engine == "vector" and _scales(call):
        return ("vector", "scalar")
    if _spreads(call):
        return ("tensor",)
    return (call.engine,)


def columns(template: Template) -> frozenset[str]:
    """Return the operands of a `tensor_tensor` that have one element for each partition.

    A compiler makes an instruction with a number for each partition of it, which reads one operand.
    """
    if template.row.name != "tensor_tensor":
        return _NOBODY
    return frozenset(
        name
        for name, form in template.operands
        if name != "dst"
        and isinstance(form, TileForm)
        and math.prod(form.shape[1:]) > 1
        and not any(form.strides[1:])
    )


def spreads(template: Template) -> bool:
    """Return whether an instruction copies one partition to others."""
    return _spreads(template.call)


def _spreads(call: Call) -> bool:
    """Return whether an instruction copies one partition to others.

    Compilers of the first generation let the Tensor Engine do that, by a product with ones: the
    profile of NKIBench's mamba has its operations, and no more time of Vector.
    """
    if call.instruction.name != "nc_stream_shuffle":
        return False
    return len(set(call.attributes["shuffle_mask"])) == 1


def _scales(call: Call) -> bool:
    """Return whether an activation without a function does the same: a product, then a sum."""
    pair = call.attributes["op0"], call.attributes["op1"]
    return pair in (("multiply", "add"), ("multiply", None), ("add", None))


def work_of(template: Template, engine: str | None = None, near: frozenset[str] = _NOBODY) -> Work:
    """Return what an instruction costs.

    Args:
        template: the instruction.
        engine: who runs it; by default the one that the recording has.
        near: operands that a compiler puts into PSUM, whatever the kernel says.
    """
    call = template.call
    regions = {tile.region for _, _, tile in call.tiles()}
    if near:
        operands = {
            name: replace(value, region="psum")
            if name in near and isinstance(value, Tile)
            else value
            for name, value in call.operands.items()
        }
        call = Call(call.instruction, operands, call.attributes, call.generation, call.engine)
    if engine is not None and engine != call.engine:
        call = Call(call.instruction, call.operands, call.attributes, call.generation, engine)
    name = template.row.name
    if call.engine == "dma":
        return _transfer(template)
    queue = ENGINES.index(call.engine)
    cycles, slope = _cycles(call)
    mode = _mode(template, call)
    if mode > 1:
        cycles = max(MIN_II, cycles / mode)
    product = _product(call) if queue == TENSOR else None
    return Work(
        name,
        queue,
        cycles,
        core=template.core,
        sbuf="sbuf" in regions,
        psum="psum" in regions,
        flops=product.flops if product is not None and not product.transpose else 0,
        slope=slope,
        product=product,
    )


def _cycles(call: Call) -> tuple[float, str]:
    """Return cycles, or elements and the parameter that says how many cycles one takes."""
    if call.engine == "tensor" and _spreads(call):
        # One product fills all partitions; four passes of float32.
        tile = call.tile("dst")
        return tile.size / PMAX * (4 if tile.dtype == "float32" else 1), ""
    if call.instruction.name == "nc_transpose" and call.engine == "tensor":
        # A product with ones and zeros before NeuronCore-v3, of float32 in four passes: NKIBench's
        # profiles count the operations of transposes as they count those of products.
        quadruple = call.generation == 2 and call.tile("data").dtype == "float32"
        assert call.instruction.cost is not None
        return call.instruction.cost.cycles(call) * (4 if quadruple else 1), ""
    cost = call.instruction.cost
    if cost is None or cost.unit != "cycles":
        most = max((tile.free for _, _, tile in call.tiles()), default=1)
        return float(max(MIN_II, most)), ""
    cycles = cost.cycles(call)
    slope = _SLOPES.get(call.instruction.name)
    if slope is not None and call.engine == "vector":
        elements = call.tile(slope[1]).free
        if cycles > max(MIN_II, elements):
            return float(elements), slope[0]
    return float(cycles), ""


def _mode(template: Template, call: Call) -> int:
    """Return how many elements of a partition an instruction takes in a cycle: 1, 2 or 4.

    Vector copies and computes with numbers from NeuronCore-v3 on four elements at a time if all are
    of 16-bit types, in SBUF and contiguous, and two if one of these is missing; Scalar of
    NeuronCore-v4 two if all hold. From the architecture guides (trainium2_arch.rst and
    trainium3_arch.rst).
    """
    most = _MODES.get((call.generation, call.engine), 1)
    if most == 1 or call.instruction.name not in _WITH_MODES:
        return 1
    forms = [
        form
        for _, form in template.operands
        if isinstance(form, TileForm) and math.prod(form.shape[1:]) > 1
    ]
    missing = (
        any(info(form.dtype).itemsize > 2 for form in forms),
        any(form.region is not MemoryRegion.sbuf for form in forms),
        any(form.indirect is not None or not _contiguous(form) for form in forms),
    )
    return max(1, most >> sum(missing)) if sum(missing) <= 1 else 1


def _contiguous(form: TileForm) -> bool:
    return _run(form) == math.prod(form.shape[1:]) * info(form.dtype).itemsize


def _product(call: Call) -> Product | None:
    """Return what the array multiplies."""
    if call.instruction.name == "nc_transpose" or _spreads(call):
        data = call.tile("src" if _spreads(call) else "data")
        return Product(data.partitions, PMAX, data.free, data.dtype, transpose=True)
    if not call.instruction.name.startswith("nc_matmul"):
        return None
    stationary, moving = call.tile("stationary"), call.tile("moving")
    # Rows of packed types, and pairs of rows, take part in one pass.
    each = 4 if stationary.dtype.endswith("_x4") else 1
    columns = call.tile("dst").partitions
    rows = stationary.size // columns * each
    turned = bool(call.attributes.get("is_transpose"))
    return Product(rows, columns, moving.size * each // rows, moving.dtype, transpose=turned)


# --- transfers -----------------------------------------------------------------------------------


def _transfer(template: Template) -> Work:
    call, row = template.call, template.row
    roles = {operand.name: operand.role for operand in row.operands}
    written: list[Tile] = []
    read: list[Tile] = []
    for operand in row.operands:
        for tile in _tiles(call.operands.get(operand.name)):
            (read if roles[operand.name] is Role.READ else written).append(tile)
    nbytes = sum(tile.size * tile.info.itemsize for tile in written)
    sources = [tile for tile in read if tile.size > 1] or read
    # A sum reads all of its sources.
    nbytes = max(nbytes, sum(tile.size * tile.info.itemsize for tile in sources[1:]) + nbytes)
    to_chip = any(tile.on_chip for tile in written)
    from_chip = any(tile.on_chip for tile in read)
    share = 1.0
    if row.name == "dma_transpose":
        share = _TURNED_ON_CHIP if from_chip else _TURNED_FROM_HBM
    queue = _LOAD if to_chip and not from_chip else _STORE if from_chip and not to_chip else _MOVE
    asked = call.attributes.get("engine", "unknown")
    if asked in ENGINES:
        queue = ENGINES.index(asked)
    return Work(
        row.name,
        queue,
        0,
        core=template.core,
        transfer=Transfer(
            nbytes=nbytes,
            row=max(1, min(_row(template), nbytes)),
            hbm=int(not to_chip) + int(bool(read) and not from_chip),
            spill=bool(template.attributes.get(SPILL, False)),
            made=_maker(call),
            share=share,
            source=_where(read),
            dest=_where(written),
        ),
    )


def _where(tiles: list[Tile]) -> str:
    """Return in which memory tiles are; indices are not looked at, which come later."""
    return next((tile.region if tile.on_chip else "hbm" for tile in tiles), "")


def _tiles(value: object) -> Iterator[Tile]:
    if isinstance(value, Tile):
        yield value
    elif isinstance(value, tuple):
        yield from value


def _maker(call: Call) -> str:
    """Return who makes the descriptors of a transfer while the kernel runs."""
    mode = call.attributes.get("dge_mode", "unknown")
    if mode in ("hwdge", "swdge"):
        return "hardware" if mode == "hwdge" else "gpsimd"
    if mode == "none":
        return ""
    if any(tile.indirect for _, _, tile in call.tiles()):
        return "gpsimd"
    if any(tile.dynamic for _, _, tile in call.tiles()):
        return "hardware" if call.generation >= 3 else "gpsimd"
    return ""


def _row(template: Template) -> int:
    """Return how many bytes lie one after the other on every side of a transfer."""
    rows = [
        _run(form)
        for _, operand in template.operands
        for form in (operand if _is_list(operand) else (operand,))  # type: ignore[union-attr]
        if isinstance(form, TileForm) and math.prod(form.shape) > 1
    ]
    return min(rows, default=1)


def _is_list(form: object) -> bool:
    return type(form) is tuple


def _run(form: TileForm) -> int:
    """Return how many bytes of a tensor lie one after the other, at the least."""
    size = info(form.dtype).itemsize
    keep = 1 if form.pattern.partition else 0
    if form.indirect is not None and form.indirect.kind != "scalar":
        keep = max(keep, form.indirect.axis + 1)
    run = size
    for extent, stride in zip(
        reversed(form.shape[keep:]), reversed(form.strides[keep:]), strict=True
    ):
        if extent == 1:
            continue
        if stride != run:
            break
        run *= extent
    return run
