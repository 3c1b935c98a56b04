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
        excuse: why a difference is none of ours; the same words for the same reason, since they are
            counted. "" where nothing is different
    """

    kind: str = ""
    detail: str = ""
    compared: int = 0
    elements: int = 0
    excuse: str = ""


def errors(expected: Outcome, got: Outcome, *, same_class: bool) -> Verdict:
    """Compare two outcomes of which at least one is an error."""
    one = expected if got.error is None else got
    alone = expected.error is None or got.error is None
    if alone and one.stage == "backward" and "inplace" in str(one.error):
        # A kernel may keep another tensor for the backward pass than the CPU's does, and autograd
        # refuses what wrote to it in between.
        return Verdict(excuse="a kernel keeps another tensor for the backward pass")
    if expected.error is None:
        return Verdict(f"refused {got.kind}", f"{got.stage}: {got.error}")
    if got.error is None:
        return Verdict(
            "accepted", f"the CPU raises {expected.kind} {expected.stage}: {expected.error}"
        )
    text = str(got.error)
    internal = {"KeyError", "AssertionError", "SystemError"} - {expected.kind}
    if "defect of the compiler" in text or got.kind in internal:
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
    around: Outcome | None = None,
) -> Verdict:
    """Compare everything that a run gave.

    Args:
        expected: what is right
        got: what is compared with it
        noisy: outcomes under noise, which say how far values may differ
        strides: whether strides are compared
        same_class: whether errors have to be of one class
        around: the outcome that the noise was made around, if it isn't `expected`. Values that are
            as there are right, too
    """
    if expected.error is not None or got.error is not None:
        return errors(expected, got, same_class=same_class)
    total = Verdict()
    for name, theirs in expected.values.items():
        verdict = _values(name, theirs, got, around or expected, noisy, strides=strides)
        if verdict.kind and around is not None:
            # What a draw has made is another number with another judge, and right with the first.
            first = around.values.get(name)
            verdict = _values(name, first, got, around, noisy, strides=strides)
        if verdict.kind:
            return verdict
        total.compared += verdict.compared
        total.elements += verdict.elements
        total.excuse = total.excuse or verdict.excuse
    return _sharing(expected, around or expected, got) or total


def _values(
    name: str, theirs: torch.Tensor | None, got: Outcome, around: Outcome,
    noisy: Sequence[Outcome], *, strides: bool,
) -> Verdict:  # fmt: skip
    """Compare one of the values with what one of the judges has."""
    mine = got.values.get(name)  # no gradients where a result requires none
    if theirs is None or mine is None:
        if mine is theirs:
            return Verdict()
        # AOTAutograd gives zeros where eager autograd finds no path; both are right.
        if name.startswith("gradient") and theirs is None and mine is not None and not mine.any():
            return Verdict(excuse="zeros for the gradient of what has no path")
        return Verdict("gradient missing", f"{name}: {mine is None} for {theirs is None}")
    others = [o.values.get(name) for o in (around, *noisy)]
    return _tensors(name, theirs, mine, [o for o in others if o is not None], strides=strides)


def _sharing(expected: Outcome, around: Outcome, got: Outcome) -> Verdict | None:
    """What is different about which results show the same memory: not as either judge has it."""
    less = sorted((expected.shared & around.shared) - got.shared)
    more = sorted(got.shared - (expected.shared | around.shared))
    if not less and not more:
        return None
    return Verdict("sharing", f"not shared: {less}; shared, but not on the CPU: {more}")


def _differ(theirs: torch.Tensor, mine: torch.Tensor) -> bool:
    differ = _bits(theirs) != _bits(mine)
    # Every NaN is one.
    if theirs.dtype.is_floating_point:
        differ &= ~(theirs.isnan() & mine.isnan()).reshape(-1, 1)
    elif theirs.dtype.is_complex:
        both = torch.view_as_real(theirs).isnan() & torch.view_as_real(mine).isnan()
        differ = differ.view(-1, 2, theirs.itemsize // 2) & ~both.reshape(-1, 2, 1)
    return bool(differ.any())


def same_bits(expected: Outcome, got: Outcome, *, gradients: bool = True) -> Verdict:
    """Compare two runs on the device that have to give the same bits.

    Args:
        expected: of one run.
        got: of the other one.
        gradients: whether these have to. Autograd has a thread for each kind of device, and adds a
            gradient up in the order in which its parts are ready: of a program on two devices that
            differs.
    """
    if (expected.error is None) is not (got.error is None):
        return Verdict("another end", f"{got.stage}: {got.error!r} for {expected.error!r}")
    if expected.error is not None:
        return Verdict()
    total = Verdict()
    for name, theirs in expected.values.items():
        mine = got.values.get(name)
        if theirs is None or mine is None:
            if mine is not theirs:
                return Verdict("gradient missing", f"{name}: {mine is None} for {theirs is None}")
            continue
        if name.startswith("gradient") and not gradients:
            continue
        facts = [(x.dtype, tuple(x.shape), getattr(x, "layout_of", ())) for x in (theirs, mine)]
        if facts[0] != facts[1]:
            return Verdict("another tensor", f"{name}: {facts[1]} for {facts[0]}")
        if _differ(theirs, mine):
            return Verdict(
                "bits", f"{name} {tuple(theirs.shape)} {theirs.dtype}: {mine} for {theirs}"
            )
        total.compared += theirs.numel()
        total.elements += theirs.numel()
    return _sharing(expected, expected, got) or total


def facts(theirs: Sequence[Outcome], got: Outcome) -> Verdict:
    """Compare types, strides and the shapes that do not depend on what is drawn, but no values.

    Args:
        theirs: runs of the CPU with several seeds
        got: the device's
    """
    for name, first in theirs[0].values.items():
        mine = got.values.get(name)
        if first is None or mine is None:
            if mine is not first and (mine is None or bool(mine.any())):
                return Verdict("gradient missing", f"{name}: {mine is None} for {first is None}")
            continue
        others = [o.values.get(name) for o in theirs]
        if any(o is None or o.shape != first.shape for o in others):
            return Verdict(excuse="a shape depends on what is drawn")
        verdict = _tensors(name, first, mine, [first], strides=True)
        if verdict.kind:
            return verdict
    return Verdict()


def _bits(x: torch.Tensor) -> torch.Tensor:
    """The bytes of every element, a row for each."""
    return x.contiguous().view(-1).view(torch.uint8).view(-1, x.itemsize)


_FLOATS = {
    torch.int16: (torch.float16, torch.bfloat16),
    torch.int32: (torch.float32,),
    torch.int64: (torch.float64,),
}


def _nan_bits(x: torch.Tensor) -> torch.Tensor:
    """Where integers are what `view` shows of a NaN, of which nobody promises the sign."""
    found = torch.zeros(x.shape, dtype=torch.bool)
    for dtype in _FLOATS.get(x.dtype, ()):
        bits = torch.tensor(torch.nan, dtype=dtype).view(x.dtype).item()
        found |= (x == bits) | (x == bits + torch.iinfo(x.dtype).min)
    return found


def _tensors(
    name: str,
    expected: torch.Tensor,
    got: torch.Tensor,
    others: Sequence[torch.Tensor],
    *,
    strides: bool,
) -> Verdict:
    """Compare a value; the first of `others` is what the rest of them is noise around."""
    if got.dtype != expected.dtype:
        return Verdict("dtype", f"{name}: {got.dtype}, the CPU has {expected.dtype}")
    if any(o.shape != expected.shape or o.dtype != expected.dtype for o in others):
        return Verdict(excuse="a shape depends on data that roundings change")
    if got.shape != expected.shape:
        return Verdict("shape", f"{name}: {tuple(got.shape)}, the CPU has {tuple(expected.shape)}")
    mine, theirs = getattr(got, "layout_of", ()), getattr(expected, "layout_of", ())
    if strides and mine != theirs and expected.numel():
        return Verdict("strides", f"{name} {tuple(got.shape)}: {mine}, the CPU has {theirs}")
    bound, compared = tolerance(others[0] if others else expected, others[1:])
    count = Verdict(compared=int(compared.sum()), elements=expected.numel())
    if expected.numel() and not count.compared:
        count.excuse = "no element keeps its value under noise"
    if expected.dtype.is_floating_point or expected.dtype.is_complex:
        wide = torch.complex128 if expected.dtype.is_complex else torch.float64
        a, b = got.to(wide), expected.to(wide)
        same_class = class_of(a) == class_of(b)
        far = (
            torch.where(a.isfinite() & b.isfinite(), (a - b).abs() > bound, ~same_class) & compared
        )
    else:
        far = (got != expected) & compared & ~(_nan_bits(got) & _nan_bits(expected))
    if not bool(far.any()):
        return count
    where = tuple(int(i) for i in far.nonzero()[0])
    limit = float(bound[where]) if where or bound.ndim == 0 else 0.0
    return Verdict("values", (
        f"{name} {tuple(expected.shape)} {expected.dtype}: {int(far.sum())} of {far.numel()} differ, first at "
        f"{where}: {got[where].item()} and the CPU has {expected[where].item()}, bound {limit:.3g}"
    ))  # fmt: skip
