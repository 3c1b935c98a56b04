"""The queue of a core: calls return before their work is done, and nothing else changes."""

import os
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import torch_neuronx
from tests import interpreter
from tests.device.enqueued import PATIENCE, everything_enqueued
from torch_neuronx import _C

N = torch_neuronx.neuron


@pytest.fixture(autouse=True)
def _everything_is_enqueued() -> Iterator[None]:
    with everything_enqueued("strict"):
        yield


def test_the_thread_that_works_treats_denormals_as_the_one_that_called() -> None:
    host = torch.full((6, 5), 1e-39)
    there = host.to("neuron")
    N.synchronize()
    if not torch.set_flush_denormal(True):
        pytest.skip("PyTorch cannot flush denormals on this processor")
    try:
        flushed = there * 1.0
        flushed_host = host * 1.0
    finally:
        torch.set_flush_denormal(False)
    kept = there * 1.0
    assert flushed_host.view(torch.int32).eq(0).all()
    assert torch.equal(flushed.cpu().view(torch.int32), flushed_host.view(torch.int32))
    assert torch.equal(kept.cpu().view(torch.int32), host.view(torch.int32))


def _program(seed: int, device: str) -> list[torch.Tensor]:
    """Run some 40 operators, views, in-place writes and reads at random points among them."""
    choose = random.Random(seed)  # noqa: S311
    source = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    values = [torch.randn(6, 5, generator=source).to(device) for _ in range(3)]

    def step() -> torch.Tensor:
        a, b = choose.choice(values), choose.choice(values)
        makers: list[Callable[[], torch.Tensor]] = [
            lambda: a + b,
            lambda: a * 1.5 - b,
            lambda: torch.cat([a, b])[3:9],
            lambda: (a @ b.t())[:, :5],
            lambda: a[torch.tensor([0, 2, 1, 5, 4, 3], device=device)],
            lambda: a.t().contiguous().t(),
            lambda: torch.nn.functional.layer_norm(a, (5,)),
            lambda: torch.nn.functional.dropout(a, 0.5),
            lambda: a.softmax(1),
            lambda: torch.rand_like(a),
            lambda: a.sort(1).values,
            lambda: torch.where(a > b, a, -b),
            lambda: a.add_(b),
            lambda: a[1:3].mul_(0.5) if a.is_contiguous() else a,
            lambda: a.copy_(b),
            lambda: a.clone().fill_(b.sum().item()),
        ]
        return choose.choice(makers)()

    for _ in range(choose.randint(5, 40)):
        made = step()
        if made.shape == (6, 5):
            values.append(made)
        if len(values) > 6:
            del values[choose.randrange(len(values))]
    return [value.cpu() for value in values]


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_give_what_debug_mode_gives(seed: int) -> None:
    first = _program(seed, "neuron")  # many of its calls are the first of their kind
    queued = _program(seed, "neuron")
    N.set_eager_mode("debug")
    expected = _program(seed, "neuron")
    for ours in (first, queued):
        for one, other in zip(ours, expected, strict=True):
            assert torch.equal(one, other) or torch.equal(one.isnan(), other.isnan())


def test_calls_return_before_their_work_is_done() -> None:
    x = torch.randn(512, 512, device="neuron")
    _ = x @ x  # the first of its kind runs at once
    N.synchronize()
    N.reset_eager_stats()
    results = [x @ x for _ in range(8)]
    assert N.eager_stats()["enqueued"] == 8
    assert not N.current_stream().query()
    N.synchronize()
    assert N.current_stream().query()
    assert all(torch.equal(result, results[0]) for result in results)


def test_debug_mode_enqueues_nothing() -> None:
    N.set_eager_mode("debug")
    N.reset_eager_stats()
    x = torch.ones(100, device="neuron")
    for _ in range(3):
        x = x + x
    assert N.eager_stats()["enqueued"] == 0


def test_a_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="one of debug, strict, fused, but got 'fast'"):
        N.set_eager_mode("fast")


def _embed_out_of_range() -> torch.Tensor:
    table = torch.randn(4, 3, device="neuron")
    fine = torch.tensor([1, 2], device="neuron")
    _ = table.index_select(0, fine)
    wrong = torch.tensor([1, 9], device="neuron")
    N.synchronize()
    return table.index_select(0, wrong)


