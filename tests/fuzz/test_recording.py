"""Random kernels of both generations leave the same recording, however their calls are taken down.

Each is recorded as it is, where calls that repeat are only written down (`nki.repeats`,
`nki.replay`), and with every call taking the long way. Each runs three times over, so that all its
calls repeat, at the same lines and on tensors that overlap those of before.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from nki.context import Issuer, current_run, use
from nki.errors import NkiError, NkiWarning
from nki.kernel import Kernel
from nki.recording import Recording
from tests.fuzz.first_generation import build, draw
from tests.fuzz.first_generation import inputs as first_inputs
from tests.fuzz.kernel_maker import Maker
from tests.fuzz.kernels import inputs
from tests.nki.test_repeats import said_by

TIMES = 3


def left(recording: Recording) -> Any:
    """Everything that a recording says."""
    return (*said_by(recording), repr(recording.results))


def recorded(function: Any, given: tuple[Any, ...], *, long_way: bool) -> Any:
    def kernel(*args: Any) -> Any:
        recorder: Any = current_run()
        results = None
        for _ in range(TIMES):
            if long_way:
                with use(issuer=Issuer(recorder.issue)):
                    results = function(*args)
            else:
                results = function(*args)
        return results

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NkiWarning)
        try:
            return left(Kernel(kernel).record(*given))
        except NkiError as error:
            return f"{error.code} {error.what} {error.remedy}"


@pytest.mark.parametrize("seed", range(60))
def test_kernels(seed: int) -> None:
    arrays = inputs(seed)
    quick, slow = (
        recorded(lambda *args: Maker(seed, steps=8).kernel(*args), arrays, long_way=long_way)
        for long_way in (False, True)
    )
    assert quick == slow


@pytest.mark.parametrize("seed", range(24))
def test_kernels_of_the_first_generation(seed: int) -> None:
    program = draw(seed)
    given = tuple(np.array(array) for array in first_inputs(program))
    quick, slow = (
        recorded(build(program).today().function, given, long_way=long_way)
        for long_way in (False, True)
    )
    assert quick == slow
    assert not isinstance(quick, str), quick


def test_most_random_kernels_are_recorded() -> None:
    """What is refused leaves nothing to compare but its message."""
    refused = [
        isinstance(
            recorded(lambda *a, s=s: Maker(s, steps=8).kernel(*a), inputs(s), long_way=True), str
        )
        for s in range(20)
    ]
    assert sum(refused) < 5
