"""A call with one mistake is refused: tensors of other devices, sizes and indices that don't fit.

The calls are PyTorch's operator samples (misuse.py makes the mistakes). What is right is PyTorch's
own word: that of its fake tensors for devices, that of the CPU for sizes, indices and overlap.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_map, tree_unflatten

from tests.shallow import shallow
from torch_neuronx.compat.release import minor

from .harness_exclusions import EXCLUDED
from .misuse import (
    HOME,
    OTHER,
    TRUSTING,
    Call,
    calls,
    devices_by_pytorch,
    devices_of,
    other_indices,
    other_sizes,
    outcome,
)

# PyTorch's sample generators use deprecated calls on purpose; their warnings aren't ours.
pytestmark = pytest.mark.filterwarnings("ignore")

#: The CPU's flash attention does not compare the sizes of 'key' and 'value' with those of 'query',
#: and reads behind them. The first sample of this one reaches it since PyTorch 2.14.
ATTENTION: Final = "nn.functional.scaled_dot_product_attention"
FLASH: Final = "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu"

#: OpInfo name -> why it takes tensors of two devices although fake tensors refuse them.
MIXES: Final[dict[str, str]] = {
    "nn.functional.bilinear": "an operand without elements is not looked at",
    "_unsafe_masked_index": "its mask may be on the host, as indices may",
    **{
        f"{name}_scatter": "composed of a clone and a copy, which may come from elsewhere"
        for name in ("as_strided", "diagonal", "select", "slice")
    },
    "index_fill": "reads the value, wherever it is",
    "linspace": "reads the numbers, wherever they are",
    "logspace": "reads the numbers, wherever they are",
    "masked_fill": "reads the value, wherever it is",
}

#: OpInfo name -> why its errors are of another class than the CPU's.
CLEARER: Final[dict[str, str]] = {
    "baddbmm": "says that operands must be 3D, where the CPU misses a dimension"
}

_CONVOLUTION = "fake tensors do not look at the devices of a convolution's operands"
_RESULT = "PyTorch puts the result where the first operand is, a number on the host"

#: OpInfo name -> why it refuses what fake tensors take.
STRICTER: Final[dict[str, str]] = {
    **{f"nn.functional.conv{n}d": _CONVOLUTION for n in (1, 2, 3)},
    **{f"nn.functional.conv_transpose{n}d": _CONVOLUTION for n in (1, 2, 3)},
    "_unsafe_masked_index_put_accumulate": "indices of a core put nothing into a host tensor",
    "complex": _RESULT,
    "index_put": "fake tensors do not look at the devices of indices",
    "index_fill": "indices of a core fill nothing in a host tensor",
    "native_dropout_backward": _RESULT,
    "nn.functional.embedding": "a host table has no indices of a core",
    "normal": "the result is the host's, where the core's generator is of no use",
    "polar": _RESULT,
    "logical_and": _RESULT,
    "logical_or": _RESULT,
    "logical_xor": _RESULT,
    "masked_scatter": "the mask selects in place, so a host mask is no number",
    "nn.functional.binary_cross_entropy_with_logits": _RESULT,
    "nn.functional.soft_margin_loss": _RESULT,
    "nn.functional.linear_cross_entropy": "fake tensors do not see the pieces it works in",
}

#: OpInfo name -> a pattern of how a refusal begins where the CPU's kernel trusts its caller. Batch
#: norm is said to take vectors; the CPU's kernel counts elements, and some paths of it refuse.
DEMANDING: Final[dict[str, str]] = {
    ATTENTION: "aten::_scaled_dot_product",
    "nn.functional.batch_norm": r"aten::native_batch_norm: '(weight|bias)' is \[1, ",
}

_RUNS = [op for op in op_db if not op.name.startswith("jiterator") and op.supported_dtypes("cpu")]
_NAMES = [op.formatted_name for op in _RUNS]
_PARAMETERS = [pytest.param(op, id=name) for op, name in zip(_RUNS, _NAMES, strict=True)]


def is_number(call: Call, position: int) -> bool:
    tensor: torch.Tensor = call.leaves[position]
    return tensor.dim() == 0


@pytest.mark.every(6)
@pytest.mark.parametrize("op", _PARAMETERS)
@shallow
def test_tensors_of_other_devices(op: OpInfo) -> None:
    for call in calls(op, 2):
        if sum(isinstance(leaf, torch.Tensor) for leaf in call.leaves) < 2:
            continue
        if outcome(lambda c=call: c.run(c.on(HOME)))[1]:  # type: ignore[misc]
            continue
        for position in call.dense():
            for elsewhere in ("cpu", OTHER):
                check_device(call, position, elsewhere)


def check_device(call: Call, position: int, elsewhere: str) -> None:
    allowed, refusal = outcome(lambda: devices_by_pytorch(call, position, elsewhere))
    got, error = outcome(lambda: call.run(call.on(HOME, position, elsewhere)))
    what = f"argument {position} on {elsewhere}"
    if isinstance(refusal, NotImplementedError):
        return  # no verdict
    if refusal is not None and "device" in str(refusal):
        host_number = elsewhere == "cpu" and is_number(call, position)
        assert error or host_number or call.op.name in MIXES, f"{what} was accepted"
    elif refusal is None and error is None:
        assert devices_of(got) == allowed, what
    elif refusal is None:
        assert call.op.name in STRICTER, f"{what} was refused: {error}"
    if error is not None and refusal is not None:
        assert "device" in str(error) or str(error) == str(refusal), what


@pytest.mark.every(6)
@pytest.mark.parametrize("op", _PARAMETERS)
@shallow
def test_wrong_sizes_and_indices(op: OpInfo) -> None:
    if op.name in TRUSTING:
        pytest.skip(TRUSTING[op.name])
    # Since PyTorch 2.14 the CPU's kernel reads behind its operands, or divides by 0.
    alone = op.name == FLASH and minor(torch.__version__) != "2.13"
    random = bool({op.name, op.full_name, op.formatted_name} & set(EXCLUDED))
    for call in calls(op, 1):
        for position in call.dense():
            for what, tensor in mistakes(call.leaves[position].detach()):
                wrong = call.with_leaf(position, tensor)
                if divides_by_no_heads(wrong):
                    with pytest.raises(RuntimeError, match="of the key, which has none"):
                        wrong.run(wrong.on(HOME))
                    continue
                if alone:
                    _, error = outcome(lambda w=wrong: w.run(w.on(HOME)))  # type: ignore[misc]
                    assert error is None or str(error).startswith("aten::_scaled_dot_product")
                    continue
                expected, refusal = outcome(lambda w=wrong: w.run(w.on("cpu")))  # type: ignore[misc]
                got, error = outcome(lambda w=wrong: w.run(w.on(HOME)))  # type: ignore[misc]
                where = f"argument {position} {what}: cpu {refusal!r}, neuron {error!r}"
                if refusal is None and error is not None and op.name in DEMANDING:
                    assert re.match(DEMANDING[op.name], str(error)), where
                    continue
                assert (refusal is None) == (error is None), where
                assert type(refusal) is type(error) or op.name in CLEARER, where
                if refusal is None and not random:
                    torch.testing.assert_close(
                        comparable(got),
                        comparable(expected),
                        rtol=1e-3,
                        atol=1e-3,
                        equal_nan=True,
                    )


def divides_by_no_heads(call: Call) -> bool:
    """Attention by groups without heads of keys: PyTorch divides by 0, which ends the process."""
    if call.op.name != ATTENTION:
        return False
    _, arguments, options = tree_unflatten(call.leaves, call.spec)
    key, value = arguments[:2]
    if not options.get("enable_gqa") or min(key.dim(), value.dim()) < 3:
        return False
    return bool(key.shape[-3] == 0 and value.numel() > 0)


def mistakes(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    yield from other_sizes(tensor)
    yield from other_indices(tensor)


def comparable(tree: Any) -> Any:
    def bring(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        leaf = leaf.cpu()
        # 8-bit floats have no comparison with a tolerance.
        return leaf.float() if leaf.is_floating_point() and leaf.itemsize == 1 else leaf

    return tree_map(bring, tree)


def network(name: str, sizes: torch.Tensor | None, *states: torch.Tensor) -> Any:
    """PyTorch's function of a layer that makes 5 values of 4, of 2 steps of 3 rows."""
    gates = {"lstm": 4, "gru": 3}.get(name, 1)
    weights = [torch.ones(gates * 5, n).to(HOME) for n in (4, 5)]
    x = torch.ones(2, 3, 4).to(HOME)
    hx = list(states) if name == "lstm" else states[0]
    options = {"has_biases": False, "num_layers": 1, "dropout": 0.0, "train": False}
    options["bidirectional"] = False
    if sizes is None:
        return getattr(torch, name)(x, hx, weights, **options, batch_first=False)
    return getattr(torch, name)(x.flatten(0, 1), sizes, hx, weights, **options)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("hidden", "cell"), [(2, 1), (1, 0), (4, 2)])
