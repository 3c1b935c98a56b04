"""`_foreach_` operators wait for each other; nobody can tell, whatever is kept of their results."""

from __future__ import annotations

import weakref

import pytest
import torch

SIZES = [3, 5000, 70_001]


def inputs(device: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    drawn = [[torch.rand(n, generator=generator) + 0.5 for n in SIZES] for _ in range(2)]
    return tuple([x.to(device) for x in row] for row in drawn)  # type: ignore[return-value]


def steps(device: str, keep: str) -> list[torch.Tensor]:
    """Some steps of an optimizer; the temporary is dropped, kept, or kept weakly or in part."""
    p, v = inputs(device)
    roots = torch._foreach_sqrt(v)
    torch._foreach_add_(roots, 1e-8)
    torch._foreach_addcdiv_(p, v, roots, -0.1)
    kept = {"all": roots, "one": [roots[0]], "view": [roots[2][5:]]}.get(keep, [])
    reference = weakref.ref(roots[0]) if keep == "weakly" else None
    del roots
    if reference is not None:
        found = reference()
        kept = [] if found is None else [found]
    return [x.cpu() for x in (*p, *v, *kept)]


@pytest.mark.parametrize("keep", ["none", "all", "one", "view", "weakly"])
def test_what_is_kept_of_a_temporary_has_its_value(keep: str) -> None:
    # On the device a weak reference finds what is still waiting to be computed.
    ours, theirs = steps("neuron", keep), steps("cpu", {"weakly": "one"}.get(keep, keep))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    assert len(ours) == {"none": 6, "all": 9, "one": 7, "view": 7, "weakly": 7}[keep]


def test_a_temporary_that_nobody_keeps_is_never_written() -> None:
    """An optimizer that wrote its temporaries would move half as many bytes again."""
    size = 300_000
    v = [torch.full((size,), 2.0, device="neuron")]
    p = [torch.ones(size, device="neuron")]
    pattern = torch.full((size,), 7.0, device="neuron")
    address = pattern.data_ptr()
    del pattern
    roots = torch._foreach_sqrt(v)
    assert roots[0].data_ptr() == address
    torch._foreach_add_(p, roots)
    del roots
    torch.accelerator.synchronize()
    found = torch.empty(size, device="neuron")
    assert found.data_ptr() == address
    assert (found == 7).all()
    torch.testing.assert_close(p[0].cpu(), torch.full((size,), 1 + 2.0**0.5))


def test_deterministic_algorithms_join_no_operators() -> None:
    size = 300_000
    v = [torch.full((size,), 4.0, device="neuron")]
    pattern = torch.full((size,), 7.0, device="neuron")
    address = pattern.data_ptr()
    del pattern
    torch.use_deterministic_algorithms(mode=True)
    try:
        roots = torch._foreach_sqrt(v)
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert roots[0].data_ptr() == address
    del roots  # its memory keeps what was written
    found = torch.empty(size, device="neuron")
    assert found.data_ptr() == address
    assert (found == 2).all()
