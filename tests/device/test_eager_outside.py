"""What programs do around operators, while these are enqueued: hooks, threads, forks, exits."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Generator, Iterator

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import torch_neuronx
from tests import interpreter
from tests.device.enqueued import everything_enqueued

N = torch_neuronx.neuron


@pytest.fixture(autouse=True, params=["strict", "fused"])
def _everything_is_enqueued(request: pytest.FixtureRequest) -> Iterator[None]:
    with everything_enqueued(request.param):
        yield


def _model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 200), torch.nn.GELU(), torch.nn.Dropout(0.3), torch.nn.Linear(200, 5)
    ).to("neuron")


def _train(hooks: bool, checkpoints: bool) -> list[torch.Tensor]:
    model = _model()
    seen = []
    if hooks:
        for parameter in model.parameters():
            parameter.register_hook(lambda grad: grad * 0.5)
            parameter.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.norm()))
        model[0].register_forward_hook(lambda *args: args[-1] + 1)
        model[3].register_full_backward_hook(lambda *args: (args[1][0] * 2,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(5):
        x = torch.randn(16, 20, device="neuron", requires_grad=True)
        y = checkpoint(model, x, use_reentrant=False) if checkpoints else model(x)
        optimizer.zero_grad()
        y.square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return [each.detach().cpu() for each in [*model.parameters(), *seen]]


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("hooks", [False, True])
def test_training_is_that_of_debug_mode(hooks: bool, checkpoints: bool) -> None:
    queued = _train(hooks, checkpoints)
    N.set_eager_mode("debug")
    for one, other in zip(queued, _train(hooks, checkpoints), strict=True):
        assert torch.equal(one, other)


def test_anomaly_mode_finds_the_operator() -> None:
    def step() -> None:
        x = torch.zeros(300, device="neuron", requires_grad=True)
        (x.sqrt() * 0).sum().backward()

    step()
    step()
    with (
        pytest.warns(UserWarning, match="Error detected in SqrtBackward0"),
        pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan values"),
        torch.autograd.set_detect_anomaly(True),
    ):
        step()


def test_gradcheck() -> None:
    x = torch.randn(4, 3, dtype=torch.float64, device="neuron", requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: (t.tanh() @ t.t()).exp().sum(), x)


def test_saved_tensor_hooks() -> None:
    def gradient() -> torch.Tensor:
        x = torch.linspace(0, 1, 4000, device="neuron", requires_grad=True)
        with torch.autograd.graph.save_on_cpu():
            y = (x.exp() * x).sum()
        y.backward()
        assert x.grad is not None
        return x.grad.cpu()

    first = gradient()
    assert torch.equal(gradient(), first)
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        assert torch.equal(gradient(), first)


class Squares(torch.utils.data.Dataset[torch.Tensor]):
    """Numbers and their squares, on the host."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((300,), float(i)) ** 2


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_with_pinned_memory_feeds_the_queue(workers: int) -> None:
    loader = torch.utils.data.DataLoader(
        Squares(),
        batch_size=5,
        num_workers=workers,
        pin_memory=True,
        multiprocessing_context="spawn" if workers else None,
    )
    for _ in range(2):
        total = torch.zeros(300, device="neuron")
        weight = torch.eye(300, device="neuron")
        for batch in loader:
            total += (batch.to("neuron", non_blocking=True) @ weight).sum(0)
        assert total[0].item() == sum(i * i for i in range(40))


def test_a_loader_that_prefetches_on_a_stream() -> None:
    side = N.Stream()
    batches = [torch.full((100, 300), float(i)).pin_memory() for i in range(20)]

    def prefetched() -> Iterator[torch.Tensor]:
        ready = None
        for batch in batches:
            with N.stream(side):
                upcoming = batch.to("neuron", non_blocking=True)
            if ready is not None:
                yield ready
            N.current_stream().wait_stream(side)
            upcoming.record_stream(N.current_stream())
            ready = upcoming
        assert ready is not None
        yield ready

    for _ in range(3):
        means = [(batch * 2).mean() for batch in prefetched()]
        assert [mean.item() for mean in means] == [2.0 * i for i in range(20)]


