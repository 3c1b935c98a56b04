"""PyTorch's device-generic test harness and its operator samples, instantiated for `neuron`.

The harness (`instantiate_device_type_tests`) finds the device by itself; what is left out stands in
harness_exclusions.py with its reason.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase, noncontiguous_like
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_map

from tests.shallow import shallow

from .harness_exclusions import (
    EXCLUDED,
    EXCLUDED_BFLOAT16,
    EXCLUDED_STRIDED,
    ROUNDED_ONCE,
    STATISTICS,
)

# PyTorch's sample generators use deprecated calls on purpose; their warnings aren't ours.
pytestmark = pytest.mark.filterwarnings("ignore")

SAMPLES = 4  # per operator and dtype; the runner of all samples takes minutes

compared = [op for op in op_db if not {op.name, op.full_name, op.formatted_name} & set(EXCLUDED)]


def to(tree: Any, device: str) -> Any:
    """Copy the tensors of a tree of arguments to a device; name it where one is named."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to(device)
        return device if isinstance(leaf, (str, torch.device)) and str(leaf) == "cpu" else leaf

    return tree_map(move, tree)


def in_float64(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


def samples_of(op: OpInfo, dtype: torch.dtype) -> list[SampleInput]:
    return list(islice(op.sample_inputs("cpu", dtype), SAMPLES))


def seeded(op: OpInfo, tensor: Any, args: Any, kwargs: Any) -> Any:
    torch.manual_seed(0)
    return op(tensor, *args, **kwargs)


def run_on(op: OpInfo, sample: SampleInput, device: str) -> Any:
    return seeded(op, *to((sample.input, sample.args, sample.kwargs), device))


def on_host(tree: Any) -> Any:
    def bring(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        leaf = leaf.detach().cpu()
        return leaf.to_dense() if leaf.layout != torch.strided else leaf

    return tree_map(bring, tree)


class TestOperators(TestCase):
    def run(self, result: Any = None) -> Any:
        # PyTorch reads the sources of the whole stack after every test. It keeps the tolerances for
        # each thread.
        tolerances = self.precision, self.rel_tol
        run: Callable[[Any], Any] = super().run

        def test() -> Any:
            self.precision, self.rel_tol = tolerances
            return run(result)

        return shallow(test)()

    def results_on_cpu(self, op: OpInfo, dtype: torch.dtype) -> Iterator[tuple[SampleInput, Any]]:
        if dtype not in op.supported_dtypes("cpu"):
            self.skipTest(f"{op.name} has no {dtype} kernel on the CPU either")
        compared = 0
        for sample in samples_of(op, dtype):
            try:
                expected = run_on(op, sample, "cpu")
            except (RuntimeError, NotImplementedError):
                continue  # a sample that the CPU refuses has nothing to compare with
            compared += 1
            yield sample, expected
        if compared == 0:
            self.skipTest(f"the CPU refuses every {dtype} sample of {op.name}")

    @ops(compared, allowed_dtypes=(torch.float32, torch.bfloat16, torch.int64, torch.bool))
    def test_values_are_those_of_the_cpu(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        if dtype == torch.bfloat16 and op.name in EXCLUDED_BFLOAT16:
            self.skipTest(EXCLUDED_BFLOAT16[op.name])
        for sample, expected in self.results_on_cpu(op, dtype):
            got = on_host(run_on(op, sample, device))
            if dtype == torch.bfloat16 and op.name in ROUNDED_ONCE:
                exact = run_on(op, sample.transform(in_float64), "cpu")
                self.assertEqual(got, exact.to(got.dtype))  # noqa: PT009
            elif dtype == torch.bfloat16 and op.name in STATISTICS:
                # As on CUDA they are float32; the CPU's are of the parameters' type.
                wide = [t.dtype for t in got[1:]]
                assert wide == [torch.float32] * len(wide)
                self.assertEqual(got, on_host(expected), exact_dtype=False)  # noqa: PT009
            else:
                self.assertEqual(got, on_host(expected))  # noqa: PT009

    @ops(
        [op for op in compared if op.name not in EXCLUDED_STRIDED],
        allowed_dtypes=(torch.float32, torch.int64),
    )
    def test_strided_operands(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        for sample, expected in self.results_on_cpu(op, dtype):
            tensor, args, kwargs = tree_map(
                strided_like, to((sample.input, sample.args, sample.kwargs), device)
            )
            got = seeded(op, tensor, args, kwargs)
            self.assertEqual(on_host(got), on_host(expected))  # noqa: PT009


def strided_like(x: Any) -> Any:
    dense = isinstance(x, torch.Tensor) and x.layout == torch.strided and x.numel() > 0
    return noncontiguous_like(x) if dense else x


instantiate_device_type_tests(TestOperators, globals(), only_for=("privateuse1",))
