"""Dynamo's interface of the device; streams, events and devices in compiled functions."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.device_interface import (
    DeviceGuard,
    DeviceInterface,
    caching_worker_current_devices,
    get_interface_for_device,
    get_registered_device_interfaces,
)

from torch_neuronx import neuron
from torch_neuronx.compat.release import minor

from .dynamo_tools import watched

INTERFACE = get_interface_for_device("neuron")
S = neuron.Stream()
E = neuron.Event(enable_timing=True)

# Name in Dynamo's interface: what it must give, by torch.neuron.
ANSWERS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "current_device": lambda i: (i.current_device(), neuron.current_device()),
    "device_count": lambda i: (i.device_count(), neuron.device_count()),
    "is_available": lambda i: (i.is_available(), True),
    "current_stream": lambda i: (i.current_stream(), neuron.current_stream()),
    "get_raw_stream": lambda i: (i.get_raw_stream(1), neuron.current_stream(1).stream_id),
    "synchronize": lambda i: (i.synchronize("neuron:1"), None),
    "get_device_properties": lambda i: (
        i.get_device_properties(1),
        neuron.get_device_properties("neuron:1"),
    ),
    "get_compute_capability": lambda i: (i.get_compute_capability(), 30),
    "is_bf16_supported": lambda i: (i.is_bf16_supported(), True),
    "is_dtype_supported": lambda i: (i.is_dtype_supported(torch.bfloat16), True),
    "memory_allocated": lambda i: (i.memory_allocated(), neuron.memory_allocated()),
    "is_triton_capable": lambda i: (i.is_triton_capable(), False),
    "Event": lambda i: (isinstance(i.Event(), torch.Event), True),
    "Stream": lambda i: (isinstance(i.Stream(), torch.Stream), True),
}
#: Since 2.15. Inductor takes no part of this device for a GPU, and its caches need no word of it.
LATER: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "exposes_streams": lambda i: (i.exposes_streams(), True),
    "is_gpu": lambda i: (i.is_gpu(), False),
    "get_cpp_device_options": lambda i: (
        i.get_cpp_device_options(aot_mode=False, compile_only=False),
        None,
    ),
    "get_cache_system_info": lambda i: (i.get_cache_system_info(), None),
    "get_multi_processor_count": lambda i: (
        i.get_multi_processor_count(1),
        neuron.get_device_properties(1).multi_processor_count,
    ),
}
if hasattr(DeviceInterface, "exposes_streams"):
    ANSWERS |= LATER


def set_device(interface: Any) -> None:
    interface.set_device(1)
    assert neuron.current_device() == 1


def exchange_device(interface: Any) -> None:
    assert interface.exchange_device(1) == 0
    assert neuron.current_device() == 1


def maybe_exchange_device(interface: Any) -> None:
    assert interface.maybe_exchange_device(1) == 0
    assert neuron.current_device() == 1


def device(interface: Any) -> None:
    with interface.device(1):
        assert neuron.current_device() == 1
    assert neuron.current_device() == 0
    with DeviceGuard(interface, 1):
        assert neuron.current_device() == 1
    assert neuron.current_device() == 0


def stream(interface: Any) -> None:
    with interface.stream(S):
        assert neuron.current_stream() == S
    assert neuron.current_stream() != S


def set_stream(interface: Any) -> None:
    interface.set_stream(S)
    assert neuron.current_stream() == S


def _set_stream_by_id(interface: Any) -> None:
    interface._set_stream_by_id(S.stream_id, S.device_index, S.device_type)
    assert neuron.current_stream() == S


def raise_if_triton_unavailable(interface: Any) -> None:
    with pytest.raises(RuntimeError, match=r"^neuron devices run no Triton kernels: write .* NKI"):
        interface.raise_if_triton_unavailable()


def Worker(interface: Any) -> None:  # noqa: N802 - the interface's name
    worker = interface.Worker
    assert worker.current_device() == 0
    worker.set_device(1)
    try:
        assert worker.current_device() == 1
        assert worker.get_device_properties().logical_core == 1
        assert worker.get_device_properties("neuron:0").logical_core == 0
        with pytest.raises(RuntimeError, match=r"device index is out of range"):
            worker.get_device_properties(neuron.device_count())
    finally:
        del caching_worker_current_devices["neuron"]


ACTIONS: list[Callable[[Any], None]] = [
    set_device, exchange_device, maybe_exchange_device, device, stream, set_stream,
    _set_stream_by_id, raise_if_triton_unavailable, Worker,
]  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_the_interface_gives_what_the_device_module_gives(name: str) -> None:
    got, expected = ANSWERS[name](INTERFACE)
    assert got == expected


@pytest.mark.parametrize("act", ACTIONS, ids=lambda act: str(act.__name__))
def test_the_interface_does_what_the_device_module_does(act: Callable[[Any], None]) -> None:
    try:
        act(INTERFACE)
    finally:
        neuron.set_stream(neuron.default_stream(0))


def test_every_name_of_the_interface_is_tested() -> None:
    names = {name for name in vars(DeviceInterface) if not name.startswith("__")}
    assert names == set(ANSWERS) | {act.__name__ for act in ACTIONS}


def test_every_core_has_the_interface() -> None:
    assert all(
        get_interface_for_device(f"neuron:{i}") is INTERFACE for i in range(neuron.device_count())
    )
    assert dict(get_registered_device_interfaces())["neuron"] is INTERFACE


def python(code: str, **environment: str) -> str:
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.slow
def test_importing_torch_does_not_import_dynamo() -> None:
    assert python("import sys, torch; print('torch._dynamo' in sys.modules)") == "False\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "autoload"),
    [("torch", "1"), ("torch", "0"), ("torch._dynamo", "0"), ("torch._inductor.utils", "1")],
)
def test_the_interface_is_there_whatever_is_imported_first(first: str, autoload: str) -> None:
    code = (
        f"import {first}, torch_neuronx, sys\n"
        "import torch._dynamo.device_interface as module\n"
        "print(module.get_interface_for_device('neuron').__name__)\n"
        "print(type(module.__spec__.loader).__name__, type(module.__loader__).__name__)\n"
        "print(any('torch_neuronx' in type(f).__module__ for f in sys.meta_path))\n"
    )
    assert python(code, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload).splitlines() == [
        "NeuronInterface",
        "SourceFileLoader SourceFileLoader",
        "False",
    ]


# ---- inside of compiled functions ---------------------------------------------------------------


def on_a_stream(x: Tensor) -> Tensor:
    S.wait_stream(neuron.current_stream())
    with neuron.stream(S):
        y = x + 1
    neuron.current_stream().wait_stream(S)
    return y * 2


def on_no_stream(x: Tensor) -> Tensor:
    with neuron.stream(None):
        return x + 1


def stream_as_context(x: Tensor) -> Tensor:
    S.wait_stream(neuron.current_stream())
    with S:
        y = x + 1
    neuron.current_stream().wait_stream(S)
    return y * 2


def fork_and_join(x: Tensor) -> Tensor:
    current = neuron.current_stream()
    S.wait_stream(current)
    with neuron.stream(S):
        y = (x + 1).relu()
    z = x * 3
    neuron.current_stream().wait_stream(S)
    return y * z


def event(x: Tensor) -> Tensor:
    y = x + 1
    E.record()
    E.wait(S)
    with neuron.stream(S):
        z = y * y
        E.record()
    E.synchronize()
    return z - y


def new_event(x: Tensor) -> Tensor:
    made = neuron.Event()
    y = x + 1
    made.record()
    made.synchronize()
    return y


def new_torch_stream(x: Tensor) -> Tensor:
    made, done = torch.Stream("neuron"), torch.Event("neuron")
    made.wait_stream(neuron.current_stream())
    with made:
        y = x + 1
        done.record(made)
    done.wait()
    return y * 2


def synchronized(x: Tensor) -> Tensor:
    y = x + 1
    neuron.synchronize()
    neuron.synchronize(0)
    S.synchronize()
    return y.sum(0)


def several_results(x: Tensor) -> Tensor:
    values, where = x.max(0)
    S.wait_stream(neuron.current_stream())
    return values + where


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y.add_(1)
    E.record()
    y.mul_(2)
    return y


def questions(x: Tensor) -> Tensor:
    if neuron.is_available() and neuron.get_device_capability()[0] >= 2:
        return x + neuron.device_count() + neuron.current_device()
    return x


def on_another_core() -> Tensor:
    with neuron.device("neuron:1"):
        assert neuron.current_device() == 1
        y = torch.ones(3, device="neuron") * 2
    return y + torch.ones(3, device="neuron:1")


TRACED = [
    on_a_stream, on_no_stream, stream_as_context, fork_and_join, event, new_event,
    new_torch_stream, synchronized, several_results, in_place, questions,
]  # fmt: skip


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


# AOTAutograd estimates transfers with Inductor's measurements of CUDA, which need Triton, when the
# memory of a tensor that two streams use has to be kept for the backward pass. Until 2.14 its
# partitioner took what waits for another stream for a part of the backward pass.
RELEASE = minor(torch.__version__)
UNTRAINABLE: dict[Callable[[Tensor], Tensor], str] = {
    **dict.fromkeys(
        (fork_and_join, event) if RELEASE in ("2.13", "2.14") else (), "triton|0 active drivers"
    ),
    **dict.fromkeys(
        (on_a_stream, stream_as_context) if RELEASE == "2.13" else (),
        "Node mul was invalid, but is output",
    ),
}


# The eager function's: its own node runs on S, that of the leaf on the default stream.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
@pytest.mark.parametrize(
    ("function", "gradients"),
    [(f, g) for f in TRACED for g in (False, True) if not (g and f in UNTRAINABLE)],
)
def test_streams_and_devices_are_traced(
    function: Callable[[Tensor], Tensor], gradients: bool
) -> None:
    x = torch.arange(12.0).reshape(4, 3).sub(5).to("neuron").requires_grad_(gradients)
    compiled = torch.compile(function, backend="neuron", fullgraph=True)
    results = []
    for each in (function, compiled, compiled):
        output = each(x)
        gradient = torch.autograd.grad(output.square().sum(), x)[0] if gradients else None
        results.append((output.detach(), gradient))
    for output, gradient in results[1:]:
        torch.testing.assert_close(output, results[0][0], rtol=0, atol=0)
        torch.testing.assert_close(gradient, results[0][1], rtol=0, atol=0)
    assert neuron.current_stream() == neuron.default_stream()
    assert neuron.current_device() == 0


def written_on_a_stream(x: Tensor) -> Tensor:
    x.add_(1)
    S.wait_stream(neuron.current_stream())
    with neuron.stream(S):
        y = x.mul_(2)
    neuron.current_stream().wait_stream(S)
    return y.sum()


def part_written_on_a_stream(x: Tensor) -> Tensor:
    S.wait_stream(neuron.current_stream())
    with neuron.stream(S):
        y = x[:1].mul_(2)
    neuron.current_stream().wait_stream(S)
    return y


@pytest.mark.parametrize("function", [written_on_a_stream, part_written_on_a_stream])
@pytest.mark.parametrize("dynamic", [False, True])
def test_an_argument_is_written_to_on_a_stream(
    function: Callable[[Tensor], Tensor], dynamic: bool
) -> None:
    compiled = torch.compile(function, backend="neuron", fullgraph=True, dynamic=dynamic)
    given = torch.arange(12.0).reshape(4, 3).sub(5).to("neuron")
    for rows in (4, 3, 2):
        there, here = given[:rows].clone(), given[:rows].clone()
        result = compiled(there)
        assert torch.equal(result, function(here))
        assert torch.equal(there, here)
        assert (result._base is there) == (function is part_written_on_a_stream)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_model_is_trained_between_events(*, dynamic: bool) -> None:
    """What a part of its graph keeps for another one may be a view of something larger."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 1, 8, dropout=0.3, batch_first=True).to("neuron")

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        neuron.Event().record()
        y = layer(x)
        neuron.Event().record()
        return torch.softmax(x, -1), y.atan()

    compiled = torch.compile(function, backend="neuron", dynamic=dynamic)
    x = torch.randn(2, 3, 8, device="neuron")
    gradients = []
    for each in (function, compiled):
        torch.manual_seed(1)
        first, second = each(x)
        total = first.square().sum() + second.sum()
        gradients.append(torch.autograd.grad(total, list(layer.parameters())))
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("function", UNTRAINABLE)
@pytest.mark.parametrize("backend", ["neuron", "aot_eager"])
def test_what_pytorch_cannot_train_on_two_streams(
    function: Callable[[Tensor], Tensor], backend: str
) -> None:
    x = torch.ones(4, 3, device="neuron", requires_grad=True)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=UNTRAINABLE[function]):
        torch.compile(function, backend=backend, fullgraph=True)(x)


