"""Who owns what: memory of the scratchpad, results, arguments; threads, forks, profiles."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from neuronxcc.program.program import CallStep, Program
from neuronxcc.program.steps.copy import CopyStep
from neuronxcc.program.steps.gemm import GemmStep
from neuronxcc.program.steps.operator import AtenStep
from tests.compiler.executable_programs import Maker, adder, apply, random, trusted
from tests.compiler.test_executable_steps import while_program
from torch_neuronx.program.executable import Executable

LARGE = (256, 256)  # 256 KiB
BYTES = 256 * 256 * 4


@pytest.fixture(scope="module", autouse=True)
def few_objects() -> Iterator[None]:
    """Let the collector, which these tests call often, see only what they make."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def allocated() -> int:
    gc.collect()  # what an earlier test left to the collector
    return int(torch.neuron.memory_allocated())  # type: ignore[attr-defined]


def peak_of(run: Executable, args: list[torch.Tensor]) -> int:
    """Bytes beyond what was there before, the arguments included in both."""
    before = allocated()
    torch.neuron.reset_peak_memory_stats()  # type: ignore[attr-defined]
    results = run(args)
    peak = int(torch.neuron.max_memory_allocated())  # type: ignore[attr-defined]
    del results
    return peak - before


def taken(shape: tuple[int, ...]) -> int:
    """What the arena takes for one float32 tensor: its bytes, rounded and staggered."""
    before = allocated()
    tensor = random(shape, device="neuron")
    size = allocated() - before
    assert tensor.nbytes <= size < 1.1 * tensor.nbytes
    return size


def test_nothing_is_left_behind() -> None:
    x, y = random((16,), device="neuron"), random((16,), device="neuron")
    run = trusted(adder(), "neuron")
    before = allocated()
    for _ in range(10):
        run((x, y))
        assert allocated() == before
    loop = trusted(while_program(3), "neuron")
    start = torch.tensor(0, dtype=torch.int32, device="neuron")
    args = (start, *(random((3,), device="neuron") for _ in range(3)))
    before = allocated()
    for _ in range(10):
        loop(args)
        assert allocated() == before


def test_constants_live_as_long_as_the_program() -> None:
    before, block = allocated(), taken(LARGE)
    maker = Maker()
    c = maker.buffer("constant", LARGE, literal=random(LARGE).numpy())
    out = maker.buffer("output", LARGE)
    maker.steps.append(CopyStep(maker.view(c), maker.view(out)))
    run = trusted(maker.program(), "neuron")
    assert allocated() == before + block
    assert run.memory.constants == BYTES
    del run
    assert allocated() == before


def test_machine_code_lives_as_long_as_the_native_program() -> None:
    executable = trusted(adder(), "cpu")
    module = weakref.ref(executable._module)
    native = executable.run
    del executable
    gc.collect()
    assert module() is not None
    x = random((16,))
    assert torch.equal(native((x, x))[0], x + x)
    del native
    gc.collect()
    assert module() is None


def test_a_list_of_arguments_is_emptied_and_a_tuple_is_not() -> None:
    run = trusted(adder(), "neuron")
    assert run._boxed_call
    assert run.run._boxed_call
    x, y = random((16,), device="neuron"), random((16,), device="neuron")
    boxed = [x, y]
    (got,) = run(boxed)
    assert boxed == []
    assert torch.equal(got.cpu(), x.cpu() + y.cpu())


def chain(length: int) -> Program:
    """One argument per step; each step multiplies the argument by itself into an output."""
    maker = Maker()
    for _ in range(length):
        x, out = maker.buffer("input", LARGE), maker.buffer("output", LARGE)
        apply(maker, Op.MULTIPLY, x, x, out)
    return maker.program()


