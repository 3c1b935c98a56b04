"""Whether an outcome on the device is the CPU's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tests.programs.noise import class_of, tolerance
from tests.programs.program import Outcome


@dataclass
class Verdict:
    """What is different (nothing: ""), and how much could be compared.

    Attributes:
        kind: a word or two, the same for the same kind of difference
        detail: for people
        compared: elements that were compared
        elements: elements there are
    """

    kind: str = ""
    detail: str = ""
    compared: int = 0
    elements: int = 0


def errors(expected: Outcome, got: Outcome, *, same_class: bool) -> Verdict:
    """Compare two outcomes of which at least one is an error."""
    if expected.error is None:
        if got.stage == "backward" and "inplace" in str(got.error):
            # A kernel may keep another tensor for the backward pass than the CPU's does, and autograd
            # refuses what wrote to it in between.
            return Verdict()
        return Verdict(f"refused {got.kind}", f"{got.stage}: {got.error}")
    if got.error is None:
        return Verdict(
            "accepted", f"the CPU raises {expected.kind} {expected.stage}: {expected.error}"
        )
    text = str(got.error)
    if "defect of the compiler" in text or got.kind in {
        "KeyError",
        "AssertionError",
        "SystemError",
    }:
        return Verdict(f"internal {got.kind}", f"{text}\n--- the CPU says: {expected.error}")
    if same_class and got.kind != expected.kind:
        return Verdict(
            "other error", f"{got.kind}: {text}\n--- the CPU's {expected.kind}: {expected.error}"
        )
    return Verdict()


def outcomes(
    expected: Outcome,
    got: Outcome,
    noisy: Sequence[Outcome],
    *,
    strides: bool = True,
    same_class: bool = False,
) -> Verdict:
    """Compare everything that a run gave."""
    if expected.error is not None or got.error is not None:
        return errors(expected, got, same_class=same_class)
    total = Verdict()
    for name, theirs in expected.values.items():
        mine = got.values.get(name)  # no gradients where a result requires none
        if theirs is None or mine is None:
            if (mine is None) is not (theirs is None):
                # AOTAutograd gives zeros where eager autograd finds no path; both are right.
                if (
                    name.startswith("gradient")
                    and theirs is None
                    and mine is not None
                    and not mine.any()
                ):
                    continue
                return Verdict("gradient missing", f"{name}: {mine is None} for {theirs is None}")
            continue
        others = [o.values[name] for o in noisy]
        verdict = _tensors(
            name, theirs, mine, [o for o in others if o is not None], strides=strides
        )
        if verdict.kind:
            return verdict
        total.compared += verdict.compared
        total.elements += verdict.elements
    return total


def _tensors(
    name: str,
    expected: torch.Tensor,
    got: torch.Tensor,
    others: Sequence[torch.Tensor],
    *,
    strides: bool,
) -> Verdict:
    if got.dtype != expected.dtype:
        return Verdict("dtype", f"{name}: {got.dtype}, the CPU has {expected.dtype}")
    if got.shape != expected.shape:
        return Verdict("shape", f"{name}: {tuple(got.shape)}, the CPU has {tuple(expected.shape)}")
    mine, theirs = getattr(got, "layout_of", ()), getattr(expected, "layout_of", ())
    if strides and mine != theirs and expected.numel():
        return Verdict("strides", f"{name} {tuple(got.shape)}: {mine}, the CPU has {theirs}")
    if any(o.shape != expected.shape or o.dtype != expected.dtype for o in others):
        return Verdict()  # a shape that depends on the data, near a limit
    bound, compared = tolerance(expected, others)
    count = Verdict(compared=int(compared.sum()), elements=expected.numel())
    if expected.dtype.is_floating_point or expected.dtype.is_complex:
        wide = torch.complex128 if expected.dtype.is_complex else torch.float64
        a, b = got.to(wide), expected.to(wide)
        same_class = class_of(a) == class_of(b)
        far = (
            torch.where(a.isfinite() & b.isfinite(), (a - b).abs() > bound, ~same_class) & compared
        )
    else:
        far = (got != expected) & compared
    if not bool(far.any()):
        return count
    where = tuple(int(i) for i in far.nonzero()[0])
    limit = float(bound[where]) if where or bound.ndim == 0 else 0.0
    return Verdict("values", (
        f"{name} {tuple(expected.shape)} {expected.dtype}: {int(far.sum())} of {far.numel()} differ, first at "
        f"{where}: {got[where].item()} and the CPU has {expected[where].item()}, bound {limit:.3g}"
    ))  # fmt: skip