def _wait_for_event() -> None:
    event = torch.Event("neuron")
    event.record()
    event.synchronize()


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda t: t.cpu(), id="cpu"),
        pytest.param(lambda t: t[0, 0].item(), id="item"),
        pytest.param(str, id="print"),
        pytest.param(lambda _: N.synchronize(), id="synchronize"),
        pytest.param(lambda _: N.current_stream().synchronize(), id="stream"),
        pytest.param(lambda _: _wait_for_event(), id="event"),
    ],
)
def test_a_failure_is_told_once_where_somebody_waits(
    read: Callable[[torch.Tensor], object],
) -> None:
    wrong = _embed_out_of_range()
    with pytest.raises(
        IndexError,
        match=r"(?s)index out of range.*an error of aten::index_select\(float32\[4, 3\], "
        r"int64\[2\]\), which ran after its call had returned.*NEURON_LAUNCH_BLOCKING=1",
    ):
        read(wrong)
    assert (torch.ones(3, device="neuron") + 1).tolist() == [2, 2, 2]


@pytest.mark.slow
def test_a_failure_that_nobody_waited_for_is_told_at_the_end_of_the_program() -> None:
    program = """
import torch
from torch_neuronx import _C
_C.set_direct_elements(0)
torch.neuron.set_eager_mode("strict")
table = torch.zeros(4, 3, device="neuron")
for last in (2, 9):
    rows = torch.tensor([1, last], device="neuron")
    torch.neuron.synchronize()
    table.index_select(0, rows)
print("issued")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "issued\n"
    assert "index out of range" in done.stderr
    assert "an error of aten::index_select(float32[4, 3], int64[2])" in done.stderr


def test_launch_blocking_keeps_the_mode_at_debug() -> None:
    program = """
import warnings, torch
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    torch.neuron.set_eager_mode("strict")
print(torch.neuron.get_eager_mode(), "|", *(each.message for each in told))
"""
    done = interpreter.run(
        ["-c", program],
        env=os.environ | {"NEURON_LAUNCH_BLOCKING": "1", "TORCH_NEURONX_EAGER_MODE": "strict"},
    )
    assert done.stdout == (
        "debug | NEURON_LAUNCH_BLOCKING=1 keeps the eager mode at debug, "
        "so 'strict' has no effect\n"
    )


def test_operators_that_wait_are_counted_with_the_reason() -> None:
    x = torch.tensor([0.0, 1.0, 2.0], device="neuron")
    N.reset_eager_stats()
    for _ in range(3):
        x.nonzero()
    assert N.eager_stats()["at_the_call"] == {
        "aten::nonzero": {"the shape of its result depends on values": 3}
    }


def test_a_late_failure_names_the_line_of_the_call_if_that_is_wanted(tmp_path: Path) -> None:
    program = """
import torch
from torch_neuronx import _C
_C.set_direct_elements(0)
table = torch.zeros(4, 3, device="neuron")
for last in (2, 9):
    rows = torch.tensor([1, last], device="neuron")
    torch.neuron.synchronize()
    table.index_select(0, rows)
try:
    torch.neuron.synchronize()
except IndexError as error:
    print(error)
