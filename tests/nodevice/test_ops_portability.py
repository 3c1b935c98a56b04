"""The portability modes, with a stand-in for the native core: when, what and how often."""

import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest

from torch_neuronx import users_line
from torch_neuronx.ops import gaps, modes, portability
from torch_neuronx.ops.entry import DTYPE_NUMBER, Mode
from torch_neuronx.ops.modes import (
    PortabilityError,
    PortabilityWarning,
    get_portability,
    install_into,
    on_operator,
    set_portability,
)
from torch_neuronx.ops.table import Policy

Handler = Callable[[str, str], None]


class FakeCore:
    """What of the native core the modes use; `run` asks as the dispatch path does."""

    def __init__(self) -> None:
        self.masks: dict[str, int] = {}
        self.mode = -1
        self.handler: Handler | None = None

    def set_operator_table(self, masks: dict[str, int], /) -> None:
        self.masks = masks

    def set_portability(self, mode: int, handler: Handler | None, /) -> None:
        self.mode, self.handler = mode, handler

    def operator_counts(self) -> list[tuple[str, str, int, bool]]:
        return []

    def reset_operator_counts(self) -> None:
        pass

    def executes(self, name: str, dtype: str) -> bool:
        return bool(self.masks.get(name, 0) >> DTYPE_NUMBER[dtype] & 1)

    def run(self, op: str, name: str, dtype: str) -> None:
        if self.handler is not None and not self.executes(name, dtype):
            self.handler(op, dtype)


_HANDLER_LINE = FakeCore.run.__code__.co_firstlineno + 2


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCore]:
    """A stand-in core with the table of trn2; the state of the process is untouched."""
    monkeypatch.setattr(modes, "_STATE", modes._State())
    fake = FakeCore()
    install_into(fake, "trn2", {})
    yield fake
    set_portability("permissive")


def test_install_pushes_table_and_mode(core: FakeCore) -> None:
    assert core.mode == Mode.PERMISSIVE
    assert core.handler is None
    assert core.executes("add", "float32")
    assert core.executes("add", "int64")
    assert not core.executes("add", "float64")
    assert get_portability() == "permissive"


def test_mode_comes_from_the_environment(core: FakeCore) -> None:
    install_into(core, "trn3", {"TORCH_NEURONX_PORTABILITY": " Strict "})
    assert get_portability() == "strict"
    assert core.mode == Mode.STRICT
    assert core.executes("add", "float8_e4m3fn")
    install_into(core, "trn2", {"TORCH_NEURONX_PORTABILITY": ""})
    assert get_portability() == "permissive"


def test_wrong_mode_in_the_environment(core: FakeCore) -> None:
    with pytest.raises(ValueError) as error:
        install_into(core, "trn2", {"TORCH_NEURONX_PORTABILITY": "strct"})
    assert str(error.value) == (
        "TORCH_NEURONX_PORTABILITY='strct' is not valid; allowed: permissive, warn, strict. "
        "Change it, or unset it."
    )


def test_wrong_mode_in_a_call(core: FakeCore) -> None:
    with pytest.raises(ValueError, match="portability mode 'off' is not known"):
        set_portability("off")
    assert core.mode == Mode.PERMISSIVE


def test_strict_refuses_float64(core: FakeCore) -> None:
    set_portability("strict")
    with pytest.raises(PortabilityError) as caught:
        core.run("aten::add.Tensor", "add", "float64")
    assert str(caught.value) == (
        "aten::add.Tensor on float64 does not run on a NeuronCore (trn2) [NCC_ESPP004]\n"
        f"  at {__file__}:{_HANDLER_LINE}: self.handler(op, dtype)\n"
        "  reason: float64 is no data type of a NeuronCore\n"
        "  allowed: uint8, int8, int16, int32, int64, float16, float32, bool, bfloat16, "
        "float8_e5m2, uint16, uint32, uint64\n"
        "  remedy: use torch.float32, e.g. x.to(torch.float32)"
    )
    error = caught.value
    assert (error.op, error.dtype, error.target, error.code) == (
        "aten::add.Tensor",
        "float64",
        "trn2",
        "ESPP004",
    )


def test_strict_refuses_host_operators(core: FakeCore) -> None:
    set_portability("strict")
    with pytest.raises(PortabilityError) as caught:
        core.run("aten::_linalg_svd", "_linalg_svd", "float32")
    text = str(caught.value).splitlines()
    assert text[0] == (
        "aten::_linalg_svd on float32 does not run on a NeuronCore (trn2) [NCC_EUOC002]"
    )
    assert text[3] == "  allowed: nothing, it runs on the host CPU in every dtype"


def test_strict_takes_ordinary_integers(core: FakeCore) -> None:
    set_portability("strict")
    for name in ("embedding", "arange", "eq", "copy", "sum", "index_select", "cumsum", "scatter"):
        core.run(f"aten::{name}", name, "int64")
    with pytest.raises(PortabilityError, match="NCC_EVRF035"):
        core.run("aten::mm", "mm", "int64")


def test_unknown_operators_are_refused(core: FakeCore) -> None:
    set_portability("strict")
    with pytest.raises(PortabilityError, match="it is not in the operator table"):
        core.run("mylib::mine", "mylib::mine", "float32")


def test_error_without_a_documented_code(core: FakeCore) -> None:
    set_portability("strict")
    with pytest.raises(PortabilityError) as caught:
        core.run("aten::mkldnn_linear", "mkldnn_linear", "float32")
    assert "[" not in str(caught.value).splitlines()[0]
    assert caught.value.code == ""


