"""The operator counts and the portability modes on the device."""

import threading
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from torch_neuronx import ops
from torch_neuronx.ops import PortabilityError, PortabilityWarning

RunPython = Callable[..., str]
DEVICE = "neuron:0"


@pytest.fixture(autouse=True)
def _permissive() -> Iterator[None]:
    ops.set_portability("permissive")
    ops.reset_operator_report()
    yield
    ops.set_portability("permissive")


class Classifier(nn.Module):
    """Token ids (batch, length) to logits (batch, 4): what most models are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embedding(ids))
        x = x + self.attention(x, x, x)[0]
        return self.head(x.mean(1))  # type: ignore[no-any-return]


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    ids = torch.randint(10, (5, 3)).to(DEVICE)
    labels = torch.randint(4, (5,)).to(DEVICE)
    loss = nn.functional.cross_entropy(model(ids), labels)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    accuracy = (model(ids).argmax(-1) == labels).float().mean()
    return float(loss.detach()) + float(accuracy)


def calls() -> dict[tuple[str, str], int]:
    return {(use.op, use.dtype): use.calls for use in ops.operator_report()}


def test_counts_of_a_model() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to(DEVICE)
    x = torch.ones(3, 4, device=DEVICE)
    ops.reset_operator_report()
    with torch.no_grad():
        for _ in range(5):
            model(x)
    counted = calls()
    assert counted["gelu", "float32"] == 5
    products = sum(n for (op, _), n in counted.items() if op in {"addmm", "linear", "mm"})
    assert products == 10
    assert all(use.status == "native" for use in ops.operator_report())
    ops.reset_operator_report()
    assert ops.operator_report() == []
    assert ops.format_report().endswith("No operator ran on the device.")


def test_in_place_and_out_forms_share_a_name() -> None:
    x = torch.ones(3, device=DEVICE)
    ops.reset_operator_report()
    x.exp()
    x.exp_()
    torch.exp(x, out=x)
    assert calls() == {("exp", "float32"): 3}


def test_permissive_counts_what_runs_on_the_host() -> None:
    x = torch.ones(4, dtype=torch.float64, device=DEVICE)
    ops.reset_operator_report()
    (x + x).sum()
    torch.sort(torch.ones(4, device=DEVICE))
    host = {(use.op, use.dtype, use.code) for use in ops.operator_report() if use.engine == "host"}
    assert host == {
        ("add", "float64", "ESPP004"),
        ("sum", "float64", "ESPP004"),
        ("sort", "float32", "EUOC002"),
    }
    text = ops.format_report()
    assert "3 (" in text
    assert "NCC_EUOC002" in text


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_an_ordinary_model_trains_in_strict_mode(name: str) -> None:
    torch.manual_seed(0)
    model = Classifier().to(DEVICE)
    with ops.portability("strict"):
        optimizer: torch.optim.Optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-2)
        for _ in range(2):
            train_step(model, optimizer)
    assert [use for use in ops.operator_report() if use.engine == "host"] == []


def test_a_number_does_not_decide_the_dtype() -> None:
    """A Python number arrives as a float64 tensor, sometimes as the first argument."""
    x = torch.ones(3, device=DEVICE)
    with ops.portability("strict"):
        x.mul_(0.5).add_(1.0)
        (2.0 - x) / 3.0
        torch.where(x > 0, 1.0, x)
        torch._foreach_mul_([x], 0.5)
        torch.pow(2.0, x)
    assert {use.dtype for use in ops.operator_report()} <= {"float32", "bool"}


def test_strict_refuses_float64() -> None:
    x = torch.ones(3, dtype=torch.float64, device=DEVICE)
    with ops.portability("strict"), pytest.raises(PortabilityError) as caught:
        torch.neg(x)
    line = caught.traceback[0].lineno + 1
    assert str(caught.value) == (
        "aten::neg on float64 does not run on a NeuronCore (trn2) [NCC_ESPP004]\n"
        f"  at {__file__}:{line}: torch.neg(x)\n"
        "  reason: float64 is no data type of a NeuronCore\n"
        "  allowed: uint8, int8, int16, int32, int64, float16, float32, bool, bfloat16, "
        "float8_e5m2, uint16, uint32, uint64\n"
        "  remedy: use torch.float32, e.g. x.to(torch.float32)"
    )
    # The operator did not run, and the device is as usable as before.
    assert torch.equal(torch.neg(x).cpu(), -torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: torch.ones(2, dtype=torch.float64, device=DEVICE), "ESPP004"),
        (lambda: torch.ones(2, dtype=torch.float64).to(DEVICE), "ESPP004"),
        (lambda: torch.ones(2, device=DEVICE).double(), "ESPP004"),
        (lambda: torch.ones(2, dtype=torch.complex64, device=DEVICE), "EVRF004"),
        (lambda: torch.fft.rfft(torch.ones(4, device=DEVICE)), "EUOC002"),
        (lambda: torch.linalg.svd(torch.ones(2, 2, device=DEVICE)), "EUOC002"),
        (lambda: torch.ones(2, device=DEVICE).nonzero(), "EMOD025"),
        (lambda: torch.arange(4, device=DEVICE) @ torch.arange(4, device=DEVICE), "EVRF035"),
        (lambda: torch.arange(4, device=DEVICE).topk(2), "EVRF013"),
        (lambda: torch.arange(4, device=DEVICE) ** 2, "EVRF062"),
    ],
)
def test_strict_refuses_what_hardware_would(call: Callable[[], object], code: str) -> None:
    with ops.portability("strict"), pytest.raises(PortabilityError) as caught:
        call()
    assert caught.value.code == code
    assert f"  at {__file__}:" in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64], ids=str)
def test_memory_is_neither_counted_nor_refused(dtype: torch.dtype) -> None:
    """Whatever has that dtype is refused when a core would have to work on it."""
    x = torch.ones(4, dtype=dtype, device=DEVICE)
    ops.reset_operator_report()
    with ops.portability("strict"):
        torch.empty(3, dtype=dtype, device=DEVICE)
        torch.empty_strided((2, 2), (1, 2), dtype=dtype, device=DEVICE)
        torch.empty_like(torch.ones(2, device=DEVICE), dtype=dtype)
        x.new_empty(3)
        x.view(2, 2).t()[1:].unfold(0, 1, 1).detach()
        assert ("empty", "float32") not in calls()
        assert not [key for key in calls() if key[1] == str(dtype).removeprefix("torch.")]
        with pytest.raises(PortabilityError):
            x + x


def test_a_custom_operator_is_not_the_aten_one_of_that_name() -> None:
    library = torch.library.Library("portability_test", "DEF")
    library.define("add(Tensor x) -> Tensor")
    library.impl("add", torch.clone, "CPU")
    x = torch.ones(2, device=DEVICE)
    assert torch.ops.portability_test.add(x).device == x.device
    assert ("portability_test::add", "float32") in calls()
    with ops.portability("strict"), pytest.raises(PortabilityError, match="not in the operator ta"):
        torch.ops.portability_test.add(x)


def test_printing_works_in_strict_mode() -> None:
    x = torch.arange(3, device=DEVICE) / 2
    with ops.portability("strict"):
        assert str(x) == "tensor([0.0000, 0.5000, 1.0000], device='neuron:0')"


def test_warn_once_per_line() -> None:
    x = torch.ones(3, device=DEVICE)
    with ops.portability("warn"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            torch.sort(x)
        torch.sort(x)
    assert [(w.category, w.filename) for w in caught] == [(PortabilityWarning, __file__)] * 2
    assert caught[0].lineno + 1 == caught[1].lineno
    assert "aten::sort" in str(caught[0].message)


def test_warnings_as_errors_keep_the_operator_from_running() -> None:
    x = torch.zeros(3, dtype=torch.float64, device=DEVICE)
    with ops.portability("warn"), pytest.raises(PortabilityWarning):
        x.add_(1)
    assert x.cpu().sum() == 0


def test_64_bit_integers_are_mentioned_once() -> None:
    with ops.portability("warn"), pytest.warns(PortabilityWarning) as caught:
        x = torch.arange(4, device=DEVICE).add(1).sub(1)
    assert len(caught) == 1
    assert "carries int64 as int32" in str(caught[0].message)
    assert (x + x).cpu().tolist() == [0, 2, 4, 6]


def test_backward_is_checked() -> None:
    x = torch.eye(3, device=DEVICE, requires_grad=True)
    y = torch.linalg.det(x)
    with ops.portability("strict"), pytest.raises(PortabilityError, match="in the backward pass"):
        y.backward()
    y = torch.linalg.det(x)
    y.backward()
    assert x.grad is not None


def test_threads_share_the_mode_and_the_counts() -> None:
    errors: list[BaseException] = []
    barrier = threading.Barrier(4)

    def work(index: int) -> None:
        x = torch.ones(4, device=f"neuron:{index}")
        barrier.wait()
        for _ in range(50):
            x = x.exp().neg()
        try:
            torch.sort(x)
        except PortabilityError as error:
            errors.append(error)

    ops.reset_operator_report()
    with ops.portability("strict"):
        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(errors) == 4
    assert calls()["exp", "float32"] == 200


def test_mode_from_the_environment(run_python: RunPython) -> None:
    code = """
import torch
from torch_neuronx import ops
print(ops.get_portability())
try:
    torch.ones(2, device="neuron").sort()
except ops.PortabilityError as error:
    print(str(error).splitlines()[0])
"""
    out = run_python(
        code, TORCH_NEURONX_PORTABILITY="strict", NEURON_PLATFORM_TARGET_OVERRIDE="trn1"
    )
    first = "aten::sort.stable on float32 does not run on a NeuronCore (trn1) [NCC_EUOC002]"
    assert out.splitlines() == ["strict", first]


def test_wrong_mode_in_the_environment(run_python: RunPython) -> None:
    code = """
import warnings
warnings.simplefilter("ignore")
import torch
try:
    import torch_neuronx
except RuntimeError as error:
    print(error)
"""
    out = run_python(code, new=True, TORCH_NEURONX_PORTABILITY="strct")
    text = "TORCH_NEURONX_PORTABILITY='strct' is not valid; allowed: permissive, warn, strict. "
    assert text in out


def test_the_command(run_python: RunPython) -> None:
    out = run_python("from torch_neuronx.ops.__main__ import main; main(['mm'])")
    assert out.startswith("mm: family matmul, engine tensor, documented (XLA Dot and DotGeneral)\n")