"""
    path = tmp_path / "user.py"
    path.write_text(program)
    done = interpreter.run(
        [str(path)],
        env=os.environ
        | {"TORCH_NEURONX_EAGER_MODE": "strict", "TORCH_NEURONX_ENABLE_STACK_TRACE": "1"},
    )
    assert (
        f"This is an error of aten::index_select(float32[4, 3], int64[2]), called at {path}:9: "
        "table.index_select(0, rows), which ran after its call had returned; calls "
        "behind it did not run. NEURON_LAUNCH_BLOCKING=1 runs" in done.stdout
    )


@pytest.mark.parametrize("mode", ["debug", "strict"])
@pytest.mark.parametrize(
    ("waits", "call"),
    [
        pytest.param("aten::_local_scalar_dense", lambda x: x.sum().item(), id="item"),
        pytest.param("aten::_local_scalar_dense", lambda x: bool((x > 0).any()), id="bool"),
        pytest.param("aten::nonzero", lambda x: x.nonzero(), id="nonzero"),
        pytest.param("aten::masked_select", lambda x: x.masked_select(x > 0), id="select"),
        pytest.param("aten::index.Tensor", lambda x: x[x > 0], id="mask"),
        pytest.param("aten::unique_dim", lambda x: x.unique(dim=0), id="unique"),
        pytest.param("aten::copy_", lambda x: x.cpu(), id="cpu"),
        pytest.param("aten::copy_", lambda x: x.copy_(torch.zeros(20_000)), id="much"),
        pytest.param("", lambda x: x[:50].copy_(torch.zeros(50)), id="little"),
        pytest.param("", lambda x: x.cos() @ x, id="product"),
        pytest.param("", lambda x: x[torch.tensor([1, 2], device="neuron")], id="index"),
        pytest.param(
            "",
            lambda x: x.copy_(torch.zeros(20_000).pin_memory(), non_blocking=True),
            id="pinned",
        ),
    ],
)
def test_operations_that_wait_for_values_are_told(
    mode: str, waits: str, call: Callable[[torch.Tensor], object]
) -> None:
    x = torch.ones(20_000, device="neuron")
    N.set_eager_mode(mode)
    try:
        N.set_sync_debug_mode("warn")
        assert N.get_sync_debug_mode() == 1
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            call(x)
        N.set_sync_debug_mode(2)
        if waits:
            assert f"{waits} makes the host wait" in str(told[0].message)
            with pytest.raises(RuntimeError, match=f"{waits} makes the host wait for the Neuron"):
                call(x)
        else:
            assert not told
            call(x)
    finally:
        N.set_sync_debug_mode("default")


def test_a_sync_debug_mode_that_does_not_exist_is_refused() -> None:
    for wrong in ("loud", 3):
        with pytest.raises(ValueError, match="one of default, warn, error or 0, 1, 2, but got"):
            N.set_sync_debug_mode(wrong)


def test_calls_behind_a_failure_do_not_run() -> None:
    total = torch.zeros(5, device="neuron")
    total.add_(1)
    total.add_(1)
    N.synchronize()
    _embed_out_of_range()
    total.add_(1)
    with pytest.raises(IndexError):
        N.synchronize()
    assert total.tolist() == [2] * 5


def test_wrong_shapes_are_refused_at_the_call() -> None:
    x = torch.randn(300, 300, device="neuron")
    _ = x @ x
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        _ = x @ torch.randn(3, 3, device="neuron")


def test_a_number_of_the_host_may_change_after_the_call() -> None:
    x = torch.randn(600, 600, device="neuron")
    number = torch.tensor(3.0)
    _ = torch.add(x, number)
    product = x @ x
    result = torch.add(x, number)
    number.fill_(100)
    assert torch.equal(result.cpu(), x.cpu() + 3)
    assert product.shape == (600, 600)


def test_memory_goes_to_the_next_call_at_once() -> None:
    x = torch.randn(1 << 18, device="neuron")
    for _ in range(3):
        y = x * 2 + 1
    del y
    N.synchronize()
    N.reset_peak_memory_stats()
    before = N.memory_allocated()
    y = x
    for _ in range(200):
        y = y * 0.5 + 1
    expected = x.cpu()
    for _ in range(200):
        expected = expected * 0.5 + 1
    assert torch.equal(y.cpu(), expected)
    assert N.max_memory_allocated() - before <= 3 * (1 << 20) + (64 << 10)


def test_a_call_has_again_what_it_freed() -> None:
    """ATen's gradient of dropout makes three tensors; the first is gone before the last."""
    grad = torch.randn(1 << 18, device="neuron")
    mask = torch.rand(1 << 18, device="neuron") < 0.5
    peaks = {}
    for mode in ("debug", "strict"):
        with N.eager_mode(mode):
            for _ in range(2):
                torch.ops.aten.native_dropout_backward(grad, mask, 2.0)
            N.synchronize()
            N.reset_peak_memory_stats()
            before = N.memory_allocated()
            result = torch.ops.aten.native_dropout_backward(grad, mask, 2.0)
            assert torch.equal(result.cpu(), grad.cpu() * mask.cpu() * 2)
            peaks[mode] = N.max_memory_allocated() - before
            del result
    assert peaks["strict"] == peaks["debug"]
    assert peaks["debug"] < 3 * grad.nbytes