def test_states_of_an_lstm_that_do_not_go_together(hidden: int, cell: int, *, packed: bool) -> None:
    """`torch.nn` compares them. PyTorch's function reads behind the list of cell states."""
    states = [torch.ones(n, 3, 5).to(HOME) for n in (hidden, cell)]
    with pytest.raises(RuntimeError, match="are not of as many layers"):
        network("lstm", torch.tensor([3, 3]) if packed else None, *states)


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_sizes_of_a_packed_sequence(name: str) -> None:
    """PyTorch's functions read the first one without looking, and never look at strides."""
    states = [torch.ones(1, 3, 5).to(HOME)] * 2
    whole = network(name, torch.tensor([3, 3]), *states)
    strided = network(name, torch.tensor([3, 1, 3, 1])[::2], *states)
    for a, b in zip(whole, strided, strict=True):
        assert torch.equal(a.cpu(), b.cpu())
    for sizes in (torch.tensor([], dtype=torch.int64), torch.tensor([3, 3]).to(HOME)):
        with pytest.raises(RuntimeError, match="batch_sizes must be a vector of int64 on the CPU"):
            network(name, sizes, *states)


# ---- overlapping memory -------------------------------------------------------------------------


Tensor = torch.Tensor


def row(device: str) -> Tensor:
    return torch.arange(12.0, device=device).add(1) / 12


