"""Tensors of any layout for every operator: as out=, as arguments; and results in place.

Some of ATen's kernels write an out= tensor as if it were contiguous, and so outside of it. Every
operator with such an argument that PyTorch's samples reach gets tensors of random layouts here,
in the middle of a buffer whose other elements must stay. Others read an argument so: they get
theirs among NaN.
"""

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

PAD = 256  # elements in front of and behind a result
FILL = 77
#: Sums of few terms in another order; an absolute error where terms of some hundreds cancel.
RTOL, ATOL = 2e-5, 1e-4
aten = torch.ops.aten

#: Operators that draw, leave elements of a result undefined, or are wrong on `cpu`, too.
NOT_COMPARED = {
    **dict.fromkeys((
        "bernoulli", "multinomial", "normal", "poisson", "binomial", "rand", "rand_like", "randn",
        "randn_like", "randint", "randint_like", "randperm", "native_dropout", "rrelu_with_noise",
        "rrelu_with_noise_functional", "empty", "empty_like", "new_empty", "empty_strided",
        "new_empty_strided", "empty_permuted", "_standard_gamma", "_sample_dirichlet",
    ), "draws, or makes memory without values"),
    "_ctc_loss": "leaves what lies behind a target undefined",
    "_embedding_bag": "results that it has no values for get another size",
    # They make a number as large as their input, and reduce it: in memory of the caller's.
    "binary_cross_entropy": "PyTorch resizes the result while it computes",
    "soft_margin_loss": "PyTorch resizes the result while it computes",
    "huber_loss": "PyTorch resizes the result while it computes",
}  # fmt: skip
CREATION = {"dtype", "layout", "device", "pin_memory"}


def _out_overload(function: Any) -> tuple[Any, list[str]] | None:
    """The overload with the same arguments that writes into given tensors, and their names."""
    own = [(a.name, str(a.type)) for a in function._schema.arguments if a.name not in CREATION]
    for name in function.overloadpacket.overloads():
        overload = getattr(function.overloadpacket, name)
        arguments = overload._schema.arguments
        outs = [a.name for a in arguments if a.is_out]
        rest = [a for a in arguments if not a.is_out and a.name not in CREATION]
        same = own == [(a.name, str(a.type)) for a in rest]
        if outs and same and all(str(a.type) == "Tensor" for a in arguments if a.is_out):
            return overload, outs
    return None


class Calls(TorchDispatchMode):
    """What operators were called with, and what they gave: at most three calls per ranks.

    With `outs`, of operators alone that have an overload with out=.
    """

    def __init__(self, *, outs: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._outs_alone = outs
        self.outs: dict[Any, tuple[Any, list[str]] | None] = {}
        self.calls: dict[Any, list[tuple[Any, list[Tensor]]]] = defaultdict(list)
        self._seen: dict[Any, int] = defaultdict(int)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (args, kwargs or {})
        if func not in self.outs:
            self.outs[func] = _out_overload(func)
        tensors = [t for t in tree_leaves(given) if isinstance(t, Tensor)]
        kind = (func, tuple(t.ndim for t in tensors))
        wanted = self._seen[kind] < 3 and (self.outs[func] is not None or not self._outs_alone)
        wanted = wanted and all(t.layout == torch.strided for t in tensors)
        if wanted:
            saved = tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, given)
        found = func(*args, **(kwargs or {}))
        results = [found] if isinstance(found, Tensor) else found
        aliased = any(r.alias_info for r in func._schema.returns)
        wanted = wanted and not func._schema.is_mutable and not aliased
        if (
            wanted
            and isinstance(results, list | tuple)
            and all(isinstance(r, Tensor) and r.layout == torch.strided for r in results)
        ):
            self._seen[kind] += 1
            self.calls[func].append((saved, [r.detach().clone() for r in results]))
        return found


def _use(call: Callable[[], Any], inputs: Any, with_gradients: bool) -> None:
    try:
        found = call()
        outs = [t for t in tree_leaves(found) if isinstance(t, Tensor) and t.requires_grad]
        ins = [t for t in tree_leaves(inputs) if isinstance(t, Tensor) and t.requires_grad]
        if with_gradients and outs and ins:
            losses = [(t.abs() * torch.linspace(1, 2, t.numel()).view(t.shape)).sum() for t in outs]
            torch.autograd.grad(losses, ins, allow_unused=True)
    except (RuntimeError, ValueError, TypeError, AssertionError):
        return  # what this PyTorch doesn't run on the CPU