def test_emptying_the_cache_waits_for_readers_of_freed_memory() -> None:
    a = torch.randn(700, 700, device="neuron")
    b = torch.randn(700, 700, device="neuron")
    expected = (a @ b).cpu()
    N.synchronize()
    results = []
    for _ in range(4):
        copy = b.clone()
        results.append(a @ copy)
        del copy
        N.empty_cache()
    assert all(torch.equal(result.cpu(), expected) for result in results)


GIVING_BACK = """
import threading
import time
import torch
from tests.device.enqueued import everything_enqueued, held, regions_soon, until_fused

N = torch.neuron
GIVEN = 48 << 20  # bytes of memory that is free

def empty_cache():
    before = N.memory_reserved()
    N.empty_cache()
    assert N.memory_reserved() <= before - GIVEN

def allocate():
    tries = N.memory_stats()["num_alloc_retries"]
    allowed = N.memory_reserved() + (32 << 20)
    N.set_per_process_memory_fraction(allowed / N.mem_get_info()[1])
    bytes_of(GIVEN + (16 << 20))
    N.set_per_process_memory_fraction(1.0)
    assert N.memory_stats()["num_alloc_retries"] == tries + 1

def bytes_of(size):
    return torch.empty(size, dtype=torch.uint8, device="neuron")

def step():
    return (x * 1.5 + x).relu() - 1

def release_soon(work):  # what a queue waits for may need Python
    time.sleep(0.2)
    work.set()

def while_calls_wait(way):
    given, kept = bytes_of(GIVEN + (4 << 20)), bytes_of(4 << 20)
    del given  # it lies between memory that is in use
    with held() as work:
        y = step()
        threading.Thread(target=release_soon, args=(work,)).start()
        way()
    assert torch.equal(y.cpu(), expected)

def behind_the_calls():
    b = torch.randn(2048, 2048, device="neuron")
    for _ in range(2):
        product = (b @ b.clone()).cpu()
    N.empty_cache()
    with held() as first:
        emptier = threading.Thread(target=N.empty_cache)
        emptier.start()
        time.sleep(0.2)  # it waits for what is enqueued now
        copy = b.clone()
        with held():
            got = b @ copy
            del copy
            first.set()
            emptier.join()
    assert torch.equal(got.cpu(), product)

for mode in ("strict", "fused"):
    with everything_enqueued(mode), regions_soon():
        x = torch.randn(512, 512, device="neuron")
        expected = until_fused(step).cpu() if mode == "fused" else step().cpu()
        for way in (empty_cache, allocate):
            print(mode, way.__name__, flush=True)
            while_calls_wait(way)
print("behind the calls", flush=True)
with everything_enqueued("strict"):
    behind_the_calls()
print("done")
"""


def test_memory_is_given_back_while_calls_wait() -> None:
    """Whoever waits for calls leaves open what they need: the arena's lock, and Python's.

    What is freed meanwhile stays: it has readers behind the calls that are waited for. A program
    of its own, because it would hang.
    """
    done = interpreter.run(
        ["-c", GIVING_BACK],
        timeout=2 * PATIENCE,
    )
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr


def test_writes_between_products_reach_the_right_ones() -> None:
    a = torch.randn(256, 256, device="neuron")
    w = torch.randn(256, 256, device="neuron")
    weights = []
    results = []
    for _ in range(6):
        results.append(a @ w)
        weights.append(w.clone())
        w.mul_(0.5)
    for result, weight in zip(results, weights, strict=True):
        torch.testing.assert_close(result.cpu(), a.cpu() @ weight.cpu(), rtol=1e-4, atol=1e-4)


