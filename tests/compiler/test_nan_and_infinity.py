"""What is infinite or NaN in one place stays there: operators' samples, with such an element.

Formulas that are right for numbers are not for these: a product with a matrix of zeros and ones
makes NaN of a whole row, `x != 0` hides it. PyTorch's own operators say which elements of results
are NaN, infinite, or numbers.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.programs.noise import class_of
from tests.shallow import shallow

from .opinfo import Report, as_function, compiled, first_samples, full_name, infos

# The samples themselves warn: of deprecations, of tensors resized, of NumPy.
pytestmark = pytest.mark.filterwarnings("ignore")

LIBRARIES = ("linalg.", "cholesky", "eig", "geqrf", "logdet", "lowrank", "lu", "ormqr", "pinverse",
             "qr", "svd", "triangular_solve")  # fmt: skip
DECOMPOSITION = "PyTorch's decomposition, which other backends compile too, has another formula"
# Operator -> why it is left out.
EXCLUDED = {
    "nn.functional.hardswish": DECOMPOSITION,
    "nn.functional.interpolate": DECOMPOSITION,
    "nn.functional.multi_margin_loss": DECOMPOSITION,
    "nn.functional.multilabel_margin_loss": DECOMPOSITION,
    "nn.functional.upsample_bilinear": DECOMPOSITION,
    "nn.functional.gelu": "oneDNN's kernel makes NaN of infinity",
    "nn.functional.smooth_l1_loss": DECOMPOSITION,
    "prod": "its gradient is traced as products of the others, in eager mode it is a quotient",
    **dict.fromkeys(
        ("native_group_norm", "native_layer_norm", "std_mean", "var_mean"),
        "the mean of infinity and numbers is infinity here, and NaN by the CPU's running means",
    ),
    **dict.fromkeys(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
                     "empty_permuted"), "it says nothing of values"),
}  # fmt: skip


def asked(*, backward: bool) -> list[Any]:
    return [
        info
        for info in infos(torch.float32, backward=backward)
        if info.name not in EXCLUDED and not info.name.startswith(LIBRARIES)
    ]


@shallow
def differences(info: Any, *, backward: bool) -> list[str]:
    """Samples with such elements for which classes of results differ."""
    found = []
    for number, sample in enumerate(
        first_samples(info, torch.float32, 2, Report(full_name(info)), backward=backward)
    ):
        forward, tensors = as_function(info, sample, backward=backward)
        floats = [i for i, t in enumerate(tensors) if t.dtype is torch.float32 and t.numel()]
        if not floats or tensors[floats[0]].layout is not torch.strided:
            continue
        for value in (math.inf, math.nan):
            given = [t.detach().clone() for t in tensors]
            changed = given[floats[0]].flatten()
            changed[changed.numel() // 2] = value
            given[floats[0]] = changed.reshape(given[floats[0]].shape)
            try:
                expected = classes(forward, given, backward=backward)
            except Exception:  # noqa: BLE001, S112 - refused: nothing to compare with
                continue
            try:
                got = classes(compiled(forward, Report("")), given, backward=backward)
            except Exception:  # noqa: BLE001, S112 - other tests say what has to be taken
                continue
            if not all(map(torch.equal, got, expected)):
                found.append(f"sample {number} with {value}: {got} for {expected}")
    return found


def classes(function: Any, given: list[torch.Tensor], *, backward: bool) -> list[torch.Tensor]:
    """Of each element of results or gradients, whether it is NaN, which infinity, or a number."""
    arguments = [t.clone().requires_grad_(backward and t.is_floating_point()) for t in given]
    torch.manual_seed(0)
    results: list[Any] = [r for r in function(*arguments) if isinstance(r, torch.Tensor)]
    if backward:
        results = [r for r in results if r.requires_grad]
        wanted = [a for a in arguments if a.requires_grad]
        ones = [torch.ones_like(r) for r in results]
        found: Any = torch.autograd.grad(results, wanted, ones, allow_unused=True)
        results = [g for g in found if g is not None]
    return [
        class_of(r.detach()) for r in results if r.is_floating_point() and r.layout == torch.strided
    ]


@pytest.mark.every(6)
@pytest.mark.parametrize("info", asked(backward=False), ids=full_name)
def test_results(info: Any) -> None:
    assert differences(info, backward=False) == []


@pytest.mark.every(6)
@pytest.mark.parametrize("info", asked(backward=True), ids=full_name)
def test_gradients(info: Any) -> None:
    assert differences(info, backward=True) == []


# Of the largest difference (p of infinity) ATen's vectors give NaN, and what they leave over none.
@pytest.mark.parametrize("p", [0, 0.5, 1, 1.5, 2, 3])
@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("pairs", [False, True], ids=["cdist", "pdist"])
def test_gradients_of_distances(p: float, width: int, *, pairs: bool) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.pdist(x, p) if pairs else torch.cdist(x, y, p)

    def gradients(device: str) -> list[torch.Tensor]:
        operands = [t.to(device).requires_grad_() for t in (x, y)[: 1 if pairs else 2]]
        run = function if device == "cpu" else torch.compile(function, backend="neuron")
        return list(torch.autograd.grad(run(operands[0], operands[-1]).sum(), operands))

    torch.compiler.reset()
    x, y = torch.randn(2, 4, width, generator=torch.Generator().manual_seed(0))
    x[1, width // 2], x[2, 0] = math.nan, math.inf
    y[0] = x[0]
    for mine, other in zip(gradients("neuron"), gradients("cpu"), strict=True):
        torch.testing.assert_close(mine.cpu(), other, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", [torch.minimum, torch.maximum, torch.clamp_min])
@pytest.mark.parametrize("integers", [False, True], ids=["first", "second"])
def test_signalling_nan_beside_integers(
    function: Any, dtype: torch.dtype, *, integers: bool
) -> None:
    """Of an operand that is made of integers LLVM knows that it is no NaN."""
    torch.compiler.reset()
    run: Any = torch.compile(function, backend="neuron", dynamic=False)
    bits = {torch.float32: 0x7F800001, torch.float64: 0x7FF0000000000001}[dtype]
    word = {torch.float32: torch.int32, torch.float64: torch.int64}[dtype]
    for length in (1, 3, 8, 17, 33, 67):
        x = torch.full((length,), bits, dtype=word).view(dtype).to("neuron")
        ones = torch.ones(length, dtype=torch.int8, device="neuron")
        given = (ones, x) if integers else (x, ones)
        assert run(*given).isnan().all()
