"""Faults on demand: each does what its row of the table says, where and when it is asked for."""

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from neuronxcc import faults as compiler
from neuronxcc.status import Status, status_in
from torch_neuronx import _C, neuron, testing
from torch_neuronx.testing import FAULTS, FaultError, inject
from torch_neuronx.testing.inject import parse
from torch_neuronx.testing.table import Action, Point

DEVICE = torch.device("neuron:1")
MODES = ("debug", "strict", "fused")


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    """Errors come up at the call, but for the tests that choose another mode."""
    mode = neuron.get_eager_mode()
    neuron.set_eager_mode("debug")
    yield
    neuron.set_eager_mode(mode)
    x = torch.ones(4, device=DEVICE)
    assert (x + x).sum().item() == 8


def add(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch.neuron.synchronize(DEVICE)  # type: ignore[attr-defined]
    return y


RAISING = [f for f in FAULTS.values() if f.action is Action.RAISE and f.point is Point.EXECUTION]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", RAISING, ids=lambda f: f.name)
def test_errors_have_their_documented_status(fault: testing.Fault, mode: str) -> None:
    neuron.set_eager_mode(mode)
    x = torch.ones(1 << 16, device=DEVICE)
    torch.neuron.synchronize(DEVICE)  # type: ignore[attr-defined]
    with inject(fault.name, match="add") as injected:
        with pytest.raises(torch.AcceleratorError) as caught:
            add(x)
        assert status_in(str(caught.value)) is fault.status
        assert caught.value.error_code == fault.status  # type: ignore[attr-defined]
        assert "aten::add" in str(caught.value)
        assert "asked for" in str(caught.value)
    assert (injected.reached, injected.acted) == (1, 1)
    assert add(x)[0].item() == 2


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, range(1, 13)),
        ({"at": 3}, [3]),
        ({"at": [2, 5, 11]}, [2, 5, 11]),
        ({"every": 4}, [4, 8, 12]),
        ({"every": 5, "at": 2}, [2, 5, 10]),
        ({"every": 2, "times": 3}, [2, 4, 6]),
        ({"times": 1}, [1]),
        ({"at": 4, "lasting": True}, range(4, 13)),
        ({"probability": 1.0}, range(1, 13)),
        ({"probability": 0.0}, []),
        ({"probability": 0.0, "at": 1}, [1]),
    ],
)
def test_times(options: dict[str, Any], wanted: Any) -> None:
    x = torch.ones(4, device=DEVICE)
    failed = []
    with inject("execution_error", match="aten::add", **options) as injected:
        for number in range(1, 13):
            try:
                _ = x + 1
            except torch.AcceleratorError:
                failed.append(number)
    assert failed == list(wanted)
    assert (injected.reached, injected.acted) == (12, len(failed))


def chance(seed: int, probability: float, count: int = 400) -> list[bool]:
    number = inject("slow_core", seed=seed, probability=probability, match="x", seconds=0.0)
    number._rule["point"] = Point.COMPILATION.value  # reached from here only
    with number:
        return [bool(_C.due_faults(Point.COMPILATION.value, "x")) for _ in range(count)]


@pytest.mark.parametrize("mode", MODES)
def test_a_block_has_the_faults_of_its_calls(mode: str) -> None:
    neuron.set_eager_mode(mode)
    x = torch.ones(1 << 20, device=DEVICE)
    for _ in range(3):
        x = x * 1.0
    with inject("nan") as injected:
        y = x + 1
    z = x + 1
    assert (injected.reached, injected.acted) == (1, 1)
    assert [t[0].isnan().item() for t in (x, y, z)] == [False, True, False]


@pytest.mark.parametrize("mode", MODES[1:])
def test_an_error_that_nobody_waited_for_comes_up_behind_the_block(mode: str) -> None:
    neuron.set_eager_mode(mode)
    x = torch.ones(1 << 16, device=DEVICE)
    _ = x + 1  # the first of its kind runs at the call
    with inject("execution_error", match="add") as injected:
        _ = x + 1
        _ = x + 1  # behind the one that failed: it does not run
    assert (injected.reached, injected.acted) == (1, 1)
    with pytest.raises(torch.AcceleratorError, match="aten::add"):
        torch.neuron.synchronize(DEVICE)  # type: ignore[attr-defined]
    assert add(x)[0].item() == 2


def test_chance_is_that_of_its_seed() -> None:
    first = chance(7, 0.25)
    assert first == chance(7, 0.25)
    assert first != chance(8, 0.25)
    # 400 tries, so a standard deviation is 8.7 of them: five of them either way.
    assert 56 < sum(first) < 144


