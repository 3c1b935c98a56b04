"""PyTorch's own samples of operators as instructions of a NeuronCore, equal to eager mode."""

from collections.abc import Callable
from typing import Any

import pytest
from torch.testing._internal.common_methods_invocations import op_db

from tests.judged import NEARLY_ALL_INSTRUCTIONS

from .device_opinfo import judge
from .opinfo import full_name

# The samples themselves warn: of deprecations, of tensors resized, of NumPy.
pytestmark = pytest.mark.filterwarnings("ignore")

_BY_DATA = "DataDependentOutputException"
_CALL = "has no lowering to instructions"
# Operators that the table gives to a NeuronCore and whose samples have no instructions, with what
# is said of them. A row that is wrong, or no longer needed, fails.
MISSING = {
    "item": _BY_DATA,  # the host looks at the result
    "allclose": _BY_DATA,
    "equal": _BY_DATA,
    "corrcoef": _BY_DATA,  # weights are compared on the host
    "cov": _BY_DATA,
    "nn.functional.gaussian_nll_loss": _BY_DATA,  # so are variances
    "histc": "no engine computes with f64",
    "histogram": _CALL,
    "histogramdd": _CALL,
    "grid_sampler_3d": _CALL,
    "_segment_reduce.lengths": _CALL,
    "_segment_reduce.offsets": _CALL,
    "_upsample_bilinear2d_aa": _CALL,
    "nn.functional.embedding_bag": _CALL,
    "nn.functional.fractional_max_pool2d": _CALL,
    "nn.functional.fractional_max_pool3d": _CALL,
}

# Each test notes what became of its operator; at the end of a run with all of them `tests.judged`
# demands that nearly all have instructions.
Note = Callable[[str, object], None]


@pytest.mark.every(3)
@pytest.mark.parametrize("info", op_db, ids=full_name)
def test_an_operator_of_a_core_has_instructions(info: Any, record_property: Note) -> None:
    found = judge(info)
    status = "missing" if found.reason else "ok"
    record_property(
        NEARLY_ALL_INSTRUCTIONS, [found.name, status if found.given else "host", len(op_db)]
    )
    assert not found.wrong
    if found.name in MISSING:
        assert found.given
        assert MISSING[found.name] in found.reason
    else:
        assert not found.reason
