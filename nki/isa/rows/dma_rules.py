"""The rules of the DMA engines' instructions."""

from __future__ import annotations

from typing import Any

from nki.isa import convert
from nki.isa.rules import requires
from nki.isa.spec import HBM, Call, Rule, Tile

__all__ = [
    "AXES",
    "HWDGE_V2",
    "PRIORITY",
    "SKIP",
    "TRIGGER",
    "WRITTEN_BEFORE",
    "direct",
    "gather_transpose",
    "gathers",
    "hardware_transpose",
    "hwdge_gather",
    "hwdge_types",
    "mode",
    "modifies",
    "permutation",
    "scales",
    "shape_after",
    "sources",
    "static",
    "transpose_mode",
]

AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def permutation(call: Call) -> tuple[int, ...]:
    """Return the axes in the order in which the destination has them."""
    given = call.attributes["axes"]
    return tuple(given) if given is not None else AXES.get(len(call.tile("src").shape), ())


def mode(call: Call) -> str:
    """Return how the descriptors are asked to be made."""
    return str(call.attributes["dge_mode"])


PRIORITY = requires(
    "NKI116",
    "{instruction} priority does not exist on {nc}",
    "leave it out: quality of service came with NeuronCore-v4",
    lambda call: call.attributes["priority"] is None,
    generations=(2, 3),
)
HWDGE_V2 = requires(
    "NKI134",
    "{instruction} dge_mode.hwdge does not exist on NeuronCore-v2",
    "use dge_mode.unknown, or build for trn2 or trn3",
    lambda call: mode(call) != "hwdge",
    generations=(2,),
)
TRIGGER: Rule = requires(
    "NKI113",
    "dma_copy engine {engine} needs dge_mode.hwdge and must be sync or scalar",
    "leave engine open, or pass dge_mode=nisa.dge_mode.hwdge",
    lambda c: (
        c.attributes["engine"] == "unknown"
        or (mode(c) == "hwdge" and c.attributes["engine"] in ("sync", "scalar"))
    ),
    engine=lambda call: call.attributes["engine"],
)


def hwdge_types(call: Call) -> bool:
    """Return whether the descriptor hardware, which moves bytes, is asked to convert nothing."""
    return mode(call) != "hwdge" or call.tile("dst").dtype == call.tile("src").dtype


def hwdge_gather(call: Call) -> bool:
    """Return whether rows are gathered by software descriptors only."""
    return mode(call) not in ("hwdge", "none") or not any(t.indirect for _, _, t in call.tiles())


def static(call: Call) -> bool:
    """Return whether descriptors that are written beforehand need no dynamic address."""
    return mode(call) != "none" or not any(t.dynamic for _, _, t in call.tiles())


def _skips_indirect(call: Call) -> bool:
    skips = call.attributes["oob_mode"] == "skip"
    return not skips or any(t.indirect or t.dynamic for _, _, t in call.tiles())


SKIP = requires(
    "NKI134",
    "{instruction} oob_mode.skip needs an operand with a dynamic address",
    "static accesses are checked when the kernel is built: use oob_mode.error",
    _skips_indirect,
)


def shape_after(call: Call) -> tuple[int, ...]:
    """Return the shape that the destination must have."""
    shape = call.tile("src").shape
    return tuple(shape[axis] for axis in permutation(call))


def hardware_transpose(call: Call) -> str | None:
    """Return what keeps a transpose from the descriptor hardware."""
    src = call.tile("src")
    if src.info.itemsize != 2:
        return f"elements of {src.info.itemsize} bytes: they must have 2"
    if src.shape[-1] > 128:
        return f"a last dimension of {src.shape[-1]}: it must be at most 128"
    if len(src.shape) == 2:
        return None if src.shape[0] == 16 else f"a first dimension of {src.shape[0]}: it must be 16"
    if src.shape[0] not in (1, 2, 4, 8, 16):
        return f"a first dimension of {src.shape[0]}: it must be 1, 2, 4, 8 or 16"
    rows = src.shape[0] * src.shape[-2]
    return f"{rows} rows: they must be a multiple of 16" if rows % 16 else None


def gather_transpose(call: Call) -> str | None:
    """Return what keeps a gathering transpose from the software descriptors."""
    src = call.tile("src")
    index = src.index
    if src.region not in HBM:
        return f"src in {src.region}: it must be in HBM"
    if src.info.itemsize != 2:
        return f"elements of {src.info.itemsize} bytes: they must have 2"
    if src.shape[-1] > 128:
        return f"a last dimension of {src.shape[-1]}: it must be at most 128"
    if src.shape[0] % 16:
        return f"{src.shape[0]} gathered rows: they must be a multiple of 16"
    if len(src.shape) == 4 and 1 not in src.shape[1:3]:
        return f"shape {src.shape}: dimension 1 or 2 must be 1"
    return None if index is None else _gather_index(index, src.shape[0])


def _gather_index(index: Tile, rows: int) -> str | None:
    shape = index.shape
    if index.region != "sbuf" or index.dtype != "uint32" or len(shape) != 2:
        return f"indices {index.dtype} {shape} in {index.region}: uint32, 2-D, in sbuf is needed"
    if not 16 <= shape[0] <= 128 or shape[0] % 16:
        return f"indices of {shape[0]} partitions: 16 to 128 and a multiple of 16 is needed"
    if shape[1] > 1 and shape[0] != 128:
        return f"indices of shape {shape}: several columns need 128 partitions"
    if index.size < rows:
        return f"{index.size} indices for {rows} rows"
    return None


def direct(call: Call) -> bool:
    """Return whether the descriptor hardware, if asked for, can transpose."""
    src = call.tile("src")
    if src.indirect or mode(call) != "hwdge":
        return True
    return hardware_transpose(call) is None


def gathers(call: Call) -> bool:
    """Return whether a gathering transpose keeps its limits."""
    return not call.tile("src").indirect or gather_transpose(call) is None


def transpose_mode(call: Call) -> bool:
    """Return whether the mode fits the addresses."""
    indirect = call.tile("src").indirect
    return mode(call) in ("unknown", *(("swdge",) if indirect else ("hwdge", "none")))


WRITTEN_BEFORE = requires(
    "NKI134",
    "dma_transpose with dge_mode.none is not documented: transposes are made by descriptor engines",
    "use dge_mode.unknown or dge_mode.hwdge",
    lambda call: mode(call) != "none",
)


def sources(call: Call) -> tuple[Tile, ...]:
    """Return the tensors to add up."""
    given = call.operands["srcs"]
    assert isinstance(given, tuple)
    return given


def scales(given: Any) -> tuple[float, ...] | None:
    """Accept scales of 1.0, which is all that the hardware does."""
    if given is None:
        return None
    if not isinstance(given, (list, tuple)):
        raise ValueError(f"must be a list of numbers or None, got {given!r}")  # noqa: TRY004
    values = tuple(float(convert.number(scale)) for scale in given)
    if any(value != 1.0 for value in values):
        raise ValueError(
            f"must all be 1.0, got {list(values)}; scale with nisa.tensor_scalar before"
        )
    return values


def modifies(call: Call) -> bool:
    """Return whether a scatter or gather has the form that the hardware can modify in place."""
    indirect = any(tile.indirect for tile in sources(call)) or call.tile("dst").indirect
    return not indirect or (len(sources(call)) == 2 and call.attributes["unique_indices"])