def test_arguments_are_freed_after_their_last_use() -> None:
    run = trusted(chain(8), "neuron")
    args = [random(LARGE, device="neuron") for _ in range(8)]
    # Every result takes the place of an argument that has just gone; a call that is enqueued takes
    # the memory of all results before it lets go of its arguments.
    results_at_once = 1 if torch.neuron.get_eager_mode() == "debug" else 8  # type: ignore[attr-defined]
    assert peak_of(run, args) == results_at_once * taken(LARGE)


def test_arguments_that_somebody_holds_are_not_freed() -> None:
    run = trusted(chain(8), "neuron")
    held = [random(LARGE, device="neuron") for _ in range(8)]
    results = run(list(held))
    for x, got in zip(held, results, strict=True):
        assert torch.equal(got.cpu(), x.cpu() * x.cpu())


def test_an_operator_may_bring_the_memory_of_its_result() -> None:
    """No copy and no second block: the result of sort is the result of the program."""
    maker = Maker()
    x = maker.buffer("input", LARGE)
    temp, order = maker.buffer("temp", LARGE), maker.buffer("temp", LARGE, DType.S64)
    out, places = maker.buffer("output", LARGE), maker.buffer("output", LARGE, DType.S64)
    maker.steps += [
        AtenStep("aten::sort", (maker.view(x),), {}, (maker.view(temp), maker.view(order))),
        AtenStep("aten::sort", (maker.view(temp),), {}, (maker.view(out), maker.view(places))),
    ]
    run = trusted(maker.program(), "neuron")
    a = random(LARGE)
    values, indices = run([a.to("neuron")])
    assert torch.equal(values.cpu(), a.sort()[0])
    assert values.untyped_storage().nbytes() == BYTES
    assert indices.untyped_storage().nbytes() == 2 * BYTES
    values.add_(1)
    assert torch.equal(values.cpu(), a.sort()[0] + 1)


def test_an_operator_that_returns_what_it_was_given() -> None:
    """The argument's memory must not become that of a temporary which is written to later."""

    @torch.library.custom_op("executable_test::same", mutates_args=())
    def same(x: torch.Tensor) -> torch.Tensor:
        kept.append(x.clone())
        return kept[-1]

    kept: list[torch.Tensor] = []
    maker = Maker()
    x, temp, out = (maker.buffer(kind, LARGE) for kind in ("input", "temp", "output"))
    maker.steps += [
        AtenStep("executable_test::same", (maker.view(x),), {}, (maker.view(temp),)),
        AtenStep("aten::mul_.Scalar", (maker.view(temp), 2), {}, (None,)),
        AtenStep("aten::detach", (maker.view(temp),), {}, (maker.view(out),)),
    ]
    run = trusted(maker.program(), "neuron")
    a = random(LARGE)
    given = a.to("neuron")
    (got,) = run((given,))
    assert torch.equal(got.cpu(), a * 2)
    assert torch.equal(given.cpu(), a)
    assert torch.equal(kept[0], a)


