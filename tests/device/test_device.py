"""Naming, selecting and describing devices."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.backend_registration import rename_privateuse1_backend

from torch_neuronx import neuron

COUNT = neuron.device_count()


def test_names_of_one_device() -> None:
    assert torch.device("neuron:1") == torch.device("neuron", 1) == torch.device("privateuseone:1")
    assert torch.device("neuron").index is None
    assert str(torch.device("privateuseone:1")) == "neuron:1"


def test_an_integer_is_a_neuron_device() -> None:
    assert torch.device(0) == torch.device("neuron:0")
    assert torch.ones(2, device=0).device == torch.device("neuron:0")
    assert torch.ones(2).to(0).device == torch.device("neuron:0")


def test_tensor_without_index_is_on_the_current_device() -> None:
    with torch.accelerator.device_index(1):
        assert torch.ones(2, device="neuron").device == torch.device("neuron:1")
        assert torch.ones(2).to("neuron").device == torch.device("neuron:1")
        assert torch.ones(2).to("privateuseone").device == torch.device("neuron:1")


def test_generated_methods() -> None:
    tensor = torch.ones(2)
    assert not tensor.is_neuron  # type: ignore[attr-defined]
    on_device = tensor.neuron()  # type: ignore[attr-defined]
    assert on_device.is_neuron
    assert tensor.neuron(1).device == torch.device("neuron:1")  # type: ignore[attr-defined]
    model = nn.Linear(2, 2).neuron()  # type: ignore[operator]
    assert {p.device.type for p in model.parameters()} == {"neuron"}
    assert tensor.untyped_storage().neuron().device.type == "neuron"  # type: ignore[attr-defined]
    packed = nn.utils.rnn.pack_sequence([torch.ones(2, 1)])
    assert packed.neuron().data.device.type == "neuron"  # type: ignore[attr-defined]


def test_default_device_context() -> None:
    with torch.device("neuron:1"):
        tensors = [torch.empty(1), torch.zeros(1), torch.tensor([1.0]), torch.arange(2)]
        model = nn.Linear(2, 2)
    assert {t.device for t in [*tensors, *model.parameters()]} == {torch.device("neuron:1")}
    assert torch.empty(1).device.type == "cpu"


def test_accelerator_api() -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("neuron")
    assert torch.accelerator.device_count() == COUNT
    torch.accelerator.set_device_index(1)
    assert torch.accelerator.current_device_index() == neuron.current_device() == 1
    with torch.accelerator.device_index(0):
        assert neuron.current_device() == 0
    assert neuron.current_device() == 1
    torch.accelerator.synchronize()


@pytest.mark.parametrize("argument", [1, "neuron:1", torch.device("neuron:1")])
def test_set_device_and_context(argument: int | str | torch.device) -> None:
    with neuron.device(argument):
        assert neuron.current_device() == 1
    assert neuron.current_device() == 0
    neuron.set_device(argument)
    assert neuron.current_device() == 1
    assert type(neuron.current_device()) is int


def test_context_restores_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), neuron.device(1):
        raise ZeroDivisionError
    assert neuron.current_device() == 0
    with pytest.raises(ZeroDivisionError), torch.accelerator.device_index(1):
        raise ZeroDivisionError
    assert neuron.current_device() == 0


def test_device_is_kept_per_thread() -> None:
    seen: list[int] = []
    neuron.set_device(1)

    def select() -> None:
        seen.append(neuron.current_device())
        neuron.set_device(2)
        seen.append(neuron.current_device())

    thread = threading.Thread(target=select)
    thread.start()
    thread.join()
    assert seen == [0, 2]
    assert neuron.current_device() == 1


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x + 1,
        lambda x: x.add_(1),
        lambda x: x @ x,
        lambda x: x.cpu(),
        lambda x: x.to("neuron:3"),
        torch.linalg.svd,
        torch.randn_like,
        lambda x: x.sum().item(),
    ],
    ids=["add", "add_", "matmul", "cpu", "to", "svd", "randn_like", "item"],
)
def test_operators_leave_the_current_device(operation: Callable[[torch.Tensor], object]) -> None:
    x = torch.rand(4, 4, device="neuron:2")
    operation(x)
    assert neuron.current_device() == 0


def test_failing_operator_leaves_the_current_device() -> None:
    x = torch.rand(4, 4, device="neuron:2")
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        x @ torch.rand(3, 3, device="neuron:2")
    assert neuron.current_device() == 0


def test_result_is_on_the_device_of_its_inputs() -> None:
    x = torch.rand(4, device="neuron:2")
    for result in (x + 1, x.sort()[0], x.sort()[1], x.abs(), x.view(2, 2), torch.cat([x, x])):
        assert result.device == torch.device("neuron:2")


def test_scalar_tensor_of_the_host_may_be_mixed_in() -> None:
    x = torch.ones(3, device="neuron")
    assert (x + torch.tensor(2.0)).tolist() == [3, 3, 3]
    assert (torch.tensor(2.0) * x).device.type == "neuron"


def test_other_mixtures_are_refused() -> None:
    x, y = torch.ones(3, device="neuron"), torch.ones(3)
    for one, other in ((x, y), (y, x), (x, x.to("neuron:1"))):
        with pytest.raises(RuntimeError, match="same device"):
            _ = one + other


def test_printing_and_type_name() -> None:
    x = torch.tensor([1.5, 2.0], device="neuron:1")
    assert repr(x) == "tensor([1.5000, 2.0000], device='neuron:1')"
    assert x.type() == "torch.neuron.FloatTensor"
    assert x.bfloat16().type() == "torch.neuron.BFloat16Tensor"


def test_registration_is_final() -> None:
    rename_privateuse1_backend("neuron")
    with pytest.raises(RuntimeError, match="already been set"):
        rename_privateuse1_backend("other")
    with pytest.raises(RuntimeError, match="already been registered"):
        torch._register_device_module("neuron", neuron)
    assert torch.get_device_module("neuron") is neuron
    assert torch.get_device_module() is neuron


def test_properties() -> None:
    properties = neuron.get_device_properties()
    assert properties.name == neuron.get_device_name() == neuron.get_device_name("neuron:1")
    assert properties.total_memory == torch.accelerator.get_memory_info(0)[1]
    assert neuron.get_device_capability() == (properties.major, properties.minor)
    assert neuron.is_bf16_supported()
    capability = torch.accelerator.get_device_capability(0)
    assert {torch.float32, torch.bfloat16, torch.int64} <= capability["supported_dtypes"]


DESCRIBE = """
import torch
p = torch.neuron.get_device_properties(0)
print(p.name, torch.neuron.device_count(), p.total_memory >> 30, p.logical_core)
"""


@pytest.mark.parametrize(
    ("env", "described"),
    [
        ({}, "trn2 4 24 0"),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "trn1"}, "trn1 2 16 0"),
        ({"NEURON_LOGICAL_NC_CONFIG": "1"}, "trn2 8 12 0"),
        ({"NEURON_RT_NUM_CORES": "2"}, "trn2 2 24 0"),
        ({"NEURON_RT_VISIBLE_CORES": "2-3"}, "trn2 2 24 2"),
    ],
)
def test_the_environment_chooses_the_machine(
    run_python: Callable[..., str], env: dict[str, str], described: str
) -> None:
    assert run_python(DESCRIBE, **env).strip() == described


def test_a_launcher_chooses_the_device(run_python: Callable[..., str]) -> None:
    code = (
        "import torch; print(torch.neuron.current_device(), torch.ones(1, device='neuron').device)"
    )
    assert run_python(code, LOCAL_RANK="2").split() == ["2", "neuron:2"]


def test_autoload_can_be_turned_off(run_python: Callable[..., str]) -> None:
    code = """
import torch
print(hasattr(torch, "neuron"))
import torch_neuronx
print(torch.ones(2, device="neuron").sum().item())
"""
    assert run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").split() == ["False", "2.0"]


def test_importing_does_not_initialise(run_python: Callable[..., str]) -> None:
    code = """
import torch
n = torch.neuron
n.is_available(), n.device_count(), n.manual_seed_all(1), n.get_device_properties(0)
print(n.is_initialized())
torch.ones(1, device="neuron")
print(n.is_initialized())
"""
    assert run_python(code).split() == ["False", "True"]