def test_a_device_is_selected_while_it_is_traced() -> None:
    got: Tensor = torch.compile(on_another_core, backend="neuron", fullgraph=True)()
    assert got.device == torch.device("neuron:1")
    assert got.tolist() == [3, 3, 3]
    assert neuron.current_device() == 0


def test_an_event_is_recorded_where_the_function_says() -> None:
    begin, middle, end = (neuron.Event(enable_timing=True) for _ in range(3))

    def function(x: Tensor) -> Tensor:
        begin.record()
        y = x @ x
        middle.record()
        z = y @ x
        end.record()
        return z

    x = torch.ones(64, 64, device="neuron")
    with watched() as graphs:
        torch.compile(function, backend="neuron", fullgraph=True)(x)
    assert [graph.name.rpartition(".")[2] for graph in graphs] == ["part3", "part1"]
    neuron.synchronize()
    assert begin.elapsed_time(middle) > 0
    assert middle.elapsed_time(end) > 0
    assert begin.elapsed_time(end) == pytest.approx(
        begin.elapsed_time(middle) + middle.elapsed_time(end), abs=1e-2
    )


def test_work_runs_on_its_stream() -> None:
    seen: list[torch.Stream] = []

    @torch.library.custom_op("neuron_tests::which_stream", mutates_args=())
    def which_stream(x: Tensor) -> Tensor:
        seen.append(neuron.current_stream())
        return x.clone()

    which_stream.register_fake(torch.empty_like)

    def function(x: Tensor) -> Any:
        a = which_stream(x)
        with neuron.stream(S):
            b = which_stream(a)
        return which_stream(b)

    torch.compile(function, backend="neuron", fullgraph=True)(torch.ones(2, device="neuron"))
    assert seen == [neuron.default_stream(), S, neuron.default_stream()]


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin")
def test_what_dynamo_cannot_trace_ends_its_graph() -> None:
    def function(x: Tensor) -> Tensor:
        made = neuron.Stream()
        made.wait_stream(neuron.current_stream())
        neuron.set_device(0)
        with neuron.stream(made):
            y = x + 1
        made.synchronize()
        return y * 2

    x = torch.arange(3.0, device="neuron")
    assert torch.compile(function, backend="neuron")(x).tolist() == [2, 4, 6]


def test_generators_are_used_between_graphs() -> None:
    """Their state is read, set and forked within a compiled function, without a warning."""

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        state = torch.neuron.get_rng_state()  # type: ignore[attr-defined]
        first = torch.nn.functional.dropout(x)
        torch.neuron.set_rng_state(state)  # type: ignore[attr-defined]
        with torch.random.fork_rng(devices=[0], device_type="neuron"):
            torch.neuron.manual_seed(torch.neuron.initial_seed() + 1)  # type: ignore[attr-defined]
            between = torch.rand_like(x)
        return [first, between, torch.nn.functional.dropout(x)]

    torch.compiler.reset()
    x = torch.ones(4, 4, device="neuron")
    results = []
    for run in (function, torch.compile(function, backend="neuron")):
        torch.manual_seed(1)
        results.append(run(x))
    for expected, got in zip(*results, strict=True):
        assert torch.equal(expected, got)
    assert torch.equal(results[1][0], results[1][2])
