"""PyTorch's own operator samples, compiled: equal to eager, and nearly all without a host step."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.judged import NEARLY_ALL_LOWERED

from .opinfo import Report, check, check_together, full_name, infos

# The samples themselves warn: of deprecations, of tensors resized, of NumPy.
pytestmark = pytest.mark.filterwarnings("ignore")

FORWARD, BACKWARD = infos(torch.float32), infos(torch.float32, backward=True)

# Why these do not go through AOTAutograd, on any backend, or not through the compiler.
EXCLUDED = {
    "sparse.sampled_addmm": "AOTAutograd takes no sparse tensors",
    "sparse.mm.reduce": "AOTAutograd takes no sparse tensors",
    "to_sparse": "AOTAutograd returns no sparse tensors",
    "chalf": "complex32 is no type of the compiler",
    "resize_as_": "it changes the size of an argument",
    "empty_strided": "its samples refer to one element several times; nothing has written them",
    "svd_lowrank": "factors of a random sketch: unique up to a phase in complex64",
    "pca_lowrank": "factors of a random sketch: unique up to a phase in complex64",
    "nn.functional.linear_cross_entropy.chunked": "a custom operator, run by the host",
    "nn.functional.linear_cross_entropy.chunked_none": "a custom operator, run by the host",
}

# The order of equal values is not defined, and 16-bit values are often equal.
TIES = {"topk", "sort", "argsort", "histc", "grid_sampler_2d", "kthvalue", "mode", "median"}


def names(info: Any) -> str:
    return full_name(info)


def assert_lowered(report: Report) -> None:
    if report.name not in EXCLUDED:
        assert report.status in {"ok", "listed", "dynamic", "eager"}, report


#: Operators that are lowered, but for complex numbers, which no NeuronCore has.
COMPLEX_ON_HOST = {"logcumsumexp"}

# How many samples of each type one graph computes.
TOGETHER = {torch.float32: 2, torch.bfloat16: 1, torch.int64: 1}
OTHER_TYPES = [torch.bfloat16, torch.int64, torch.bool, torch.complex64]


# Each test notes what became of its operator; at the end of a run with all of them `tests.judged`
# demands that nearly all had no step on the host.
Note = Callable[[str, object], None]


@pytest.mark.parametrize("info", FORWARD, ids=names)
def test_forward_is_lowered_and_equals_eager(info: Any, record_property: Note) -> None:
    together = check_together(info, TOGETHER)
    good = together.status in {"ok", "listed"}
    # If not good, one by one, to see which.
    report = together if good else check(info, torch.float32, samples=2)
    record_property(NEARLY_ALL_LOWERED, [report.name, report.status, len(FORWARD)])
    if good:
        return
    assert_lowered(report)
    for dtype in (torch.bfloat16, torch.int64):
        check_type(info, dtype)


def check_type(info: Any, dtype: torch.dtype) -> None:
    if info.supports_dtype(dtype, "cpu"):
        report = check(info, dtype, samples=1)
        if dtype.is_complex and info.name in COMPLEX_ON_HOST:
            assert report.status == "host", report
        elif info.name not in TIES or report.status != "wrong":
            assert_lowered(report)


@pytest.mark.exhaustive
@pytest.mark.parametrize("info", FORWARD, ids=names)
def test_more_samples_equal_eager(info: Any) -> None:
    assert_lowered(check(info, torch.float32, samples=5))


@pytest.mark.every(3)
@pytest.mark.parametrize("info", BACKWARD, ids=names)
def test_gradients_are_lowered_and_equal_eager(info: Any) -> None:
    assert_lowered(check(info, torch.float32, samples=1, backward=True))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", OTHER_TYPES)
@pytest.mark.parametrize("info", FORWARD, ids=names)
def test_other_types_equal_eager(info: Any, dtype: torch.dtype) -> None:
    if not info.supports_dtype(dtype, "cpu"):
        pytest.skip(f"{full_name(info)} has no {dtype}")
    check_type(info, dtype)
