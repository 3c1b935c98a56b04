"""A model file in any form that the compiler reads, checked against the target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neuronxcc.frontends.hlo import HloError, Imported, import_hlo
from neuronxcc.frontends.stablehlo import is_stablehlo, to_hlo
from neuronxcc.ir.limits import limits
from neuronxcc.options import Options


@dataclass(frozen=True, slots=True)
class Model:
    """A model that a target takes.

    Attributes:
        imported: Its tensor IR.
        warnings: What the target computes with loss, as texts with codes.
    """

    imported: Imported
    warnings: tuple[str, ...]


def load_model(content: bytes, options: Options) -> Model:
    """Read a model and check that the target of the options takes it.

    Args:
        content: HLO protobuf, StableHLO text or bytecode.
        options: Of the compilation.

    Raises:
        HloError: It is none of these, damaged, or not supported on the target.
    """
    content = to_hlo(content) if is_stablehlo(content) else content
    imported = import_hlo(content, options.max_instructions)
    return Model(imported, tuple(_checked(imported, options)))


def _checked(imported: Imported, options: Options) -> Iterator[str]:
    """Texts of the lossy operators that the options allow.

    Raises:
        HloError: Something that the target doesn't have, or a loss that the options forbid.
    """
    for note, place in imported.notes:
        if note.needs and note.needs in options.target_spec.dtypes:
            continue
        told = HloError(note.code, note.text, note.remedy, place)
        if note.needs:
            raise told
        yield str(told)
    allowed, said = options.integer_downcasts, set()
    for node, gap in limits(imported.graph, options.target_spec, unsafe_fp8=options.unsafe_fp8):
        where = imported.where.get(node)
        error = HloError(gap.code, f"{gap.text} ({node.op.value})", gap.remedy, where)
        if gap.accept not in allowed:
            raise error
        text = str(error)
        if text not in said:
            said.add(text)
            yield text