def test_threads_share_the_order_of_a_core() -> None:
    x = torch.randn(64, 64, device="neuron")
    expected = (x @ x + 1).cpu()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                torch.testing.assert_close((x @ x + 1).cpu(), expected)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def _busy(milliseconds: int = 40) -> torch.Tensor:
    """Enqueue work of about so long."""
    x = torch.randn(768, 768, device="neuron")
    _ = x @ x
    N.synchronize()
    for _ in range(milliseconds // 2):
        x = x @ x
    return x


def test_a_copy_from_pinned_memory_waits_in_the_queue() -> None:
    host = torch.arange(300_000, dtype=torch.float32).pin_memory()
    device = torch.empty(300_000, device="neuron")
    _busy()
    N.reset_eager_stats()
    device.copy_(host, non_blocking=True)
    doubled = device * 2
    back = torch.empty(300_000).pin_memory()
    back.copy_(device, non_blocking=True)
    assert N.eager_stats()["waits"] <= 1  # the multiplication is the first of its kind
    N.synchronize()
    assert torch.equal(back, host)
    assert torch.equal(doubled.cpu(), host * 2)


def test_pinned_memory_has_no_next_owner_while_a_copy_waits() -> None:
    def pinned(value: float) -> torch.Tensor:
        return torch.full((100_000,), value).pin_memory()

    device = torch.empty(100_000, device="neuron")
    host = pinned(1.0)
    _busy()
    device.copy_(host, non_blocking=True)
    del host
    others = [pinned(2.0) for _ in range(3)]
    assert device.cpu().eq(1.0).all()
    assert all(other.eq(2.0).all() for other in others)


def test_few_bytes_of_the_host_are_read_at_the_call() -> None:
    host = torch.ones(1000)
    device = torch.empty(1000, device="neuron")
    _busy()
    N.reset_eager_stats()
    device.copy_(host)
    host.fill_(7)
    stats = N.eager_stats()
    assert (stats["enqueued"], stats["waits"], stats["at_the_call"]) == (1, 0, {})
    assert device.cpu().eq(1).all()


def test_a_blocking_copy_of_much_is_done_at_the_call() -> None:
    host = torch.ones(100_000)
    device = torch.empty(100_000, device="neuron")
    _busy()
    device.copy_(host, non_blocking=True)  # not pinned
    assert not _C.queue_busy()
    host.fill_(7)
    assert device.cpu().eq(1).all()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_an_optimizers_step_waits_for_nothing(kind: type[torch.optim.Optimizer]) -> None:
    def steps() -> list[torch.Tensor]:
        torch.manual_seed(3)
        parameters = [
            torch.randn(n, 30, device="neuron", requires_grad=True) for n in range(1, 200, 9)
        ]
        optimizer = kind(parameters, lr=0.1, foreach=True)  # type: ignore[call-arg]
        for _ in range(3):
            optimizer.zero_grad()
            loss = sum(parameter.square().sum() for parameter in parameters)
            torch.as_tensor(loss).backward()
            optimizer.step()
        N.reset_eager_stats()
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        after = [torch.add(parameter, 0) for parameter in parameters]
        reasons = {each for row in N.eager_stats()["at_the_call"].values() for each in row}
        assert reasons <= {"it is the first of its kind"}
        return [each.detach().cpu() for each in after]

    queued = steps()
    N.set_eager_mode("debug")
    for one, other in zip(queued, steps(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [None, torch.int64, torch.float32, torch.int32])
def test_ranges_of_new_lengths_do_not_wait(dtype: torch.dtype | None) -> None:
    made = []
    _busy()
    N.reset_eager_stats()
    for end in range(3, 40, 5):
        made.append(torch.arange(1, end, 2, dtype=dtype, device="neuron"))
        made.append(torch.arange(0.5, end, 1.5, dtype=dtype, device="neuron"))
    assert N.eager_stats()["at_the_call"] == {}
    assert N.eager_stats()["enqueued"] == len(made)
    for i, end in enumerate(range(3, 40, 5)):
        assert torch.equal(made[2 * i].cpu(), torch.arange(1, end, 2, dtype=dtype))
        assert torch.equal(made[2 * i + 1].cpu(), torch.arange(0.5, end, 1.5, dtype=dtype))


def test_attention_is_enqueued() -> None:
    q = torch.randn(1, 2, 64, 16, device="neuron")
    attend = torch.nn.functional.scaled_dot_product_attention
    expected = attend(q, q, q)
    N.reset_eager_stats()
    found = attend(q, q, q)
    assert N.eager_stats()["at_the_call"] == {}
    assert torch.equal(found.cpu(), expected.cpu())


@pytest.mark.parametrize("direct", [0, 2000])
def test_threads_that_wait_and_threads_that_do_not_share_memory(direct: int) -> None:
    """Memory that one thread frees has readers in the queue when another is given it."""
    _C.set_direct_elements(direct)
    failures: list[str] = []

    def work(number: int) -> None:
        choose = random.Random(number)  # noqa: S311
        for _ in range(120):
            n = choose.randrange(1, 4000)
            x = torch.full((n,), float(number), device="neuron")
            doubled = x * 2
            del x
            kinds: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
                "enqueued": lambda t: (t + 1).sum(),
                "by value": lambda t: t[t > 0].sum() + t.nonzero().shape[0],
                "new": lambda t: (
                    (t[: choose.randrange(1, len(t) + 1)] * 1).mean() * len(t) + len(t)
                ),
                "list": lambda t: torch._foreach_add([t], 1.0)[0].sum(),
            }
            kind = choose.choice(list(kinds))
            total = kinds[kind](doubled)
            del doubled
            if (found := total.item()) != pytest.approx((2 * number + 1) * n):
                failures.append(f"{kind} of {n}: {found}, not {(2 * number + 1) * n}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_operators_that_a_compiler_runs_while_it_traces() -> None:
    """They are called under PyTorch's Python dispatcher, which belongs to the calling thread."""

    @torch.compile(backend="neuron")
    def compiled(x: torch.Tensor) -> torch.Tensor:
        hot: torch.Tensor = torch.nn.functional.one_hot(torch.tensor([0], device=x.device), 2)
        return hot + x

    _busy()
    for _ in range(2):
        torch.compiler.reset()
        assert compiled(torch.zeros(1, 2, device="neuron")).tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("wrong", [(4, 1), (3, 2)])
def test_numbers_are_refused_at_the_call(wrong: tuple[int, int]) -> None:
    experts = torch.tensor([0, 3, 3, 1, 7, 0, 9], device="neuron")
    for _ in range(2):
        torch.histc(experts, bins=3, min=1, max=4)
    with pytest.raises(RuntimeError, match="max must be larger than min"):
        torch.histc(experts, bins=3, min=wrong[0], max=wrong[1])


def test_compiled_functions_are_enqueued() -> None:
    @torch.compile(backend="neuron")
    def compiled(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = torch.relu(x @ y) * 2
        y.add_(1)
        return z.softmax(1), z

    x = torch.randn(64, 64, device="neuron")
    weights = torch.randn(64, 64, device="neuron")
    expected = []
    for mode in ("debug", "strict"):
        N.set_eager_mode(mode)
        y = weights.clone()
        compiled(x, y)
        if mode == "strict":
            _busy()
        N.reset_eager_stats()
        results = [compiled(x, y) for _ in range(3)]
        if mode == "strict":
            assert _C.queue_busy()
            assert N.eager_stats()["waits"] == 0
            assert N.eager_stats()["enqueued"] == 3
        expected.append([each.cpu() for row in results for each in row] + [y.cpu()])
    for one, other in zip(*expected, strict=True):
        assert torch.equal(one, other)


def test_an_index_out_of_range_in_a_compiled_function_is_told_later() -> None:
    @torch.compile(backend="neuron")
    def compiled(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return table[rows] * 2

    table = torch.ones(4, 3, device="neuron")
    compiled(table, torch.tensor([0, 1], device="neuron"))
    wrong = torch.tensor([0, 7], device="neuron")
    _busy()
    compiled(table, wrong)
    with pytest.raises(IndexError, match=r"(?s)out of.*This is an error of program graph"):
        N.synchronize()


def test_event_times_are_those_of_the_work() -> None:
    x = torch.randn(900, 900, device="neuron")
    _ = x @ x
    start, end = (torch.Event("neuron", enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(5):
        _ = x @ x
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) > 0.1


def test_gradients_are_those_of_debug_mode() -> None:
    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(20, 40), torch.nn.GELU(), torch.nn.Dropout(0.3), torch.nn.Linear(40, 5)
        ).to("neuron")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(4):
            loss = model(torch.randn(16, 20, device="neuron")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    queued = gradients()
    N.set_eager_mode("debug")
    for one, other in zip(queued, gradients(), strict=True):
        assert torch.equal(one, other)
