"""Running an instruction on what a mask leaves of its tiles.

The mask of an instruction is a mask of one tile, the domain. Every operand either is such a tile,
or has one value for each of its partitions, or does not take part in masking. Where the mask cuts a
box, the instruction runs on the boxes; otherwise it runs on the smallest box around the elements
and its result counts only where the mask holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from nki.access import unwritten
from nki.errors import NkiError
from nki.first_generation.boxes import Box, TileRegion, boxes_of, region_of_mask, whole_box
from nki.first_generation.state import current, issue, new_tile
from nki.first_generation.tensors import Result, Tensor
from nki.first_generation.writes import aligned, copy, fill, in_sbuf, legal, merge, take, within
from nki.isa.alu import op_name
from nki.isa.spec import REQUIRED, Instruction, Kind, Role
from nki.isa.table import TABLE
from nki.memory import MemoryRegion, region_of
from nki.tensor import NkiTensor

__all__ = ["LANES", "TILE", "WHOLE", "Operand", "compute", "compute_into", "tile_of"]

TILE = "tile"
LANES = "lanes"
WHOLE = "whole"

# How a mask cuts an operand: by name, or as the box of the operand for a box of the domain.
Follows = str | Callable[[Box], Box]


class Operand(NamedTuple):
    """An operand and how a mask cuts it.

    Attributes:
        value: a tile, a number or None.
        follows: TILE, LANES or WHOLE, or a function of the domain's box.
    """

    value: Any
    follows: Follows = TILE


def as_tensor(value: Any, what: str) -> Tensor:
    """Return a tile or a tensor.

    Raises:
        NkiError: it is none (NKI266).
    """
    if isinstance(value, Tensor):
        return value
    raise NkiError(
        "NKI266",
        f"{what} is a {type(value).__name__}",
        "give a tile: what nl.load or an instruction returns, or a part of a tensor",
    )


def tile_of(value: Any, what: str, mask: Any = None) -> NkiTensor:
    """Return the tensor behind a tile, which may leave its tensor where a mask leaves it out.

    Raises:
        NkiError: it is none (NKI266).
    """
    return within(as_tensor(value, what), mask)


def _cut(value: Any, follows: Follows, box: Box, domain: tuple[int, ...]) -> Any:
    """Return the part of an operand that belongs to a box of the domain."""
    if not isinstance(value, NkiTensor) or follows == WHOLE or box == whole_box(domain):
        return value
    if callable(follows):
        return take(value, follows(box))
    if follows == LANES:
        return value[slice(*box[0])]
    return take(value if value.shape == domain else value.reshape(domain), box)


def _aligned(value: Any, original: Any) -> Any:
    """Move a part that a mask has cut out to where engines can address it."""
    return value if value is original or not isinstance(value, NkiTensor) else aligned(value)


def _defined(value: Any, follows: Follows, region: TileRegion, domain: tuple[int, ...]) -> Any:
    """Return an operand of an instruction that runs on more than its mask leaves.

    Of a tile that is written in part, what the mask leaves is copied to one that is defined
    everywhere: nobody is to be told of elements that take no part.
    """
    if follows != TILE or not isinstance(value, NkiTensor) or value.pattern.indirect is not None:
        return value
    if unwritten(value) is None:
        return value
    source = value if value.shape == domain else value.reshape(domain)
    pieces = list(boxes_of(region))
    if value.buffer is MemoryRegion.psum and not all(legal(take(source, p)) for p in pieces):
        return value  # no engine reads these rows alone
    made = new_tile(domain, value.dtype)
    fill(made, 0)
    for piece in pieces:
        copy(take(made, piece), take(source, piece))
    return made


def _region_after(region: TileRegion, follows: Follows, shape: tuple[int, ...]) -> TileRegion:
    if follows == TILE or region.box is None:
        return region
    if callable(follows):
        return TileRegion(follows(region.box))
    return TileRegion(
        (region.box[0], *whole_box(shape)[1:]) if follows == LANES else whole_box(shape)
    )


def _resolved(
    row: Instruction,
    operands: Mapping[str, Operand],
    attributes: Mapping[str, Any],
    mask: Any,
    domain: tuple[int, ...],
) -> dict[str, Operand]:
    """Return tiles as tensors; None is left out unless the instruction asks for it.

    What is in a memory from which the engine does not read is copied to SBUF, as the compiler of
    this generation does; and of several tiles in PSUM all but the first.
    """
    known = {p.name: p for p in row.operands}
    found: dict[str, Operand] = {}
    in_psum, gpsimd = False, _on_gpsimd(row.name, attributes)
    for name, (value, follows) in operands.items():
        declared = known[name]
        if value is None and declared.default is not REQUIRED:
            continue
        tensor = within(value, mask, domain) if isinstance(value, Tensor) else value
        if isinstance(tensor, NkiTensor) and declared.role is Role.READ:
            psum = tensor.buffer is MemoryRegion.psum
            again = psum and declared.kind is Kind.TILE and in_psum
            if again or (psum and gpsimd) or tensor.buffer.name not in declared.regions:
                tensor = in_sbuf(tensor)
            in_psum |= psum and declared.kind is Kind.TILE
        found[name] = Operand(tensor, follows)
    return found


# Operators that the GpSimd engine alone has.
_GPSIMD_OPS = {"tensor_tensor": {"power"}, "tensor_scalar": {"power", "rsqrt"}}


def _on_gpsimd(name: str, attributes: Mapping[str, Any]) -> bool:
    """Return whether an instruction runs on the engine that does not reach PSUM."""
    if getattr(attributes.get("engine"), "name", "") == "gpsimd":
        return True
    ops = [attributes.get(key) for key in ("op", "op0", "op1")] if name in _GPSIMD_OPS else []
    named = {op_name(op) for op in ops if isinstance(op, str) or hasattr(op, "__name__")}
    return not named.isdisjoint(_GPSIMD_OPS.get(name, ()))


def _refuse_general(name: str, domain: tuple[int, ...]) -> NoReturn:
    raise NkiError(
        "NKI262",
        f"{name} was given a mask that cuts no box out of its tile of shape {domain}",
        "compare each dimension with a bound; other masks fit instructions that write nothing but "
        "a tile of the shape that they read, and nisa.tensor_reduce",
    )


def _writes_more(
    row: Instruction, operands: Mapping[str, Operand], known: Mapping[str, Any]
) -> bool:
    """Return whether an instruction has an effect that a mask of its result does not reach."""
    more = any(p.role is not Role.READ and p.name in operands for p in row.operands)
    command = known.get("reduce_cmd")
    return more or (command is not None and getattr(command, "name", command) != "idle")


def _issue_cut(
    name: str,
    out: tuple[str, NkiTensor, Follows],
    operands: Mapping[str, Operand],
    region: TileRegion,
    domain: tuple[int, ...],
    attributes: Mapping[str, Any],
) -> None:
    """Issue an instruction on the box of a region."""
    box = region.box
    assert box is not None
    arguments = {}
    for key, (value, follows) in operands.items():
        part = _cut(value, follows, box, domain)
        if isinstance(part, NkiTensor) and part.buffer is MemoryRegion.psum and not legal(part):
            # No engine reads these rows of PSUM alone: all of them go to SBUF first.
            part = _cut(in_sbuf(value), follows, box, domain)
        arguments[key] = _aligned(part, value)
    key, dst, follows = out
    part = _cut(dst, follows, box, domain)
    if part is dst or legal(part):
        issue(name, **{key: part}, **arguments, **attributes)
        return
    between = new_tile(part.shape, part.dtype)
    if next(p.role for p in TABLE[name].operands if p.name == key) is Role.READWRITE:
        copy(between, part)
    issue(name, **{key: between}, **arguments, **attributes)
    copy(part, between)


def compute(
    name: str,
    shape: tuple[int, ...],
    kind: str,
    operands: Mapping[str, Operand],
    *,
    attributes: Mapping[str, Any] | None = None,
    domain: tuple[int, ...] | None = None,
    follows: Follows = TILE,
    mask: Any = None,
    buffer: Any = None,
    out: str = "dst",
    regions: frozenset[str] | None = None,
) -> Result:
    """Return the tile that an instruction computes; the instruction waits.

    Args:
        name: of the instruction in `nki.isa`.
        shape: of the result.
        kind: NKI's name of its type.
        operands: tiles and numbers by name; None is left out.
        attributes: everything else.
        domain: shape of the tile that the mask is for, by default that of the result.
        follows: how the mask cuts the result.
        mask: where the instruction takes part, None everywhere.
        buffer: the result's memory, by default SBUF.
        out: name of the result's operand.
        regions: memories that the engine writes to, by default those of the instruction.

    Raises:
        NkiError: the mask does not fit (NKI262), or the instruction cannot keep it (NKI262).
    """
    domain = shape if domain is None else domain
    region = region_of_mask(mask, domain)
    known = dict(attributes or {})
    resolved = _resolved(TABLE[name], operands, known, mask, domain)
    done = region
    row = TABLE[name]
    if region.inside is not None:
        if follows != TILE or _writes_more(row, resolved, known):
            _refuse_general(name, domain)
        done = TileRegion(region.box)
        current().flush()
        resolved = {
            key: Operand(_defined(given.value, given.follows, region, domain), given.follows)
            for key, given in resolved.items()
        }
    if regions is None:
        regions = next(operand.regions for operand in row.operands if operand.name == out)
    reads = [given.value for given in resolved.values() if isinstance(given.value, NkiTensor)]

    def write(dst: NkiTensor) -> None:
        _issue_cut(name, (out, dst, follows), resolved, done, domain, known)

    return Result(
        shape,
        kind,
        MemoryRegion.sbuf if buffer is None else region_of(buffer),
        write,
        reads,
        _region_after(region, follows, shape),
        regions - {"psum"} if _on_gpsimd(name, known) else regions,
    )


def compute_into(
    name: str,
    dst: Tensor,
    operands: Mapping[str, Operand],
    *,
    attributes: Mapping[str, Any] | None = None,
    mask: Any = None,
    keeps: bool = False,
) -> None:
    """Issue an instruction that writes to a tile that the kernel names.

    Args:
        name: of the instruction.
        dst: where it writes, the domain of the mask.
        operands: tiles and numbers by name.
        attributes: everything else.
        mask: where the instruction takes part.
        keeps: it reads the destination too.
    """
    target = tile_of(dst, f"{name} dst")
    domain = target.shape
    region = region_of_mask(mask, domain)
    known = dict(attributes or {})
    resolved = _resolved(TABLE[name], operands, known, mask, domain)
    if region.box is None:
        return
    if region.inside is None:
        _issue_cut(name, ("dst", target, TILE), resolved, region, domain, known)
        return
    if _writes_more(TABLE[name], {k: v for k, v in resolved.items() if k != "dst"}, known):
        _refuse_general(name, domain)
    between = new_tile(domain, target.dtype)
    if keeps:
        copy(take(between, region.box), take(_defined(target, TILE, region, domain), region.box))
    resolved = {
        key: Operand(_defined(given.value, given.follows, region, domain), given.follows)
        for key, given in resolved.items()
    }
    _issue_cut(name, ("dst", between, TILE), resolved, TileRegion(region.box), domain, known)
    merge(target, between, region)