def test_tensors_that_an_operator_keeps_stay_valid() -> None:
    @torch.library.custom_op("executable_test::keep", mutates_args=())
    def keep(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x + 1

    kept: list[torch.Tensor] = []
    maker = Maker()
    x, temp, out = (maker.buffer(kind, LARGE) for kind in ("input", "temp", "output"))
    apply(maker, Op.ADD, x, x, temp)
    maker.steps.append(
        AtenStep("executable_test::keep", (maker.view(temp),), {}, (maker.view(out),))
    )
    run = trusted(maker.program(), "neuron")
    a = random(LARGE)
    for _ in range(3):
        run([a.to("neuron")])
    for tensor in kept:
        assert torch.equal(tensor, a + a)


def test_temporaries_that_share_memory_on_purpose() -> None:
    """One is written, the other reads the same bytes as another type."""
    maker = Maker()
    x, out = maker.buffer("input", LARGE), maker.buffer("output", LARGE, DType.S32)
    temp = maker.buffer("temp", LARGE)
    maker.scratch = 0
    bits = maker.buffer("temp", LARGE, DType.S32)
    maker.steps += [
        AtenStep("aten::neg", (maker.view(x),), {}, (maker.view(temp),)),
        CopyStep(maker.view(bits), maker.view(out)),
    ]
    a = random(LARGE)
    (got,) = trusted(maker.program(), "neuron")((a.to("neuron"),))
    assert torch.equal(got.cpu(), (-a).view(torch.int32))


def test_many_threads_at_once() -> None:
    maker = Maker()
    x, w = maker.buffer("input", (32, 64)), maker.buffer("input", (64, 64))
    temp, more = maker.buffer("temp", (32, 64)), maker.buffer("temp", (32, 64))
    out = maker.buffer("output", (32, 64))
    maker.steps.append(
        GemmStep(maker.matrix(x), maker.matrix(w), maker.matrix(temp), constant_b=True)
    )
    maker.steps.append(AtenStep("aten::cumsum", (maker.view(temp), 1), {}, (maker.view(more),)))
    apply(maker, Op.ADD, temp, more, out)
    run = trusted(maker.program(), "neuron")
    weight = random((64, 64))
    device_weight = weight.to("neuron")
    errors: list[float] = []

    def work() -> None:
        for _ in range(20):
            a = random((32, 64))
            (got,) = run((a.to("neuron"), device_weight))
            product = a @ weight
            errors.append((got.cpu() - product - product.cumsum(1)).abs().max().item())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 80
    assert max(errors) < 1e-3


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    shape = (300, 700)
    run = trusted(adder(shape), "neuron")
    args = random(shape, device="neuron"), random(shape, device="neuron")
    before = torch.get_num_threads()
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(run(args)[0].cpu())
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_other_python_threads_run_meanwhile() -> None:
    """The GIL is free while a program runs; an operator in Python takes it back."""
    done = threading.Event()

    @torch.library.custom_op("executable_test::wait", mutates_args=())
    def wait(x: torch.Tensor) -> torch.Tensor:
        assert done.wait(20)
        return x.clone()

    maker = Maker()
    x, out = maker.buffer("input", (4,)), maker.buffer("output", (4,))
    maker.steps.append(AtenStep("executable_test::wait", (maker.view(x),), {}, (maker.view(out),)))
    run = trusted(maker.program(), "neuron")
    a = random((4,), device="neuron")
    thread = threading.Timer(0.05, done.set)
    thread.start()
    (got,) = run((a,))
    assert torch.equal(got.cpu(), a.cpu())
    thread.join()


def test_deferred_operators_run_first() -> None:
    params = [random(LARGE, device="neuron") for _ in range(2)]
    expected = params[0].cpu() + 1
    torch._foreach_add_(params, 1.0)
    run = trusted(adder(LARGE), "neuron")
    (got,) = run((params[0], params[0]))
    assert torch.equal(got.cpu(), expected + expected)


def test_a_lazy_copy_is_made_real_before_it_is_written() -> None:
    maker = Maker()
    x, y = maker.buffer("input", (16,)), maker.buffer("input", (16,))
    apply(maker, Op.ADD, x, y, x)
    run = trusted(maker.program(x), "neuron")
    a, b = random((16,), device="neuron"), random((16,), device="neuron")
    before = a.cpu().clone()
    copy = torch._lazy_clone(a)
    run((copy, b))
    assert torch.equal(a.cpu(), before)
    assert torch.equal(copy.cpu(), before + b.cpu())


def test_a_forked_child_is_told() -> None:
    run = trusted(adder(), "neuron")
    x = random((16,), device="neuron")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            run((x, x))
            os.write(write, b"ran")
        except RuntimeError as error:
            os.write(write, str(error).encode()[:200])
        os._exit(0)
    os.waitpid(child, 0)
    assert b"use the 'spawn' start method" in os.read(read, 300)
    os.close(read)
    os.close(write)


def test_steps_appear_in_a_profile() -> None:
    maker = Maker()
    x, w = maker.buffer("input", (32, 64)), maker.buffer("input", (64, 64))
    temp, out = maker.buffer("temp", (32, 64)), maker.buffer("output", (32, 64))
    maker.steps.append(GemmStep(maker.matrix(x), maker.matrix(w), maker.matrix(temp)))
    apply(maker, Op.ADD, temp, temp, out)
    run = trusted(maker.program(), "neuron")
    args = random((32, 64), device="neuron"), random((64, 64), device="neuron")
    run(args)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.PrivateUse1]
    with torch.profiler.profile(activities=activities) as profile:
        run(args)
    names = [event.name for event in profile.events() or ()]
    assert names.count("neuron::gemm 1x32x64x64 f32") == 1
    assert names.count("neuron::add") == 1