def test_only_what_matches_counts() -> None:
    x, y = torch.ones(4, device=DEVICE), torch.ones(4, device="neuron:0")
    with inject("execution_error", core=0, match="mul") as injected:
        _ = x * 2
        _ = y + 2
        assert injected.reached == 0
        with pytest.raises(torch.AcceleratorError):
            _ = y * 2
    assert injected.reached == 1


def test_hardware_stays_broken_until_it_is_replaced() -> None:
    x = torch.ones(4, device=DEVICE)
    with inject("hbm_error", at=2):
        _ = x + 1
        for _ in range(3):
            with pytest.raises(torch.AcceleratorError, match="HBM"):
                _ = x + 1
    _ = x + 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_nan_is_in_the_first_element_of_the_result(dtype: torch.dtype, mode: str) -> None:
    neuron.set_eager_mode(mode)
    x = torch.ones(1 << 15, dtype=dtype, device=DEVICE)
    calls: tuple[Callable[[], torch.Tensor], ...] = (
        lambda: x + 1,
        lambda: x.clone().mul_(2),
        lambda: torch.erfinv(x * 0.5),  # by PyTorch's CPU kernel
        lambda: torch.sort(x).values,
        lambda: torch.softmax(x.view(-1, 64), 0),
    )
    for call in calls:
        with inject("nan", times=1, match="") as injected:
            result = call()
            torch.neuron.synchronize(DEVICE)  # type: ignore[attr-defined]
        assert injected.acted == 1
        if injected.reached == 1:
            assert result.isnan().sum().item() == 1
            assert result.flatten()[0].isnan().item()
        assert not call().isnan().any().item()


def test_inf_and_other_values() -> None:
    x = torch.ones(8, device=DEVICE)
    with inject("inf"):
        y = x + 1
    assert y.isinf().tolist() == [True] + [False] * 7
    with inject("nan", value=-5.0):
        y = x + 1
    assert y.tolist() == [-5.0] + [2.0] * 7


def test_integers_and_empty_results_are_left_alone() -> None:
    with inject("nan"):
        x = torch.arange(4, device=DEVICE) + 1
        y = torch.ones(0, device=DEVICE) + 1
    assert x.tolist() == [1, 2, 3, 4]
    assert y.numel() == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_compiled_program_is_one_execution(mode: str) -> None:
    neuron.set_eager_mode(mode)

    @torch.compile(backend="neuron")
    def call(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).softmax(-1) @ x

    x = torch.ones(64, 64, device=DEVICE)
    right = call(x).cpu()
    torch.neuron.synchronize(DEVICE)  # type: ignore[attr-defined]
    with inject("nan") as injected:
        spoilt = call(x)
        torch.neuron.synchronize(DEVICE)  # type: ignore[attr-defined]
    assert injected.reached == 1
    assert spoilt.isnan().sum().item() == 1

    def finished() -> None:
        call(x)
        torch.neuron.synchronize(DEVICE)  # type: ignore[attr-defined]

    with inject("core_error"), pytest.raises(torch.AcceleratorError, match=r"NRT_.*\(1202\)"):
        finished()
    assert call(x).cpu().equal(right)


def test_out_of_memory_at_an_allocation() -> None:
    with inject("out_of_memory", at=2), pytest.raises(torch.OutOfMemoryError, match="asked for"):
        _ = [torch.empty(10, device=DEVICE) for _ in range(3)]
    neuron.memory._record_memory_history(stacks="python")
    try:
        kept = torch.empty(10, device=DEVICE)
        with inject("out_of_memory"), pytest.raises(torch.OutOfMemoryError, match="Lines that"):
            torch.empty(10, device=DEVICE)
    finally:
        neuron.memory._record_memory_history(None)
    assert kept.numel() == 10


def test_slow_cores_and_timeouts_take_their_time() -> None:
    x = torch.ones(4, device=DEVICE)
    with inject("slow_core", seconds=0.2):
        start = time.monotonic()
        _ = x + 1
        assert time.monotonic() - start >= 0.2
    with inject("timeout", seconds=0.2):
        start = time.monotonic()
        with pytest.raises(torch.AcceleratorError, match=r"NRT_TIMEOUT\(5\)"):
            _ = x + 1
        assert time.monotonic() - start >= 0.2


def test_a_hang_hears_ctrl_c(run_python: Callable[..., str]) -> None:
    run_python("""
import os, signal, threading, time, torch
from torch_neuronx.testing import inject
x = torch.ones(4, device="neuron")
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    with inject("hang"):
        x + 1
except KeyboardInterrupt:
    pass
else:
    raise SystemExit("not interrupted")
assert (x + 1).sum().item() == 8
""")