def one(x: Tensor) -> Tensor:
    """Four elements that are one."""
    return x[:1].expand(4)


def few(x: Tensor) -> Tensor:
    return torch.tensor([0, 1], device=x.device)


#: In-place operator -> its operands.
_WRITERS: Final[dict[str, Callable[[Tensor], tuple[Any, ...]]]] = {
    **dict.fromkeys(("add_", "mul_", "clamp_", "fill_"), lambda _: (2,)),
    **dict.fromkeys(("exp_", "zero_", "sigmoid_", "uniform_", "normal_"), lambda _: ()),
    **dict.fromkeys(("bernoulli_", "random_", "exponential_"), lambda _: ()),
    "copy_": lambda x: (x[4:8],),
    "masked_fill_": lambda x: (x[:4] > 0, 2),
    "addcmul_": lambda x: (x[4:8], x[8:]),
    "lerp_": lambda x: (x[4:8], 0.5),
    "index_fill_": lambda x: (0, few(x), 2),
    "index_add_": lambda x: (0, few(x), x[4:6]),
    "index_copy_": lambda x: (0, few(x), x[4:6]),
    "index_put_": lambda x: ((few(x),), x[4:6]),
    "scatter_": lambda x: (0, few(x), x[4:6]),
    "masked_scatter_": lambda x: (x[:4] > 0, x[4:8]),
}


def _of_one_element(name: str) -> Callable[[Tensor], Any]:
    return lambda x: getattr(one(x), name)(*_WRITERS[name](x))


def _over_its_operand(name: str) -> Callable[[Tensor], Any]:
    return lambda x: getattr(x[1:], name)(x[:-1])


def _out(name: str, operands: int) -> Callable[[Tensor], Any]:
    return lambda x: getattr(torch, name)(*[x[:-1]] * operands, out=x[1:])