def test_errors_can_be_pickled() -> None:
    error = PortabilityError("text", "aten::add", "float64", "trn2", "ESPP004")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (str(again), again.op, again.code) == ("text", "aten::add", "ESPP004")


def test_warn_once_per_operator_dtype_and_line(core: FakeCore) -> None:
    set_portability("warn")

    def call(name: str, dtype: str) -> None:
        exec(  # noqa: S102  (a user's file of two lines)
            compile(
                f"core.handler('aten::{name}', '{dtype}')\ncore.handler('aten::{name}', '{dtype}')",
                "/home/user/train.py",
                "exec",
            ),
            {"core": core},
        )

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            call("sort", "float32")
        call("sort", "bfloat16")
        call("add", "float64")
    assert [(w.category, w.filename, w.lineno) for w in caught] == [
        (PortabilityWarning, "/home/user/train.py", line) for _ in range(3) for line in (1, 2)
    ]
    assert str(caught[0].message).splitlines()[:3] == [
        "aten::sort on float32 does not run on a NeuronCore (trn2) [NCC_EUOC002]",
        "  at /home/user/train.py:1",
        f"  reason: {gaps.SORT.reason}",
    ]


def test_carried_integers_are_mentioned_once(core: FakeCore) -> None:
    set_portability("warn")
    assert not core.executes("add", "int64")
    with pytest.warns(PortabilityWarning) as caught:
        core.run("aten::add.Tensor", "add", "int64")
    # A second warning would be an error here; gelu is left to PyTorch's own error.
    core.run("aten::mul.Tensor", "mul", "int64")
    core.run("aten::gelu", "gelu", "int64")
    text = str(caught[0].message).splitlines()
    assert text[0] == "aten::add.Tensor on int64: a NeuronCore (trn2) carries int64 as int32"
    assert text[2] == (
        "  reason: high-order bits are cut off, values below 2^31 in magnitude are exact"
    )
    with pytest.warns(PortabilityWarning, match="carries uint64 as uint32"):
        core.run("aten::add.Tensor", "add", "uint64")


def test_warnings_as_errors_stop_every_time(core: FakeCore) -> None:
    set_portability("warn")
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error", PortabilityWarning)
            with pytest.raises(PortabilityWarning):
                core.run("aten::sort", "sort", "float32")


def test_entering_warn_mode_starts_again(core: FakeCore) -> None:
    for _ in range(2):
        with portability("warn"), pytest.warns(PortabilityWarning):
            core.run("aten::sort", "sort", "float32")
    assert core.handler is None


def test_context_restores_after_an_error(core: FakeCore) -> None:
    set_portability("warn")
    with pytest.raises(KeyError, match="2"), portability("strict"):
        raise KeyError(core.mode)
    assert get_portability() == "warn"
    assert core.mode == Mode.WARN


def test_many_threads_warn_once(core: FakeCore) -> None:
    set_portability("warn")
    seen: list[str] = []
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        core.run("aten::sort", "sort", "float32")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen = [str(w.message) for w in caught]
    assert len(seen) == 1


def test_native_int64_is_not_worth_a_warning(core: FakeCore) -> None:
    install_into(core, "trn2", {"NEURON_CC_FLAGS": "--native-int64=enabled"})
    set_portability("warn")
    assert core.executes("add", "int64")
    core.run("aten::add.Tensor", "add", "int64")


def _at(filename: str, function: str = "call") -> str:
    """Call a function of that name in that file, and tell what line is found from there."""
    code = f"def {function}():\n    return walk(sys._getframe())\nresult = {function}()"
    scope = {"walk": users_line.users_line, "sys": sys}
    exec(compile(code, filename, "exec"), scope)  # noqa: S102
    return str(scope["result"])


def test_the_users_line_is_found() -> None:
    here = f"at {__file__}:"
    assert _at("/home/user/train.py") == "at /home/user/train.py:2"
    # Frames of installed packages, of the standard library and of this package are not the user's.
    assert _at("/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py").startswith(here)
    assert _at("/venv/lib/python3.11/site-packages/transformers/trainer.py").startswith(here)
    assert _at(threading.__file__).startswith(here)
    assert _at(users_line.__file__).startswith(here)
    assert _at("/venv/torch/_tensor_str.py") == "None"


def test_lines_where_no_user_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(users_line.users_line(None)) == "in the backward pass"
    backward = _at("/site-packages/torch/autograd/graph.py", "_engine_run_backward")
    assert backward.startswith(f"in the backward pass started at {__file__}:")
    # An installed program has no user's line: its own innermost one is the next best.
    # "" matches any name, also the "<string>" that pytest-xdist runs from.
    monkeypatch.setattr(users_line, "_PACKAGE", "")
    assert _at("/venv/site-packages/app/main.py") == "at /venv/site-packages/app/main.py:2"
    assert _at("/venv/site-packages/torch/functional.py") != "in the backward pass"


def test_printing_a_tensor_is_no_reason_to_stop(core: FakeCore) -> None:
    set_portability("strict")
    code = compile("handler('aten::masked_select', 'float32')", "/x/torch/_tensor_str.py", "exec")
    exec(code, {"handler": on_operator})  # noqa: S102
    assert core.mode == Mode.STRICT


def test_policy_before_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "_STATE", modes._State())
    assert modes.current_policy() == Policy("trn2")
    set_portability("strict")  # kept until a core is there
    assert get_portability() == "strict"
