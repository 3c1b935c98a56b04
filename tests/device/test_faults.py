"""Bad input and bad moments: a clear exception, the process alive, the statistics exact."""

import gc
import threading
import time
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.device.enqueued import to_the_end
from torch_neuronx import neuron

COUNT = neuron.device_count()
OUT_OF_RANGE = "The device index is out of range. It must be in \\[0, 4\\), but got {}."


def test_the_machine_is_the_default_one() -> None:
    assert COUNT == 4


@pytest.mark.parametrize("index", [4, 5, 127])
@pytest.mark.parametrize(
    "use",
    [
        lambda i: torch.ones(2, device=f"neuron:{i}"),
        lambda i: torch.ones(2).to(f"neuron:{i}"),
        neuron.set_device,
        torch.accelerator.set_device_index,
        neuron.get_device_properties,
        neuron.synchronize,
        lambda i: neuron.Stream(f"neuron:{i}"),
        lambda i: torch.Generator(f"neuron:{i}"),
        lambda i: torch.accelerator.memory_stats(f"neuron:{i}"),
        neuron.memory_allocated,
        neuron.mem_get_info,
        neuron.get_rng_state,
    ],
    ids=[
        "ones",
        "to",
        "set_device",
        "set_device_index",
        "properties",
        "synchronize",
        "Stream",
        "Generator",
        "memory_stats",
        "memory_allocated",
        "mem_get_info",
        "get_rng_state",
    ],
)
def test_a_device_that_does_not_exist(use: Callable[[int], object], index: int) -> None:
    with pytest.raises(RuntimeError, match=OUT_OF_RANGE.format(index)):
        use(index)
    assert neuron.current_device() == 0


def test_wrong_kind_of_device() -> None:
    with pytest.raises(ValueError, match="expected a neuron device, but got: cpu"):
        neuron.set_device("cpu")
    with pytest.raises(TypeError, match="but got: float"):
        neuron.set_device(1.5)  # type: ignore[arg-type]


def test_sizes_that_no_machine_has() -> None:
    with pytest.raises(RuntimeError, match=r"overflow|too large|out of memory"):
        torch.empty(1 << 62, device="neuron")
    with pytest.raises(RuntimeError, match="negative dimension"):
        torch.empty(-1, device="neuron")


def test_allocation_beyond_the_capacity_again_and_again() -> None:
    gc.collect()
    before = torch.accelerator.memory_allocated()
    for _ in range(20):
        with pytest.raises(torch.OutOfMemoryError, match="NEURON out of memory"):
            torch.empty(30 << 30, dtype=torch.uint8, device="neuron")
    assert torch.accelerator.memory_allocated() == before
    assert torch.ones(3, device="neuron").sum().item() == 3


def test_filling_a_small_core_up_to_the_last_block(run_python: Callable[..., str]) -> None:
    """Nothing is lost: after the cached blocks are returned the failed allocation fits."""
    code = """
import torch
total = torch.neuron.get_device_properties(0).total_memory
part = total // 8
held = [torch.empty(part, dtype=torch.uint8, device="neuron") for _ in range(7)]
try:
    torch.empty(2 * part, dtype=torch.uint8, device="neuron")
except torch.OutOfMemoryError as error:
    print("refused", "Tensors" in str(error))
held.clear()
x = torch.empty(6 * part, dtype=torch.uint8, device="neuron")
print(torch.neuron.memory_stats()["num_ooms"], x.numel() == 6 * part)
"""
    assert run_python(code).split() == ["refused", "True", "1", "True"]


def test_device_code_after_fork(run_python: Callable[..., str]) -> None:
    code = """
import os, warnings, torch
warnings.simplefilter("ignore")
x = torch.ones(4, device="neuron")
pid = os.fork()
if pid == 0:
    told = 0
    for use in (lambda: x + 1, lambda: torch.ones(1, device="neuron"), torch.neuron.init,
                torch.neuron.synchronize, lambda: x.cpu(), lambda: torch.neuron.set_device(1)):
        try:
            use()
        except RuntimeError as error:
            told += "Cannot re-initialize neuron in forked subprocess" in str(error) and (
                "'spawn'" in str(error))
    bad = torch.neuron._is_in_bad_fork()
    torch.manual_seed(1)
    torch.ones(2) + 1
    os._exit(told if bad else 99)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(status, (x + 1).sum().item())
"""
    assert run_python(code).split() == ["6", "8.0"]


