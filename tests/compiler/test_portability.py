"""What `torch.compile` says of graphs that a NeuronCore would not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn import functional as F  # noqa: N812  (PyTorch's own name for it)

import torch_neuronx
from neuronxcc.frontends.hlo import HloError
from neuronxcc.frontends.hlo.exporter import export_hlo
from neuronxcc.frontends.model import load_model
from neuronxcc.ir.gaps import GAPS
from neuronxcc.ir.limits import limits
from neuronxcc.ir.op import Op
from neuronxcc.options import parse
from neuronxcc.targets import get_target
from torch_neuronx.dynamo.backend import OBSERVERS, CompiledGraph
from torch_neuronx.ops import PortabilityError, PortabilityWarning, portability

INT32 = torch.ones(2, 2, dtype=torch.int32)


def compiled(function: Callable[..., Any], **options: str) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="neuron", options={**options})


def product(x: torch.Tensor) -> torch.Tensor:
    return x @ x


@pytest.mark.parametrize(
    "options",
    [
        {"implicit_integer_downcast": "dot"},
        {"implicit-integer-downcast": "all"},
        {"target": "trn1"},  # where products of 32-bit integers are native
    ],
)
def test_options_given_to_compile_count(options: dict[str, str]) -> None:
    x = INT32.to("neuron")
    with portability("strict"):
        with pytest.raises(BackendCompilerFailed, match=r"\[NCC_EVRF035\]"):
            compiled(product)(x)
        if "target" in options:  # a program for another chip is not loaded on this one
            with torch_neuronx.compile_only(options["target"]):
                compiled(product)(x)
        else:
            assert torch.equal(compiled(product, **options)(x).cpu(), INT32 @ INT32)


def test_flags_of_now_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "--implicit-integer-downcast=dot")
    with portability("strict"):
        compiled(product)(INT32.to("neuron"))
        with pytest.raises(BackendCompilerFailed, match="EVRF035"):
            compiled(product, implicit_integer_downcast="none")(INT32.to("neuron"))


def test_a_wrong_option_is_told_in_every_mode() -> None:
    for mode in ("permissive", "warn", "strict"):
        with portability(mode), pytest.raises(BackendCompilerFailed, match="is not valid"):
            compiled(torch.neg, native_int64="yes")(torch.ones(2, device="neuron"))


def transposed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.conv_transpose2d(x, weight, bias, stride=2, dilation=2).relu()


def pooled(x: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(x, 2, dilation=2) + 1


def pooled_with_indices(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return F.max_pool2d_with_indices(x, [2, 2], dilation=[2, 2])


IMAGE, KERNEL = torch.ones(1, 2, 8, 8), torch.ones(2, 3, 2, 2)
LONG = torch.ones(2, 2, dtype=torch.int64)
ROWS = torch.zeros(2, dtype=torch.int64)
Sample = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
#: For every code of the graph's limits programs that meet it, or why none does.
SAMPLES: dict[str, list[Sample] | str] = {
    "EUOC002": "operators without a lowering have no form that the command could read",
    "ESPP004": [(torch.exp, (IMAGE.double(),))],
    "EVRF004": [(torch.sum, (LONG.to(torch.complex64),))],
    "EVRF051": [(lambda x: x.to(torch.bfloat16), (torch.ones(4).to(torch.float8_e4m3fn),))],
    "EVRF052": "every target has float8_e4m3; test_made_up_chip.py has one without",
    "ESFH002": "PyTorch has no operators on constants of uint64",
    "EVRF010": [(transposed, (IMAGE, KERNEL, torch.ones(3)))],
    "EVRF011": "PyTorch's transposed convolutions have no second stride",
    "EVRF013": [(lambda x: torch.topk(x, 1).values, (LONG,))],
    "EVRF016": [(lambda x, i: x.index_reduce(0, i, x, "amax"), (LONG, ROWS))],
    "EVRF017": "PyTorch's poolings do not spread their input out",
    "EVRF018": [(pooled, (IMAGE,)), (pooled_with_indices, (IMAGE,))],
    "EVRF022": [(lambda x: x >> 1, (LONG,)), (lambda x: x >> 1, (LONG.to(torch.int16),))],
    "EVRF031": "PyTorch refuses indices out of bounds",
    "EVRF056": "PyTorch refuses indices out of bounds",
    "EVRF035": [(product, (LONG,)), (product, (INT32,))],
    "EVRF060": [
        (lambda x, i: x.index_add(0, i, x), (LONG, ROWS)),
        (lambda x, i: x.index_put((i,), x, accumulate=True), (LONG, ROWS)),
        (lambda x, i: x.scatter(0, i[None], x, reduce="add"), (LONG, ROWS)),
    ],
    "EVRF061": "it takes two ranks; the command's test has it",
    "EVRF062": [(torch.pow, (LONG, LONG))],
    "EVRF063": "it takes two ranks; the command's test has it",
}
CASES = [
    pytest.param(code, *sample, id=f"{code}-{number}")
    for code, samples in SAMPLES.items()
    if not isinstance(samples, str)
    for number, sample in enumerate(samples)
]


def test_every_limit_of_graphs_has_a_sample_or_a_reason() -> None:
    assert SAMPLES.keys() == {gap.code.removeprefix("NCC_") for gap in GAPS}


@pytest.mark.parametrize(("code", "function", "arguments"), CASES)
def test_the_command_and_torch_compile_agree(
    code: str, function: Callable[..., Any], arguments: tuple[torch.Tensor, ...]
) -> None:
    seen: list[CompiledGraph] = []
    given = [t.to("neuron") for t in arguments]
    OBSERVERS.append(seen.append)
    try:
        with portability("warn"), pytest.warns(PortabilityWarning, match=rf"\[NCC_{code}\]"):
            compiled(function)(*given)
    finally:
        OBSERVERS.remove(seen.append)
    refused = pytest.raises(BackendCompilerFailed, match=rf"\[NCC_{code}\]")
    with portability("strict"), refused as caught:
        compiled(function)(*given)
    assert type(caught.value.inner_exception) is PortabilityError
    graph = seen[0].imported.graph
    assert f"NCC_{code}" in {gap.code for _, gap in limits(graph, get_target("trn2"))}
    if any(node.op in {Op.CUSTOM_CALL, Op.TOPK} for node in graph.nodes()):
        return  # of PyTorch's own functions there is no form in HLO, and of topk that of a sort
    content = export_hlo(graph)
    options = parse("--target=trn2 --implicit-integer-downcast=none", environ={})
    with pytest.raises(HloError, match=rf"^\[NCC_{code}\]"):
        load_model(content, options)


def test_the_text_names_the_line() -> None:
    given = [t.to("neuron") for t in (IMAGE, KERNEL, torch.ones(3))]
    with portability("strict"), pytest.raises(BackendCompilerFailed) as caught:
        compiled(transposed)(*given)
    error = caught.value.inner_exception
    assert isinstance(error, PortabilityError)
    assert (error.op, error.dtype, error.target, error.code) == (
        "aten.convolution.default", "float32", "trn2", "EVRF010",
    )  # fmt: skip
    text = "return F.conv_transpose2d(x, weight, bias, stride=2, dilation=2).relu()"
    line = transposed.__code__.co_firstlineno + 1
    assert str(error) == (
        "aten.convolution.default does not run on a NeuronCore (trn2) with these arguments "
        f"[NCC_EVRF010]\n  at {__file__}:{line}: {text}\n"
        "  reason: simultaneous use of input and kernel dilation\n"
        "  remedy: use one of the two; dilate the other by hand"
    )


def test_training_of_ordinary_models_is_refused_nothing() -> None:
    """Gradients of strided convolutions, poolings, embeddings and indexing go through scatters."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3, stride=2), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.ConvTranspose2d(4, 2, 2, stride=2), torch.nn.Flatten(), torch.nn.Linear(8, 3),
    ).to("neuron")  # fmt: skip
    table = torch.nn.Embedding(5, 3).to("neuron")

    def loss(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        logits = model(x) + table(ids).sum(1)
        best = logits.gather(1, logits.argmax(1, keepdim=True))
        error: torch.Tensor = F.cross_entropy(logits, ids[:, 0] % 3) + best[torch.arange(2)].mean()
        return error

    ids = torch.tensor([[1, 2], [3, 4]], device="neuron")
    with portability("strict"):
        compiled(loss)(torch.randn(2, 2, 8, 8, device="neuron"), ids).backward()


def test_a_loss_that_is_accepted_is_not_told() -> None:
    function = cast("Callable[..., Any]", SAMPLES["EVRF060"][1][0])
    given = [t.to("neuron") for t in (LONG, ROWS)]
    with portability("strict"):
        compiled(function, implicit_integer_downcast="scatter")(*given)


def test_traces_are_held_to_the_same() -> None:
    with portability("strict"), pytest.raises(PortabilityError, match=r"\[NCC_EVRF018\]"):
        torch_neuronx.trace(pooled, IMAGE)
    report = torch_neuronx.analyze(pooled, IMAGE)
    assert [entry["failureAt"] for entry in report["unsupported_operators"]] == ["neuronx-cc"]
