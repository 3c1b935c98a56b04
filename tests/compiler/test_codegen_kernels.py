"""Random kernels of every form: compiled code and reference give the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from neuronxcc.codegen.llvm import Host
from neuronxcc.codegen.reference import run_kernel
from neuronxcc.codegen.text import to_text
from tests.compiler.codegen_compare import HOSTS, compiled, host_id, ulps
from tests.compiler.loop_kernels import Case, kernels


@pytest.mark.parametrize("host", HOSTS, ids=host_id)
@pytest.mark.parametrize("form", ["pointwise", "rows", "columns"])
def test_random_kernels(form: str, host: Host) -> None:
    @settings(
        max_examples=120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
    )
    @given(kernels(form))
    def check(case: Case) -> None:
        expected, got = case.copies(), case.copies()
        run_kernel(case.kernel, expected)
        compiled([case.kernel], host).run(0, got)
        for slot, (one, other) in enumerate(zip(got, expected, strict=True)):
            distance = ulps(one, other)
            # An addition of whole numbers has no -0.0, but a product of a mask may.
            wrong = (distance > 0) & (one != other)
            if wrong.any():
                at = int(np.argmax(wrong))
                message = f"slot {slot}[{at}] is {one[at]}, should be {other[at]}"
                raise AssertionError(f"{message}\n{to_text(case.kernel)}")

    check()