def test_an_operator_of_the_device_appears_once_in_a_profile() -> None:
    maker = Maker()
    x, out = maker.buffer("input", (7,)), maker.buffer("output", (7,))
    mask = maker.buffer("temp", (7,), DType.PRED)
    outs = maker.view(out), maker.view(mask)
    maker.steps.append(
        AtenStep("aten::native_dropout", (maker.view(x), 0.5, True), {}, outs, device=True)
    )
    run = trusted(maker.program(), "neuron")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.PrivateUse1]
    with torch.profiler.profile(activities=activities) as profile:
        run((random((7,), device="neuron"),))
    names = [event.name for event in profile.events() or ()]
    assert names.count("neuron::native_dropout") == 1


@pytest.mark.parametrize("kind", ["call", "while"])
def test_an_error_in_a_body_frees_everything(kind: str) -> None:
    @torch.library.custom_op(f"executable_test::fail_in_{kind}", mutates_args=())
    def fail(x: torch.Tensor) -> torch.Tensor:
        raise KeyError(x.shape[0])

    body = Maker("body")
    x, out = body.buffer("input", LARGE), body.buffer("output", LARGE)
    temp = body.buffer("temp", LARGE)
    apply(body, Op.ADD, x, x, temp)
    body.steps.append(
        AtenStep(f"executable_test::fail_in_{kind}", (body.view(temp),), {}, (body.view(out),))
    )
    bodies = [body.program()]
    if kind == "while":
        condition = Maker("condition")
        condition.buffer("input", LARGE)
        go = condition.buffer("output", (), DType.PRED)
        condition.steps.append(
            AtenStep("aten::ones", ((),), {"dtype": DType.PRED}, (condition.view(go),))
        )
        bodies.insert(0, condition.program())
    maker = Maker()
    x, out = maker.buffer("input", LARGE), maker.buffer("output", LARGE)
    maker.steps.append(CallStep(kind, tuple(bodies), (maker.view(x),), (maker.view(out),)))
    run = trusted(maker.program(), "neuron")
    a = random(LARGE, device="neuron")
    before = allocated()
    for _ in range(3):
        with pytest.raises(KeyError, match="256") as error:
            run((a,))
        assert len(error.value.__notes__) == 2  # the step of the body, and the step that called it
        del error
        assert allocated() == before


def test_a_loop_without_an_end_hears_ctrl_c() -> None:
    condition = Maker("condition")
    condition.buffer("input", (4,))
    go = condition.buffer("output", (), DType.PRED)
    condition.steps.append(
        AtenStep("aten::ones", ((),), {"dtype": DType.PRED}, (condition.view(go),))
    )
    body = Maker("body")
    x, out = body.buffer("input", (4,)), body.buffer("output", (4,))
    apply(body, Op.ADD, x, x, out)
    maker = Maker()
    x, out = maker.buffer("input", (4,)), maker.buffer("output", (4,))
    bodies = condition.program(), body.program()
    maker.steps.append(CallStep("while", bodies, (maker.view(x),), (maker.view(out),)))
    run = trusted(maker.program(), "neuron")
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    # A shell has its background jobs ignore the signal, and the tests may be one.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run((random((4,), device="neuron"),))
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
