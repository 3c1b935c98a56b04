"""`neuronx-cc list-operators`: XLA's names of what can be compiled."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from neuronxcc.frontends.hlo.importer import HANDLERS

#: Opcodes whose builder in XLA has another name than the opcode's words.
_BUILDERS: dict[str, tuple[str, ...]] = {
    "divide": ("Div",),
    "multiply": ("Mul",),
    "subtract": ("Sub",),
    "negate": ("Neg",),
    "maximum": ("Max",),
    "minimum": ("Min",),
    "power": ("Pow",),
    "remainder": ("Rem",),
    "exponential": ("Exp",),
    "exponential-minus-one": ("Expm1",),
    "log-plus-one": ("Log1p",),
    "sine": ("Sin",),
    "cosine": ("Cos",),
    "reverse": ("Rev",),
    "concatenate": ("ConcatInDim", "Concatenate"),
    "convert": ("ConvertElementType",),
    "bitcast-convert": ("BitcastConvertType",),
    "broadcast": ("Broadcast", "BroadcastInDim"),
    "constant": ("Constant", "ConstantLiteral"),
    "custom-call": ("Customcall",),
    "all-gather": ("Allgather",),
    "all-reduce": ("Allreduce",),
    "dot": ("Dot", "DotGeneral"),
    "compare": ("Compare", "Eq", "Ge", "Gt", "Le", "Lt", "Ne"),
    "and": ("And", "LogicalAnd"),
    "or": ("Or", "LogicalOr"),
    "xor": ("Xor", "LogicalXor"),
    "not": ("Not", "LogicalNot"),
    "batch-norm-training": ("Batchnorm",),
    "batch-norm-inference": ("Batchnorminference",),
    "batch-norm-grad": ("Batchnormgrad",),
    "rng": ("RngUniform", "RngNormal"),
    "count-leading-zeros": ("Clz",),
    "popcnt": ("PopulationCount",),
    "round-nearest-afz": ("Round",),
    "round-nearest-even": ("RoundNearestEven",),
    "convolution": ("Conv", "ConvGeneralDilated"),
    "reduce-window": ("ReduceWindow",),
    "topk": ("TopK",),
    "opt-barrier": ("OptimizationBarrier",),
    "mulhi": ("MulHi",),
}
#: Opcodes that only modules after XLA's own passes have.
_NOT_BUILT = frozenset({"bitcast", "fusion", "domain", "add-dependency", "async-update"})
_NOT_BUILT_ENDS = ("-start", "-done")


def operator_names() -> list[str]:
    """Names of XlaBuilder's functions whose instructions can be compiled, sorted."""
    names: set[str] = set()
    for opcode in HANDLERS.keys() - _NOT_BUILT:
        if opcode.endswith(_NOT_BUILT_ENDS):
            continue
        own = "".join(word.capitalize() for word in opcode.split("-"))
        names.update(_BUILDERS.get(opcode, (own,)))
    return sorted(names)


def list_operators(words: Sequence[str]) -> int:
    """Run the subcommand; returns the exit code."""
    if list(words) not in (["--framework", "XLA"], ["--framework=XLA"], []):
        print(  # noqa: T201 - a command prints
            f"[ERROR] {' '.join(words)} is not valid; allowed: --framework XLA", file=sys.stderr
        )
        return 1
    print("\n".join(operator_names()))  # noqa: T201
    return 0