def _captured(dtype: torch.dtype, samples: int, *, outs: bool) -> Calls:
    calls = Calls(outs=outs)
    for op in op_db:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        grad = op.supports_autograd and dtype.is_floating_point
        for n, s in enumerate(op.sample_inputs("cpu", dtype, requires_grad=grad)):
            if n == samples:
                break
            with calls:
                inputs = (s.input, s.args, s.kwargs)
                _use(lambda op=op, s=s: op(s.input, *s.args, **s.kwargs), inputs, grad)  # type: ignore[misc]
    return calls


def _somewhere(like: Tensor, choose: random.Random, around: float = FILL) -> tuple[Tensor, Tensor]:
    """A buffer on the device and a part of it in the shape of `like`, in any layout."""
    dims = list(range(like.ndim))
    choose.shuffle(dims)
    strides = [0] * like.ndim
    step = choose.choice((1, 1, 2))
    for d in dims:
        strides[d] = step
        step = step * max(1, like.shape[d]) + choose.choice((0, 0, 1, 2))
    size = 1 + sum((n - 1) * s for n, s in zip(like.shape, strides, strict=True))
    buffer = torch.full((max(size, 0) + 2 * PAD,), around, device="neuron").to(like.dtype)
    return buffer, buffer.as_strided(like.shape, strides, PAD)


def _outside_is_kept(buffer: Tensor, out: Tensor) -> bool:
    inside = torch.zeros(buffer.shape, dtype=torch.bool)
    inside.as_strided(out.shape, out.stride(), PAD).fill_(1)
    return bool((buffer.cpu()[~inside] == torch.tensor(FILL).to(out.dtype)).all())