#: Writes of a row of 12 numbers to memory that another operand, or another element, lies in.
OVERLAPS: Final[dict[str, Callable[[Tensor], Any]]] = {
    "copy_ down": lambda x: x[1:].copy_(x[:-1]),
    "copy_ up": lambda x: x[:-1].copy_(x[1:]),
    "copy_ of a strided view": lambda x: x[::2].copy_(x[:6]),
    "copy_ of the transposed": lambda x: x[:9].view(3, 3).copy_(x[:9].view(3, 3).t()),
    "copy_ of another type": lambda x: x[1:].copy_(x.view(torch.int32)[:-1]),
    "copy_ onto itself": lambda x: x.copy_(x),
    "copy_ onto the same elements": lambda x: x[1:5].copy_(x[1:5]),
    "copy_ beside": lambda x: x[:6].copy_(x[6:]),
    "setitem": lambda x: x.__setitem__(slice(1, None), x[:-1]),
    "_foreach_add_": lambda x: torch._foreach_add_([x[1:]], [x[:-1]]),
    "_foreach_copy_": lambda x: torch._foreach_copy_([x[1:]], [x[:-1]]),
    "cumsum, out": lambda x: torch.cumsum(x[:-1], 0, out=x[1:]),
    "gather, out": lambda x: torch.gather(x[:2], 0, few(x), out=x[1:3]),
    "index_select, out": lambda x: torch.index_select(x[:2], 0, few(x), out=x[1:3]),
    "cat, out": lambda x: torch.cat([x[:2], x[4:6]], out=x[1:5]),
    **{f"{name} of one element": _of_one_element(name) for name in _WRITERS},
    **{
        f"{name} over its operand": _over_its_operand(name)
        for name in ("add_", "mul_", "sub_", "div_", "atan2_", "pow_")
    },
    **{f"{name}, out": _out(name, 2) for name in ("add", "mul", "sub", "div", "atan2", "pow")},
    **{f"{name}, out": _out(name, 1) for name in ("exp", "neg", "sigmoid", "tanh", "sqrt")},
}


@pytest.mark.parametrize("case", OVERLAPS)
def test_overlapping_memory(case: str) -> None:
    """What the CPU refuses is refused in the same words, and what it allows has its values."""
    there, here = row("cpu"), row(HOME)
    _, refusal = outcome(lambda: OVERLAPS[case](there))
    _, error = outcome(lambda: OVERLAPS[case](here))
    assert str(error) == str(refusal)
    torch.testing.assert_close(here.cpu(), there)


# ---- what PyTorch lets stand on the host --------------------------------------------------------


def at_home(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel(), device=HOME).view(shape)


NUMBER = torch.tensor(2.0)
#: Calls with a host tensor beside tensors of a core that PyTorch allows: on both the same result.
ALLOWED: Final[dict[str, Callable[[], torch.Tensor]]] = {
    "index": lambda: at_home(4, 2)[torch.tensor([1, 3])],
    "index by a mask": lambda: at_home(4)[torch.tensor([True, False, True, False])],
    "index_put_": lambda: at_home(4).index_put_((torch.tensor([1]),), torch.tensor(9.0)),
    "setitem": lambda: _set(at_home(4), torch.tensor([0, 2]), 7.0),
    "add a number": lambda: at_home(3) + NUMBER,
    "subtract from a number": lambda: NUMBER - at_home(3),
    "mul_": lambda: at_home(3).mul_(NUMBER),
    "where": lambda: torch.where(at_home(3) > 1, at_home(3), NUMBER),
    "masked_fill": lambda: at_home(3).masked_fill(at_home(3) > 1, NUMBER),
    "fill_": lambda: at_home(3).fill_(NUMBER),
    "fill_ from another core": lambda: at_home(3).fill_(NUMBER.to(OTHER)),
    "masked_fill_ from another core": lambda: at_home(3).masked_fill_(
        at_home(3) > 1, NUMBER.to(OTHER)
    ),
    "copy_": lambda: at_home(3).copy_(torch.arange(3.0)),
    "copy_ from another core": lambda: at_home(3).copy_(torch.arange(3.0).to(OTHER)),
    "_foreach_add of two devices": lambda: torch._foreach_add(
        [at_home(2), torch.ones(2)], [at_home(2), torch.ones(2)]
    )[0],
    "_foreach_copy_": lambda: _copied([at_home(2)], [torch.ones(2)])[0],
    "_foreach_mul by a number": lambda: torch._foreach_mul([at_home(2)], NUMBER)[0],
}


