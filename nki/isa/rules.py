"""Rules that several instructions share, as objects or as functions that make them.

What an engine can address at all, strides and first partitions, is in `nki.access_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from nki.isa.spec import GENERATIONS, PMAX, Call, Fields, Kind, Role, Rule, Tile

__all__ = [
    "COMMON",
    "dst_free",
    "load_needs_init",
    "not_all_psum",
    "requires",
    "same_dtype",
    "same_free",
    "same_partitions",
    "vector_dtype",
]


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


def _too_many_partitions(call: Call) -> Fields | None:
    # Inputs first, as the documented simulator reports them.
    for name, _, tile in sorted(call.tiles(), key=lambda item: item[1].role is Role.WRITE):
        if tile.on_chip and tile.partitions > PMAX:
            return {"operand": name, "got": tile.partitions}
    return None


def _wrong_dtype(call: Call) -> Fields | None:
    for name, operand, tile in call.tiles():
        if operand.dtypes is not None and tile.dtype not in operand.dtypes:
            return {"operand": name, "got": tile.dtype, "allowed": _listed(operand.dtypes)}
    return None


def _wrong_region(call: Call) -> Fields | None:
    for name, operand, tile in call.tiles():
        if tile.region not in operand.regions:
            return {"operand": name, "got": tile.region, "allowed": _listed(operand.regions)}
    return None


def _gpsimd_psum(call: Call) -> Fields | None:
    if call.engine == "gpsimd":
        for name, _, tile in call.tiles():
            if tile.region == "psum":
                return {"operand": name}
    return None


def _not_a_vector(call: Call) -> Fields | None:
    for name, operand, tile in call.tiles():
        vector = operand.kind in (Kind.VECTOR, Kind.SCALAR_OR_VECTOR)
        if vector and tile.free != 1:
            return {"operand": name, "got": tile.shape}
    return None


def legal_starts(partitions: int) -> tuple[int, ...]:
    """Return where an access of so many partitions may start."""
    if partitions > PMAX // 2:
        return (0,)
    return (0, 64) if partitions > PMAX // 4 else (0, 32, 64, 96)


def _indirect(call: Call) -> Fields | None:
    for name, operand, tile in call.tiles():
        if tile.indirect and not (operand.indirect or call.engine == "dma"):
            return {"operand": name}
    return None


def _indirect_generation(call: Call) -> Fields | None:
    for name, operand, tile in call.tiles():
        if tile.indirect and operand.indirect and call.engine != "dma":
            return {"operand": name}
    return None


def _indirect_scalar_scatter(call: Call) -> Fields | None:
    if call.engine == "scalar":
        for name, operand, tile in call.tiles():
            if tile.indirect and operand.role is Role.WRITE and tile.region == "psum":
                return {"operand": name}
    return None


def _index_quadrant(call: Call) -> Fields | None:
    if call.engine == "dma":
        return None
    for name, _, tile in call.tiles():
        index = tile.index
        if index is not None and index.partition is not None and index.partition % 32:
            return {"operand": name, "got": index.partition}
    return None


COMMON: tuple[Rule, ...] = (
    Rule(
        "NKI103",
        "{instruction} {operand} partition dimension {got} exceeds maximum 128",
        "split the tensor into tiles of at most nl.tile_size.pmax partitions",
        _too_many_partitions,
    ),
    Rule(
        "NKI109",
        "{instruction} {operand} is in {got}, allowed: {allowed}",
        "copy it there first: nisa.dma_copy reaches hbm and sbuf, nisa.tensor_copy sbuf and psum",
        _wrong_region,
    ),
    Rule(
        "NKI107",
        "{instruction} {operand} has data type {got}, allowed: {allowed}",
        "convert it with nisa.tensor_copy, or reinterpret its bits with .view(dtype)",
        _wrong_dtype,
    ),
    Rule(
        "NKI111",
        "{instruction} {operand} is in psum, which the gpsimd engine cannot access",
        "copy it to sbuf with nisa.tensor_copy, or use another engine",
        _gpsimd_psum,
    ),
    Rule(
        "NKI106",
        "{instruction} {operand} must have one element per partition, got shape {got}",
        "pass a number or a tensor of shape (partitions, 1)",
        _not_a_vector,
    ),
    Rule(
        "NKI119",
        "{instruction} {operand} does not support tensor indirection",
        "gather it into a tensor of its own with nisa.tensor_copy or nisa.nc_n_gather",
        _indirect,
    ),
    Rule(
        "NKI119",
        "{instruction} {operand} uses tensor indirection, which {nc} does not have",
        "it needs NeuronCore-v4 (trn3); use nisa.nc_n_gather or an indirect nisa.dma_copy",
        _indirect_generation,
        generations=(2, 3),
    ),
    Rule(
        "NKI119",
        "{instruction} {operand} is scattered in psum, which the scalar engine cannot do",
        "scatter to sbuf, or use the vector engine",
        _indirect_scalar_scatter,
        generations=(4,),
    ),
    Rule(
        "NKI117",
        "{instruction} {operand} has its index tensor at partition {got}",
        "an index tensor starts at a multiple of 32",
        _index_quadrant,
        generations=(4,),
    ),
)


def same_partitions(*names: str, what: str = "") -> Rule:
    """Make the rule that operands, as far as they are tensors, have as many partitions."""

    def broken(call: Call) -> Fields | None:
        first, *others = _present(call, names)
        for name, tile in others:
            if tile.partitions != first[1].partitions:
                return {
                    "a": first[0],
                    "b": name,
                    "x": first[1].partitions,
                    "y": tile.partitions,
                }
        return None

    return Rule(
        "NKI105",
        "{instruction} {a} has {x} partitions and {b} has {y}",
        what or "give both the same partition dimension",
        broken,
    )


def _present(call: Call, names: tuple[str, ...]) -> list[tuple[str, Tile]]:
    found = [(name, call.operands.get(name)) for name in names]
    return [(name, value) for name, value in found if isinstance(value, Tile)]


def same_free(*names: str) -> Rule:
    """Make the rule that operands, as far as they are tensors, have as many elements a partition.

    Ranks may differ: elements correspond in row-major order.
    """

    def broken(call: Call) -> Fields | None:
        first, *others = _present(call, names)
        for name, tile in others:
            if tile.free != first[1].free:
                return {"a": first[0], "b": name, "x": first[1].shape, "y": tile.shape}
        return None

    return Rule(
        "NKI106",
        "{instruction} {a} of shape {x} and {b} of shape {y} "
        "differ in the number of elements per partition",
        "slice or broadcast one of them; a tensor of one element per partition can be an operand "
        "of nisa.tensor_scalar",
        broken,
    )


def same_dtype(*names: str, generations: tuple[int, ...] = GENERATIONS) -> Rule:
    """Make the rule that operands, as far as they are tensors, have the same data type."""

    def broken(call: Call) -> Fields | None:
        first, *others = _present(call, names)
        for name, tile in others:
            if tile.dtype != first[1].dtype:
                return {"a": first[0], "b": name, "x": first[1].dtype, "y": tile.dtype}
        return None

    return Rule(
        "NKI108",
        "{instruction} {a} is {x} and {b} is {y}",
        "give both the same data type: this instruction does not convert",
        broken,
        generations,
    )


def not_all_psum(*names: str) -> Rule:
    """Make the rule that operands are not all in PSUM."""

    def broken(call: Call) -> Fields | None:
        tiles = [call.get(name) for name in names]
        if all(tile is not None and tile.region == "psum" for tile in tiles):
            return {"names": " and ".join(names)}
        return None

    return Rule(
        "NKI110",
        "{instruction} {names} are both in psum",
        "copy one of them to sbuf with nisa.tensor_copy",
        broken,
    )


def vector_dtype(*names: str, code: str = "NKI107") -> Rule:
    """Make the rule that operands, as far as they are tensors, are float32."""

    def broken(call: Call) -> Fields | None:
        for name, tile in _present(call, names):
            if tile.dtype != "float32":
                return {"operand": name, "got": tile.dtype}
        return None

    return Rule(
        code,
        "{instruction} {operand} must be float32, got {got}",
        "convert it with nisa.tensor_copy",
        broken,
    )


def dst_free(name: str, count: int) -> Rule:
    """Make the rule that a tensor has an exact number of elements per partition."""

    def broken(call: Call) -> Fields | None:
        tile = call.get(name)
        return {"got": tile.free} if tile is not None and tile.free != count else None

    return Rule(
        "NKI128",
        f"{{instruction}} {name} must have {count} elements per partition, got {{got}}",
        f"allocate it with shape (partitions, {count})",
        broken,
    )


def requires(
    code: str,
    text: str,
    remedy: str,
    holds: Callable[[Call], bool],
    generations: tuple[int, ...] = GENERATIONS,
    **fields: Callable[[Call], Any],
) -> Rule:
    """Make a rule from a condition that must hold, and from functions for its fields."""

    def broken(call: Call) -> Fields | None:
        if holds(call):
            return None
        return {name: function(call) for name, function in fields.items()}

    return Rule(code, text, remedy, broken, generations)


def load_needs_init(init: str) -> tuple[Rule, Rule]:
    """Make the rules that tie an initial accumulator value to ``reduce_cmd.load_reduce``."""

    def missing(call: Call) -> Fields | None:
        loads = call.attributes["reduce_cmd"] == "load_reduce"
        return {} if loads and call.operands[init] is None else None

    def useless(call: Call) -> Fields | None:
        loads = call.attributes["reduce_cmd"] == "load_reduce"
        return {} if not loads and call.operands[init] not in (None, 0) else None

    return (
        Rule(
            "NKI127",
            f"{{instruction}} with reduce_cmd.load_reduce needs {init}",
            f"pass {init}, or use reduce_cmd.reset_reduce",
            missing,
        ),
        Rule(
            "NKI127",
            f"{{instruction}} {init} is only read with reduce_cmd.load_reduce",
            f"leave {init} out, or use reduce_cmd.load_reduce",
            useless,
        ),
    )
