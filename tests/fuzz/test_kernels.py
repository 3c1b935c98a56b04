"""Some random NKI kernels; `make fuzz FUZZ=nki` runs them by the hour."""

from __future__ import annotations

import pytest

from nki.dtypes import NAMES
from tests.fuzz.kernel_maker import ROWS_TRIED
from tests.fuzz.kernels import check, inputs


@pytest.mark.every(2)
@pytest.mark.parametrize("seed", range(80))
def test_both_executors_agree(seed: int) -> None:
    found, maker = check(seed)
    assert not found, "\n".join([*maker.log, *found])


def test_instructions_are_tried() -> None:
    """Half of the table in some seeds: what the rules refuse must not be nearly everything."""
    used = {name for seed in range(12) for name in check(seed)[1].used}
    assert len(used & set(ROWS_TRIED)) > len(ROWS_TRIED) // 2


def test_a_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fuzz import kernels  # noqa: PLC0415

    right = kernels.natively

    def wrong(*args: object) -> object:
        results = right(*args)  # type: ignore[arg-type]
        results[-1] = results[-1] ^ 1
        return results

    monkeypatch.setattr(kernels, "natively", wrong)
    assert check(0)[0]
    assert set(inputs(0)[0]) == set(NAMES)