def test_threads_with_streams_of_their_own() -> None:
    failures: list[object] = []

    def work(number: int) -> None:
        try:
            stream = N.Stream()
            with N.stream(stream):
                for turn in range(30):
                    n = 1000 + 37 * ((number + turn) % 11)
                    x = torch.full((n,), float(number), device="neuron")
                    y = (x * 2 + 1).cumsum(0)
                    del x
                    if y[-1].item() != n * (2 * number + 1):
                        failures.append((number, turn, y[-1].item()))
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_generators_and_exceptions_leave_the_queue_alone() -> None:
    def numbers() -> Generator[torch.Tensor]:
        x = torch.ones(1000, device="neuron")
        while True:
            x = x * 1.5
            yield x

    made = numbers()
    values = [next(made) for _ in range(5)]

    def fails() -> None:
        with N.stream(N.Stream()):
            _ = values[0] + 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    made.close()
    assert [value[0].item() for value in values] == [1.5**k for k in range(1, 6)]


def _program(
    body: str, *, new: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    start = f"""
import os, signal, sys, threading, time, torch
from torch_neuronx import _C
_C.set_direct_elements(0)
torch.neuron.set_eager_mode({N.get_eager_mode()!r})
x = torch.randn(700, 700, device="neuron")
def busy():
    y = x
    for _ in range(40):
        y = (y @ x).softmax(1)
    return y
_ = busy()
torch.neuron.synchronize()
"""
    return interpreter.run(["-c", start + body], env=os.environ | environment, new=new)


@pytest.mark.slow
@pytest.mark.every(3)
@pytest.mark.parametrize(
    "end",
    [
        "",
        "sys.exit(0)",
        "del x, y",
        "torch.set_grad_enabled(False)",
        "torch.inference_mode().__enter__()",
        "torch.neuron.set_stream(torch.neuron.Stream()); y = busy()",
        "threading.Thread(target=lambda: (time.sleep(0.1), busy())).start()",
        "threading.Thread(target=lambda: (busy(), time.sleep(30)), daemon=True).start()",
        "import atexit; atexit.register(lambda: print(busy().sum().isfinite().item()))",
        "class Late:\n def __del__(self): busy()\nlate = Late()",
    ],
)
def test_the_interpreter_ends_with_work_in_flight(end: str) -> None:
    done = _program(f"y = busy()\nprint('issued', flush=True)\n{end}", new=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("issued\n")
    assert done.stderr == ""


def test_a_child_is_forked_with_work_in_flight() -> None:
    done = _program("""
y = busy()
child = os.fork()
if child == 0:
    try:
        torch.ones(2, device="neuron")
    except RuntimeError as error:
        print("spawn" in str(error), (torch.ones(3) + 1).tolist(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(bool(y.isfinite().all()))
""")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "True [2.0, 2.0, 2.0]\nTrue\n"


@pytest.mark.slow
def test_an_interrupt_while_the_host_waits() -> None:
    done = _program("""
held = _C.TestCompletion()
held.add_to(torch.neuron.current_stream())
y = busy()
def interrupt():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.3)
    held.set()
threading.Thread(target=interrupt).start()
try:
    y.cpu()
    time.sleep(1)
except KeyboardInterrupt:
    print("interrupted")
print(bool(busy().isfinite().all()))
""")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "interrupted\nTrue\n"


def test_a_signal_ends_the_process_at_once() -> None:
    start = time.monotonic()
    done = _program("""
held = _C.TestCompletion()
held.add_to(torch.neuron.current_stream())
y = busy()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
""")
    assert done.returncode == -signal.SIGTERM
    assert time.monotonic() - start < 60
