"""Max pooling on the device's own kernel: values, indices, ties and NaN exactly as on the CPU."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional


@settings(max_examples=150, deadline=None)
@given(
    planes=st.integers(1, 3),
    size=st.tuples(st.integers(1, 24), st.integers(1, 24)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    ceil_mode=st.booleans(),
    special=st.booleans(),
)
def test_pooling_is_that_of_the_cpu(
    *,
    planes: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    ceil_mode: bool,
    special: bool,
) -> None:
    assume(all(2 * p <= k for p, k in zip(padding, kernel, strict=True)))
    assume(
        all(
            n + 2 * p >= d * (k - 1) + 1
            for n, p, d, k in zip(size, padding, dilation, kernel, strict=True)
        )
    )
    generator = torch.Generator().manual_seed(sum(size))
    # Few distinct values, so that windows hold ties.
    x = torch.randint(-3, 4, (2, planes, *size), generator=generator).float()
    if special:
        x[torch.rand(x.shape, generator=generator) < 0.2] = float("nan")
        x[torch.rand(x.shape, generator=generator) < 0.3] = float("-inf")

    def pool(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, indices = functional.max_pool2d_with_indices(
            t, kernel, stride, padding, dilation, ceil_mode
        )
        return values.cpu(), indices.cpu()

    values, indices = pool(x.to("neuron"))
    expected_values, expected_indices = pool(x)
    torch.testing.assert_close(values, expected_values, rtol=0, atol=0, equal_nan=True)
    assert indices.equal(expected_indices)


def test_bad_arguments_say_why() -> None:
    x = torch.ones(1, 1, 4, 4, device="neuron")
    with pytest.raises(RuntimeError, match="pad should be at most half of effective kernel size"):
        functional.max_pool2d(x, 2, padding=2)
