"""Which operators a program from a file may name."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from neuronxcc.neff import NeffError, NeffInfo, read_neff, write_neff
from neuronxcc.program.program import CallStep, Program
from neuronxcc.program.steps.operator import AtenStep
from tests.compiler.executable_programs import Maker
from tests.device.enqueued import to_the_end
from torch_neuronx.dynamo.lowerings import TABLE
from torch_neuronx.dynamo.lowerings.library import CALLED
from torch_neuronx.program.allowed import allow_operators, check_operators, refusal
from torch_neuronx.program.executable import Executable


def program(target: str, *args: Any) -> Program:
    maker = Maker()
    x, out = maker.buffer("input", (4,)), maker.buffer("output", (4,))
    maker.steps.append(AtenStep(target, (maker.view(x), *args), {}, (maker.view(out),), host=True))
    return maker.program()


REFUSED = {
    "aten::from_file.default": "whose argument 'filename' is a free text",
    "aten::_print.default": "whose argument 's' is a free text",
    "aten::save.default": "whose argument 'item' is of type t",
    "aten::system.default": "which this PyTorch does not have",
    "aten::set_.source_Storage": "which writes to its argument 'self'",
    "aten::set.source_Storage": "whose argument 'source' is of type Storage",
    "aten::resize_.default": "which writes to its argument 'self'",
    "aten::quantized_lstm_cell.default": "whose kernel trusts its caller",
    "aten::add.out": "which writes to its argument 'out'",
    "aten::record_stream.default": "which writes to its argument 'self'",
    "quantized::add.default": "of the namespace 'quantized'",
    "c10d::broadcast_.default": "of the namespace 'c10d'",
    "evil::run.default": "of the namespace 'evil'",
}


@pytest.mark.parametrize("target", REFUSED)
def test_a_file_may_not_name(target: str) -> None:
    assert refusal(target) == REFUSED[target]
    with pytest.raises(NeffError) as caught:
        Executable(program(target), "neuron")
    assert caught.value.status == 2
    base = target.partition(".")[0]
    own = base.startswith("aten::")  # PyTorch's: nobody can allow those
    more = "" if own else (
        ", or, if you trust the file, allow it before loading: "
        f"torch_neuronx.allow_operators({base!r})"
    )  # fmt: skip
    assert str(caught.value) == (
        f"NRT_INVALID (status 2): program {program(target).name!r}, step 0 names {target}, "
        f"{REFUSED[target]}. A program from a file may use aten and prims operators that change "
        "nothing but their results, and others only if the graph it is loaded for calls them: "
        f'compile the model in this process with torch.compile(backend="neuron"){more}'
    )


FITS = {"q": (1, 2, 4, 8), "k": (1, 2, 3, 8), "v": (1, 2, 3, 8)}


@pytest.mark.parametrize(
    ("target", "changed", "text"),
    [
        ("scaled_dot_product_attention", {"v": (1, 2, 7, 8)}, "'value' is [1, 2, 7, 8]"),
        ("scaled_dot_product_attention", {"q": (1, 2, 4, 9)}, "refuses its arguments"),
        ("_scaled_dot_product_flash_attention_for_cpu", {"k": (1, 2, 9, 8)}, "'value' is"),
        (
            "_scaled_dot_product_flash_attention_for_cpu",
            {"k": (1, 2, 0, 8), "v": (1, 2, 0, 8)},
            "must not be empty",
        ),
    ],
)
def test_sizes_are_compared_when_a_program_is_loaded(
    target: str, changed: dict[str, tuple[int, ...]], text: str
) -> None:
    maker = Maker()
    views = [maker.view(maker.buffer("input", s)) for s in {**FITS, **changed}.values()]
    out = maker.view(maker.buffer("output", FITS["q"]))
    outs = (out,) if target.startswith("scaled") else (out, None)
    maker.steps.append(AtenStep(f"aten::{target}.default", tuple(views), {}, outs, host=True))
    with pytest.raises((NeffError, ValueError)) as caught:
        Executable(maker.program(), "neuron")
    assert text in str(caught.value)


def test_a_result_must_have_the_stated_size() -> None:
    maker = Maker()
    out = maker.buffer("output", (4,))
    maker.steps.append(AtenStep("aten::zeros.default", ((1 << 40,),), {}, (maker.view(out),)))
    with pytest.raises(NeffError, match=r"has a result 0 of shape \[1099511627776\], the program"):
        Executable(maker.program(), "cpu")


def test_a_dtype_is_no_number() -> None:
    with pytest.raises(ValueError, match=r"argument 'dtype' of aten::to\.dtype must be ScalarType"):
        Executable(program("aten::to.dtype", -1), "cpu")


def test_also_in_a_body_and_after_a_file() -> None:
    inner = program("aten::from_file.default")
    outer = program("aten::neg.default")
    view = outer.steps[0].outs[0]  # type: ignore[union-attr]
    assert view is not None
    source = outer.steps[0].args[0]  # type: ignore[union-attr]
    call = CallStep("call", (inner,), (source,), (view,))
    with pytest.raises(NeffError, match="aten::from_file"):
        Executable(dataclasses.replace(outer, steps=(call,)), "cpu")
    read = read_neff(write_neff(inner, NeffInfo("m", "trn2"))).program
    with pytest.raises(NeffError, match="aten::from_file"):
        Executable(read, "cpu")


def test_the_graph_in_this_process_may_call_more() -> None:
    check_operators(program("evil::run.default"), frozenset({"evil::run.default"}))


def test_memory_outside_of_a_tensor_is_not_reached() -> None:
    """Where a harmless operator takes an address, PyTorch checks it against the tensor's memory."""
    run = Executable(program("aten::as_strided.default", (4,), (1,), 1 << 20), "neuron")
    with pytest.raises(RuntimeError, match="storage"):
        to_the_end(run, (torch.zeros(4, device="neuron"),))


def overloads() -> Iterator[str]:
    for target in (*TABLE, *CALLED):
        if isinstance(target, torch._ops.OpOverload) and target.namespace in {"aten", "prims"}:
            name = target._name
            yield name if "." in name else f"{name}.default"


def test_what_lowerings_know_is_allowed_if_it_changes_nothing() -> None:
    refused = {name: refusal(name) for name in overloads() if refusal(name)}
    # What is always lowered is no host step, so the kernels of these two do not matter.
    trusting = {name for name, why in refused.items() if why == "whose kernel trusts its caller"}
    assert trusting <= {"aten::_efficientzerotensor.default", "aten::_foreach_copy.default"}
    # What returns nothing is an assertion, of which a program has the check instead.
    known = ("writes to", "which returns nothing")
    others = {name: why for name, why in refused.items() if name not in trusting}
    assert all(any(text in why for text in known) for why in others.values()), others


@pytest.mark.parametrize("name", ["aten::from_file", "aten::save.default", "prims::add"])
def test_nobody_can_allow_an_operator_of_pytorch(name: str) -> None:
    with pytest.raises(ValueError, match="is for operators of your own"):
        allow_operators(name)