def _copied(to: list[Tensor], source: list[Tensor]) -> list[Tensor]:
    torch._foreach_copy_(to, source)
    return to


def _set(x: torch.Tensor, indices: torch.Tensor, value: float) -> torch.Tensor:
    x[indices] = value
    return x


@pytest.mark.parametrize("case", ALLOWED)
def test_what_may_stand_elsewhere(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    got = ALLOWED[case]()
    assert str(got.device) == HOME
    monkeypatch.setitem(globals(), "HOME", "cpu")
    monkeypatch.setitem(globals(), "OTHER", "cpu")
    torch.testing.assert_close(got.cpu(), ALLOWED[case]())


#: Mixtures that the operator samples don't make, and the argument that the error names.
REFUSED: Final[dict[str, tuple[Callable[[], Any], str]]] = {
    "host tensor, indices of a core": (
        lambda: torch.arange(5)[torch.tensor([1], device=HOME)],
        r"indices should be either on cpu or on the same device as the indexed tensor \(cpu\)",
    ),
    "indices of another core": (
        lambda: at_home(5)[torch.tensor([1], device=OTHER)],
        r"indices should be either on cpu .* indexed tensor \(neuron:0\), but found neuron:1",
    ),
    "mask of another core": (
        lambda: at_home(5)[torch.ones(5, dtype=torch.bool, device=OTHER)],
        r"indices should be either on cpu .* indexed tensor \(neuron:0\), but found neuron:1",
    ),
    "index_put_ of a host tensor": (
        lambda: at_home(5).index_put_((torch.tensor([1, 2]),), torch.ones(2)),
        "found at least two devices, neuron:0 and cpu! .* argument values in method",
    ),
    "a result on the host": (
        lambda: torch.sum(at_home(3), 0, out=torch.tensor(0.0)),
        "found at least two devices, neuron:0 and cpu! .* argument out in method",
    ),
    "a number that is written to": (
        lambda: torch.tensor(1.0).add_(at_home()),
        "found at least two devices, cpu and neuron:0! .* argument other in method",
    ),
    "a gradient of the host": (
        lambda: torch._amp_foreach_non_finite_check_and_unscale_(
            [at_home(2), torch.ones(2)], torch.zeros(1, device=HOME), torch.ones(1, device=HOME)
        ),
        "found at least two devices, neuron:0 and cpu! .* argument self in method",
    ),
    "lists of two devices": (
        lambda: torch._foreach_add([at_home(2), at_home(2)], [at_home(2), torch.ones(2)]),
        "found at least two devices, neuron:0 and cpu!",
    ),
    "a mask of attention": (
        lambda: torch.nn.functional.scaled_dot_product_attention(
            at_home(1, 1, 4, 4), at_home(1, 1, 4, 4), at_home(1, 1, 4, 4), torch.ones(4, 4)
        ),
        "found at least two devices, neuron:0 and cpu!",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_may_not(case: str) -> None:
    call, text = REFUSED[case]
    with pytest.raises(RuntimeError, match=text):
        call()


@pytest.mark.parametrize("name", ["_pdist_backward", "_cdist_backward"])
def test_gradients_of_distances_have_their_shape(name: str) -> None:
    """By position: PyTorch 2.15 names the gradient otherwise than 2.13."""
    x, y = torch.randn(4, 3, device="neuron"), torch.randn(5, 3, device="neuron")
    both = name == "_cdist_backward"
    operands = (x, y, 2.0) if both else (x, 2.0)
    distances = torch.cdist(x, y) if both else torch.pdist(x)
    operator = getattr(torch.ops.aten, name)
    operator(torch.ones_like(distances), *operands, distances)
    with pytest.raises(RuntimeError, match="does not go with"):
        operator(torch.ones_like(distances)[:-1], *operands, distances)
    with pytest.raises(RuntimeError, match="does not go with"):
        operator(torch.ones_like(distances), *operands, distances[:-1])