def _moved(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.to("neuron")
    return torch.device("neuron") if isinstance(x, torch.device) else x


def _difference(got: Any, expected: Any) -> str:
    try:
        torch.testing.assert_close(
            got, expected, rtol=RTOL, atol=ATOL, equal_nan=True, check_stride=False
        )
    except AssertionError as error:
        return str(error)
    return ""


def _run(overload: Any, names: list[str], given: Any, results: list[Tensor], seed: int) -> str:
    """What is wrong with results that were written into tensors of random layouts, or ''."""
    args, kwargs = tree_map(_moved, given)
    known = {a.name for a in overload._schema.arguments}
    choose = random.Random(seed)  # noqa: S311 - layouts, no secrets
    places = [_somewhere(r, choose) for r in results]
    outs = dict(zip(names, (out for _, out in places), strict=True))
    layouts = [(out.stride(), out.data_ptr()) for out in outs.values()]
    try:
        overload(*args, **{k: v for k, v in kwargs.items() if k in known}, **outs)
    except RuntimeError as error:
        return "" if "must be contiguous" in str(error) else f"refused: {error}"
    for expected, (buffer, out), layout in zip(results, places, layouts, strict=True):
        if out.numel() and (out.stride(), out.data_ptr()) != layout:
            return f"{layout} became {out.stride()}"
        if not _outside_is_kept(buffer, out):
            return f"wrote outside of {tuple(out.shape)} with strides {out.stride()}"
        if said := _difference(out.cpu(), expected):
            return f"{tuple(out.shape)}, strides {out.stride()}: {said}"
    return ""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of samples: deprecated operators, resized results
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_any_layout_of_any_operator(dtype: torch.dtype) -> None:
    calls = _captured(dtype, samples=12, outs=True)
    wrong: dict[str, str] = {}
    count = 0
    for function, found in calls.calls.items():
        overload, names = calls.outs[function] or (None, [])
        if function.overloadpacket.__name__ in NOT_COMPARED:
            continue
        for n, (given, results) in enumerate(found[:12]):
            # A default that only the operator with a result has.
            if len(names) != len(results) or str(overload) == "aten.norm.dtype_out":
                continue
            count += 1
            for seed in (2 * n, 2 * n + 1):
                if said := _run(overload, names, given, results, seed):
                    wrong[str(overload)] = said
    assert count > 500
    assert not wrong


#: Whose results depend on more than values, besides those of NOT_COMPARED.
ON_LAYOUT = {
    "_linalg_det": "the factors of a matrix, or of its transpose",
    "_linalg_slogdet": "the factors of a matrix, or of its transpose",
    "as_strided_copy": "reads its argument's memory",
    "as_strided_scatter": "reads its argument's memory",
    "fractional_max_pool2d": "the windows are drawn",
    "fractional_max_pool3d": "the windows are drawn",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of samples: deprecated operators
def test_arguments_of_any_layout() -> None:
    calls = _captured(torch.float32, samples=12, outs=False)
    wrong: dict[str, str] = {}
    count = refused = 0
    for function, found in calls.calls.items():
        name = function.overloadpacket.__name__
        if name in NOT_COMPARED or name in ON_LAYOUT:
            continue
        for n, (given, results) in enumerate(found[:12]):
            count += 1
            choose = random.Random(n)  # noqa: S311 - layouts, no secrets

            def place(x: Any, choose: random.Random = choose) -> Any:
                if not isinstance(x, Tensor):
                    return _moved(x)
                outside = float("nan") if x.is_floating_point() or x.is_complex() else 1
                return _somewhere(x, choose, outside)[1].copy_(x)

            args, kwargs = tree_map(place, given)
            try:
                got = function(*args, **kwargs)
            except RuntimeError as error:  # a view, or a kernel that looks at the layout
                refused += 1
                if "stride" not in str(error) and "contiguous" not in str(error):
                    wrong[str(function)] = str(error)
                continue
            if said := _difference([t.cpu() for t in tree_leaves(got)], results):
                wrong[str(function)] = said
    assert count > 1000
    assert refused < count // 20
    assert not wrong


X = torch.arange(36.0).reshape(2, 3, 3, 2).sin()
STRIDED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "softmax": (aten._softmax.out, (X, 1, False)),
    "log_softmax": (aten._log_softmax.out, (X, 3, False)),
    "triu": (aten.triu.out, (X,)),
    "tril": (aten.tril.out, (X,)),
    "narrow_copy": (aten.narrow_copy.out, (X, 1, 1, 2)),
    "avg_pool3d": (aten.avg_pool3d.out, (X, [1, 2, 1])),
    "upsample_bicubic2d_backward": (
        aten.upsample_bicubic2d_backward.grad_input, (X, [3, 2], [2, 3, 2, 2], False),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STRIDED)
def test_strided_results_of_kernels_that_write_contiguous_ones(name: str) -> None:
    overload, args = STRIDED[name]
    argument = next(a.name for a in overload._schema.arguments if a.is_out)
    expected = torch.empty(0)
    overload(*args, **{argument: expected})
    for seed in range(8):
        assert _run(overload, [argument], (args, {}), [expected], seed) == ""


def test_a_strided_result_of_another_size_is_resized() -> None:
    out = torch.full((5, 8), 3.0, device="neuron")[:, ::2]
    with pytest.warns(UserWarning, match="resized since it had shape \\[5, 4\\]"):
        found = torch.softmax(X.to("neuron"), 1, out=out)
    assert found is out
    torch.testing.assert_close(out.cpu(), X.softmax(1))


def test_a_result_that_overlaps_an_argument_is_refused() -> None:
    memory = torch.ones(40, device="neuron")
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        torch.triu(memory[:16].view(4, 4), out=memory[1:17].view(4, 4).t())
    with pytest.raises(RuntimeError, match="refers to a single memory location"):
        torch.triu(memory[:16].view(4, 4), out=memory[:4].expand(4, 4))


@pytest.mark.parametrize("size", [(), (1,), (3,), (2, 1), (4, 2, 3)], ids=str)
@pytest.mark.parametrize("name", ["addmm_", "baddbmm_", "addr_"])
def test_in_place_a_product_of_another_size_is_refused(name: str, size: tuple[int, ...]) -> None:
    factors = {
        "addmm_": (torch.ones(2, 4), torch.ones(4, 3)),
        "baddbmm_": (torch.ones(5, 2, 4), torch.ones(5, 4, 3)),
        "addr_": (torch.ones(2), torch.ones(3)),
    }[name]
    messages = []
    for device in ("cpu", "neuron"):
        x = torch.zeros(size, device=device)
        with pytest.raises(RuntimeError) as error:
            getattr(x, name)(*[t.to(device) for t in factors])
        messages.append(str(error.value))
        assert x.shape == size
    assert messages[0] == messages[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of samples: deprecated operators
def test_in_place_what_cpu_refuses_is_refused() -> None:
    """A result of another size than the tensor, say: as out= it would be resized."""
    refused: dict[str, int] = defaultdict(int)
    wrong = {}
    for op in op_db:
        in_place = op.get_inplace()
        if in_place is None or torch.float32 not in op.supported_dtypes("cpu"):
            continue
        for s in op.sample_inputs("cpu", torch.float32):
            given = (s.input, s.args, s.kwargs)

            def call(move: Callable[[Any], Any], f: Any = in_place, given: Any = given) -> str:
                x, args, kwargs = tree_map(move, given)
                try:
                    f(x, *args, **kwargs)
                except (RuntimeError, TypeError, IndexError, ValueError) as error:
                    return str(error) or type(error).__name__
                return ""

            if message := call(lambda x: x.clone() if isinstance(x, Tensor) else x):
                refused[op.name] += 1
                if not call(lambda x: x.to("neuron") if isinstance(x, Tensor) else x):
                    wrong[op.name] = message
    assert {"addmm", "baddbmm", "addr"} <= refused.keys()
    assert not wrong