def test_fork_before_the_first_use_is_fine(run_python: Callable[..., str]) -> None:
    code = """
import os, torch
assert torch.neuron.is_available() and torch.neuron.device_count() == 4
pid = os.fork()
if pid == 0:
    os._exit(int(torch.ones(3, device="neuron").sum().item()))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), torch.ones(4, device="neuron").sum().item())
"""
    assert run_python(code).split() == ["3", "4.0"]


def test_interrupt_in_the_middle_of_training(run_python: Callable[..., str]) -> None:
    code = """
import _thread, gc, signal, threading, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).to("neuron")
optimizer = torch.optim.AdamW(model.parameters())
def step():
    loss = model(torch.randn(64, 256, device="neuron")).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
step()
optimizer.zero_grad(); gc.collect()
before = torch.neuron.memory_allocated()
interrupted = 0
for delay in (0.01, 0.05, 0.1, 0.2):
    timer = threading.Timer(delay, _thread.interrupt_main)
    try:
        timer.start()
        for _ in range(100_000):
            step()
    except KeyboardInterrupt:
        interrupted += 1
    timer.join()
    optimizer.zero_grad(); gc.collect()
    assert torch.neuron.memory_allocated() == before
step()
print(interrupted)
"""
    assert run_python(code).strip() == "4"


@pytest.mark.slow
def test_a_program_that_ends_right_after_backward(run_python: Callable[..., str]) -> None:
    """The threads of autograd must not want the interpreter while it is taken down."""
    code = """
import torch
x = torch.zeros(100, device="neuron", requires_grad=True)
x.clone().backward(torch.ones_like(x))
"""
    for _ in range(5):  # a race: without care four of five runs abort
        run_python(code, new=True)


def test_an_exception_inside_backward() -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            return x.clone()

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor) -> None:  # noqa: ARG004
            raise ValueError("from the user's backward")

    gc.collect()
    before = torch.accelerator.memory_allocated(1)
    x = torch.ones(1000, device="neuron:1", requires_grad=True)
    y = (Failing.apply(x.exp()) * 2).sum()  # type: ignore[no-untyped-call]
    with pytest.raises(ValueError, match="from the user's backward"):
        y.backward()
    del x, y
    # autograd's thread of the device lets go of the graph after it has passed the error on.
    deadline = time.monotonic() + 30
    while torch.accelerator.memory_allocated(1) != before and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert torch.accelerator.memory_allocated(1) == before


def test_many_threads_on_many_devices() -> None:
    gc.collect()
    before = [torch.accelerator.memory_allocated(i) for i in range(COUNT)]
    sums: dict[int, float] = {}
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            neuron.set_device(number % COUNT)
            total = torch.zeros((), device="neuron", dtype=torch.float64)
            for i in range(50):
                x = torch.full((1 + 37 * i,), float(number), device="neuron")
                total += (x * 2).sum()
                assert x.device.index == number % COUNT
            neuron.synchronize()
            sums[number] = total.item()
        except BaseException as error:  # noqa: BLE001 - reported below, in the test's thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    elements = sum(1 + 37 * i for i in range(50))
    assert sums == {i: 2.0 * i * elements for i in range(16)}
    gc.collect()
    assert [torch.accelerator.memory_allocated(i) for i in range(COUNT)] == before


def test_kernel_errors_are_those_of_pytorch() -> None:
    x = torch.ones(3, 4, device="neuron")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        x @ x
    with pytest.raises(IndexError, match="Dimension out of range"):
        x.sum(dim=5)
    with pytest.raises(IndexError, match="out of range"):
        to_the_end(nn.functional.embedding, torch.tensor([7], device="neuron"), x)
    with pytest.raises(IndexError, match="Target 9 is out of bounds"):
        to_the_end(nn.functional.nll_loss, x, torch.tensor([9, 0, 0], device="neuron"))
    with pytest.raises(RuntimeError, match="Specify the reduction dim"):
        torch.empty(0, device="neuron").max()


def test_a_failed_import_of_the_core_does_not_break_torch(run_python: Callable[..., str]) -> None:
    code = """
import warnings, torch
warnings.simplefilter("ignore")
print(torch.ones(2).sum().item(), torch.accelerator.is_available())
try:
    import torch_neuronx
except RuntimeError as error:
    print("bogus" in str(error))
"""
    shown = run_python(code, new=True, NEURON_PLATFORM_TARGET_OVERRIDE="bogus").split()
    assert shown == ["2.0", "False", "True"]