def test_a_lost_process_is_killed(run_python: Callable[..., str]) -> None:
    code = """
import torch
x = torch.ones(4, device="neuron")
for step in range(5):
    print("step", step, flush=True)
    y = x * 2
"""
    with pytest.raises(AssertionError, match="exit code -9") as caught:
        run_python(code, TORCH_NEURONX_FAULTS="lost_rank:point=execution,match=mul,at=3")
    assert "step 2" in str(caught.value)
    assert "step 3" not in str(caught.value)
    run_python(code, TORCH_NEURONX_FAULTS="lost_rank:point=execution,rank=1")
    run_python(code, TORCH_NEURONX_FAULTS="lost_rank:point=execution,attempt=0",
               TORCHELASTIC_RESTART_COUNT="1")  # fmt: skip


def test_the_compile_cache_survives_what_happens_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "cache"))
    sizes = itertools.count(3)
    x = torch.ones(4, device=DEVICE)

    def compiled(number: int) -> torch.Tensor:
        torch._dynamo.reset()
        result: torch.Tensor = torch.compile(lambda t: t * number, backend="neuron")(x)
        return result

    for fault in ("disk_full", "broken_cache", "unreadable_cache"):
        number = next(sizes)
        if fault != "disk_full":
            compiled(number)
        with inject(fault) as injected, pytest.warns(UserWarning, match=r"."):
            result = compiled(number)
        assert injected.acted >= 1
        assert result.tolist() == [number] * 4
        compiled(number)


def test_compilers_fail_and_dawdle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "cache"))
    x = torch.ones(4, device=DEVICE)
    torch._dynamo.reset()
    with inject("compile_error", at=1), pytest.raises(Exception, match="The compiler failed"):
        torch.compile(lambda t: t * 77, backend="neuron")(x)
    torch._dynamo.reset()
    start = time.monotonic()
    with inject("slow_compile", seconds=0.3) as injected:
        torch.compile(lambda t: t * 78, backend="neuron")(x)
    assert injected.acted == 1
    assert time.monotonic() - start >= 0.3


def test_as_a_decorator() -> None:
    @inject("execution_error")
    def call() -> None:
        torch.ones(4, device=DEVICE).add(1)

    for _ in range(2):
        with pytest.raises(torch.AcceleratorError):
            call()


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("hbm_eror", {}, "did you mean 'hbm_error'"),
        ("zzz", {}, "there are execution_error"),
        ("nan", {"at": 0}, "at is 0; the first is 1"),
        ("nan", {"probability": 1.5}, "it must be 0 to 1"),
        ("nan", {"every": -1}, "it must not be negative"),
        ("nan", {"seconds": 1.0}, "nan has no option 'seconds'; it has value"),
        ("busy", {"seconds": 1.0}, "it has none of its own"),
        ("timeout", {"seconds": float("nan")}, "seconds is nan"),
        ("slow_core", {"seconds": -1.0}, "seconds is -1.0"),
        ("nan", {"point": "allocation"}, "cannot happen at 'allocation'; it can at execution"),
    ],
)
def test_what_there_is_not(name: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(FaultError, match=text):
        inject(name, **options)


def test_the_text_of_the_environment() -> None:
    first, second = parse("lost_rank: rank=1, at=20+30, attempt=0 ; slow_rank:seconds=0.25;")
    assert (first.fault.name, first._rule["at"], first._ranks) == ("lost_rank", [20, 30], [1])
    assert (second.fault.name, second._rule["seconds"]) == ("slow_rank", 0.25)
    assert parse("") == []
    for text in ("nan:at", "nan:at=x", "nan:lasting=yes", "nan:color=1"):
        with pytest.raises(FaultError):
            parse(text)


def test_a_wrong_text_is_said_at_the_import(run_python: Callable[..., str]) -> None:
    with pytest.raises(AssertionError, match="there is no fault 'nope'"):
        run_python("import torch_neuronx", TORCH_NEURONX_FAULTS="nope")


def test_every_row_of_the_table_has_a_status_or_says_what_it_does() -> None:
    for fault in FAULTS.values():
        assert fault.says.endswith((".", ")."))
        raises = fault.action in {Action.RAISE, Action.HANG, Action.OUT_OF_MEMORY}
        assert raises == (fault.status is not None), fault.name
    statuses = [f.status for f in FAULTS.values() if f.action is Action.RAISE]
    assert len(statuses) == len(set(statuses))
    assert set(statuses) <= set(Status)


def watched() -> bool:
    return compiler._watcher is not None


def test_points_of_the_compiler_are_watched_only_when_asked() -> None:
    assert not watched()
    with inject("disk_full"), inject("slow_core"):
        assert watched()
    assert not watched()
