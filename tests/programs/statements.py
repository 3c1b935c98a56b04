"""Statements that aren't operators of the table: views, writes, `out=`, casts, constants, modules.

A maker looks at the values that a program has and proposes a statement, or None. What it proposes may be
wrong for the CPU; the generator finds that out by running it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import torch

from tests.programs.program import Statement

Values = Mapping[str, torch.Tensor]
#: Gives a fresh name with a letter before it.
Fresh = Callable[[str], str]
Maker = Callable[[random.Random, Values, Fresh], "Statement | None"]

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8, torch.bool)
SPECIAL = (
    "nan",
    "inf",
    "-inf",
    "0.0",
    "-0.0",
    "1e-40",
    "3e38",
    "65504.0",
    "2.0**-24",
    "1.0",
    "-1.0",
    "0.5",
)


def _some(
    rng: random.Random, values: Values, accept: Callable[[torch.Tensor], bool] = lambda _: True
) -> str | None:
    found = [n for n, x in values.items() if accept(x)]
    # What was made last is taken more often, so that chains get long.
    return rng.choice(found[-4:] if rng.random() < 0.6 else found) if found else None


def _dim(rng: random.Random, x: torch.Tensor) -> int:
    return rng.randrange(-x.dim(), x.dim())


def _slice(rng: random.Random, n: int) -> str:
    start, stop = sorted((rng.randint(0, n), rng.randint(0, n)))
    if start == stop:
        start, stop = 0, n
    step = rng.choice(["", "", "", ":2", ":3"])
    low = rng.choice([str(start), str(start - n) if start else ""])
    return f"{low}:{stop if stop < n else ''}{step}"


def _index(rng: random.Random, x: torch.Tensor) -> str:
    parts: list[str] = []
    for n in x.shape:
        kind = rng.random()
        if kind < 0.35 or not n:
            parts.append(":")
        elif kind < 0.8:
            parts.append(_slice(rng, n))
        elif kind < 0.95:
            parts.append(str(rng.randrange(-n, n)))
        else:
            parts.append(f"None, {_slice(rng, n)}")
    if rng.random() < 0.15 and len(parts) > 1:
        del parts[0]
        parts.insert(0, "...")
    return ", ".join(parts)


def view(rng: random.Random, values: Values, fresh: Fresh) -> Statement | None:
    """A view by one of PyTorch's ways."""
    name = _some(rng, values, lambda x: x.dim() > 0)
    if name is None:
        return None
    x = values[name]
    d, e = _dim(rng, x), _dim(rng, x)
    n = x.shape[d]
    factor = rng.choice([f for f in (1, 2, 3, 4) if n % f == 0])
    forms: list[tuple[str, ...]] = [
        (f"{name}[{_index(rng, x)}]",) * 3,
        (f"{name}.transpose({d}, {e})",),
        (f"{name}.permute({tuple(rng.sample(range(x.dim()), x.dim()))})",),
        (f"{name}.unsqueeze({d})", f"{name}.squeeze({d})", f"{name}.squeeze()"),
        (f"{name}.flatten({min(d % x.dim(), e % x.dim())}, {max(d % x.dim(), e % x.dim())})",) * 2,
        (f"{name}.unflatten({d}, ({factor}, -1))", f"{name}.unflatten({d}, (-1, {factor}))"),
        (f"{name}.reshape(-1)", f"{name}.reshape({x.shape[0]}, -1)", f"{name}.view(-1)", f"{name}.view({x.shape[0]}, -1)"),
        (f"{name}.narrow({d}, {n // 3}, {n - n // 3})", f"{name}.select({d}, {rng.randrange(n) if n else 0})"),
        (f"{name}.diagonal(0, {d}, {e})", f"{name}.movedim({d}, {e})", f"{name}.swapaxes({d}, {e})"),
        (f"{name}.unfold({d}, {max(1, n // 2)}, {rng.choice([1, 2])})",),
        (f"{name}.unsqueeze({d}).expand({', '.join(['-1'] * (x.dim() + 1))})", f"{name}.expand_as({name})"),
        (f"{name}.mT" if x.dim() > 1 else f"{name}.unsqueeze(0)", f"{name}.detach()", f"{name}.flip({d})"),
        (f"{name}.contiguous()", f"{name}.clone()", f"{name}.view_as({name})", f"torch.roll({name}, 1, {d})"),
        (f"{name}.tile((2,))", f"{name}.repeat_interleave(2, {d})", f"{name}.tril()" if x.dim() > 1 else f"{name}.flip(0)"),
    ]  # fmt: skip
    if not _shares_holes(x, values):
        forms.append((_strided(rng, name, x),))
    if x.dim() == 4:
        forms.append((f"{name}.contiguous(memory_format=torch.channels_last)",))
    return Statement((fresh("v"),), rng.choice(rng.choice(forms)), "view")


def _shares_holes(x: torch.Tensor, values: Values) -> bool:
    """Whether the memory is that of an argument with holes: graphs aren't given these."""
    memory = x.untyped_storage()
    return memory.nbytes() > x.itemsize * max(
        y.numel() for y in values.values() if y.untyped_storage().data_ptr() == memory.data_ptr()
    )


def _strided(rng: random.Random, name: str, x: torch.Tensor) -> str:
    total = max(1, x.numel())
    rows, columns = rng.randint(1, 3), rng.randint(1, 4)
    strides = (rng.randint(0, 4), rng.randint(0, 3))
    last = (rows - 1) * strides[0] + (columns - 1) * strides[1]
    offset = rng.randint(0, max(0, total - 1 - last))
    return f"{name}.as_strided(({rows}, {columns}), {strides}, {offset})"


def parts(rng: random.Random, values: Values, fresh: Fresh) -> Statement | None:
    """Several views at once."""
    name = _some(rng, values, lambda x: x.dim() > 0)
    if name is None:
        return None
    x = values[name]
    d = _dim(rng, x)
    n = x.shape[d]
    if not 1 <= n <= 6:
        count, code = 2, f"{name}.tensor_split(2, {d})"
    else:
        count, code = rng.choice(
            [
                (n, f"{name}.unbind({d})"),
                (n, f"{name}.split(1, {d})"),
                (2, f"{name}.tensor_split(2, {d})"),
            ]
        )
    return Statement(tuple(fresh("v") for _ in range(count)), code, "unpack")


def join(rng: random.Random, values: Values, fresh: Fresh) -> Statement | None:
    """`cat` or `stack` of values of one shape."""
    name = _some(rng, values, lambda x: x.dim() > 0)
    if name is None:
        return None
    x = values[name]
    same = [n for n, y in values.items() if y.shape == x.shape]
    chosen = [rng.choice(same) for _ in range(rng.randint(1, 3))]
    how = rng.choice(["torch.cat", "torch.stack", "torch.cat"])
    return Statement(
        (fresh("v"),), f"{how}([{', '.join([name, *chosen])}], {_dim(rng, x)})", "join"
    )


def has_elements_apart(x: torch.Tensor) -> bool:
    """Whether no two elements are one in memory, which makes a write depend on its order."""
    reach = 0
    for step, extent in sorted(zip(x.stride(), x.shape, strict=True)):
        if extent > 1 and 0 < step <= reach:  # PyTorch refuses steps of 0 by itself
            return False
        reach += (extent - 1) * step
    return True


def write(rng: random.Random, values: Values, fresh: Fresh) -> Statement | None:
    """A write into a value or into a view of it."""
    del fresh
    name = _some(rng, values, has_elements_apart)
    if name is None:
        return None
    x = values[name]
    place = f"{name}[{_index(rng, x)}]" if x.dim() and rng.random() < 0.5 else name
    other = _some(rng, values, lambda y: y.shape == x.shape) or name
    number = rng.choice(["2", "0.5", "-1", "0", "3"])
    forms = [
        f"{place}.add_({number})", f"{place}.mul_({number})", f"{place}.zero_()", f"{place}.fill_({number})",
        f"{place}.clamp_(-1, 1)", f"{place}.neg_()", f"{place}.relu_()", f"{place}.abs_()", f"{place}.sigmoid_()",
        f"{name}.copy_({other})", f"{name}.add_({other})", f"{name}.mul_({other})", f"{name}.sub_({other}, alpha=2)",
        f"{name}.masked_fill_({other} > 0, {number})", f"{name}.addcmul_({other}, {other}, value=0.5)",
        f"{name}.lerp_({other}, 0.3)", f"{name}.copy_({name}.flip(0))" if x.dim() else f"{name}.add_(1)",
    ]  # fmt: skip
    if x.dim():
        forms += [
            f"{name}[{_index(rng, x)}] = {number}",
            f"{name}.__setitem__(0, {name}[-1])",
        ]
    if x.dim() == 2:
        forms += [
            f"{name}.t_()",
            f"{name}.transpose_(0, 1)",
            f"{name}.index_fill_(1, torch.tensor([0], device={name}.device), {number})",
        ]
    return Statement((), rng.choice(forms), "write")


def out(rng: random.Random, values: Values, fresh: Fresh) -> Statement | None:
    """An operator with `out=`, into a value, a view or something new."""
    name = _some(rng, values, lambda x: not x.requires_grad)
    if name is None:
        return None
    x = values[name]
    other = _some(rng, values, lambda y: y.shape == x.shape and not y.requires_grad) or name
    target = (
        _some(
            rng, values, lambda y: y.shape == x.shape and y.dtype == x.dtype and not y.requires_grad
        )
        or name
    )
    new = rng.choice(
        [
            f"torch.zeros_like({name})",
            target,
            f"{name}.new_zeros({tuple(x.shape[:-1]) + ((2 * x.shape[-1],) if x.dim() else ())})[..., ::2]"
            if x.dim()
            else target,
        ]
    )
    call = rng.choice(
        [f"torch.add({name}, {other}, out={new})", f"torch.mul({name}, {other}, out={new})", f"torch.exp({name}, out={new})",
         f"torch.where({name} > 0, {name}, {other}, out={new})", f"torch.cat([{name}], 0, out={new})", f"torch.maximum({name}, {other}, out={new})",
         f"torch.sum({name}, 0, keepdim=True, out={name}.new_zeros({(1, *x.shape[1:])}))" if x.dim() else f"torch.neg({name}, out={new})",
         f"torch.cumsum({name}, -1, out={new})"]
    )  # fmt: skip
    return Statement((fresh("v"),), call, "out")


def cast(rng: random.Random, values: Values, fresh: Fresh) -> Statement | None:
    """Another type."""
    name = _some(rng, values)
    if name is None:
        return None
    dtype = rng.choice(DTYPES)
    forms = [f"{name}.to({dtype})", f"{name}.type({dtype})"]
    if values[name].dtype.itemsize == dtype.itemsize:
        forms.append(f"{name}.view({dtype})")
    return Statement((fresh("v"),), rng.choice(forms), "cast")


def constant(rng: random.Random, values: Values, fresh: Fresh) -> Statement | None:
    """A new tensor, with special values now and then."""
    name = _some(rng, values)
    if name is None:
        return None
    x = values[name]
    number = rng.choice([*SPECIAL, "2", "1", "3"])
    forms = [
        f"torch.full_like({name}, {number})", f"{name}.new_ones({tuple(x.shape)})",
        f"torch.arange({max(1, x.shape[-1] if x.dim() else 1)}, device={name}.device)",
        f"{name}.new_tensor([{', '.join(rng.choice(SPECIAL) for _ in range(3))}])", f"torch.zeros_like({name})",
        f"torch.linspace(-2, 2, {max(1, x.shape[-1] if x.dim() else 1)}, device={name}.device)",
        f"torch.eye({max(1, x.shape[-1] if x.dim() else 1)}, device={name}.device)",
    ]  # fmt: skip
    return Statement((fresh("v"),), rng.choice(forms), "constant")


def scalar(rng: random.Random, values: Values, fresh: Fresh) -> Statement | None:
    """Arithmetic of values with each other by broadcasting, and with numbers."""
    name = _some(rng, values)
    other = _some(rng, values)
    if name is None or other is None:
        return None
    number = rng.choice([*SPECIAL, "2", "3", "-2", "True", "1.5", "10"])
    right = other if rng.random() < 0.6 else number
    op = rng.choice(
        [
            "+",
            "-",
            "*",
            "/",
            "+",
            "*",
            "-",
            "//",
            "%",
            "**",
            ">",
            "<=",
            "==",
            "!=",
            "&",
            "|",
            "^",
            "@",
            "<<",
            ">>",
        ]
    )
    left, right = (name, right) if rng.random() < 0.8 else (right, name)
    return Statement(
        (fresh("v"),),
        f"{left} {op} {right}" if not left.startswith("-") else f"({left}) {op} {right}",
        "scalar",
    )


def gather(rng: random.Random, values: Values, fresh: Fresh) -> Statement | None:
    """Indexing by tensors; indices may be out of range."""
    name = _some(rng, values, lambda x: x.dim() > 0 and x.numel() > 0)
    if name is None:
        return None
    x = values[name]
    d = _dim(rng, x)
    n = x.shape[d]
    wrong = rng.random() < 0.06
    count = rng.randint(1, 4)
    listed = [rng.randrange(n) for _ in range(count)]
    if wrong:
        listed[rng.randrange(count)] = rng.choice([n, n + 5, -n - 1])
    index = f"torch.tensor({listed}, device={name}.device)"
    rows = f"torch.tensor({[i % x.shape[0] for i in listed] if not wrong else listed}, device={name}.device)"
    shape = [1] * x.dim()
    shape[d] = count
    spread = f"{index}.view({tuple(shape)}).expand({tuple(count if i == d % x.dim() else s for i, s in enumerate(x.shape))})"
    forms = [
        f"{name}.index_select({d}, {index})", f"{name}[{rows}]", f"torch.gather({name}, {d}, {spread})",
        f"{name}.scatter({d}, {spread}, 1)", f"torch.take({name}, {rows})", f"{name}[{name} > 0]" if rng.random() < 0.2 else f"{name}[..., {rows}]",
        f"{name}.index_add({d}, {index}, {name}.index_select({d}, {index}))", f"{name}.index_fill({d}, {index}, 2)",
        f"torch.scatter_add({name}, {d}, {spread}, {name}.gather({d}, {spread}))", f"{name}.take_along_dim({spread}, {d})",
        f"{name}.scatter_reduce({d}, {spread}, {name}.gather({d}, {spread}), 'amax')", f"torch.index_put({name}, ({rows},), {name}[0])",
        f"F.embedding({rows}, {name})" if x.dim() == 2 else f"{name}[{rows}, None]", f"F.one_hot({rows}, {x.shape[0]})",
        f"F.cross_entropy({name}[:{count}], torch.tensor({listed[: x.shape[0]]}, device={name}.device))" if x.dim() == 2 and d % 2 == 1 else f"{name}[{rows}] * 2",
    ]  # fmt: skip
    return Statement((fresh("v"),), rng.choice(forms), "gather")


def reduce(rng: random.Random, values: Values, fresh: Fresh) -> Statement | None:
    """Reductions, scans, sorts and normalisations over chosen dimensions."""
    name = _some(rng, values, lambda x: x.dim() > 0)
    if name is None:
        return None
    x = values[name]
    d = _dim(rng, x)
    dims = rng.sample(range(x.dim()), rng.randint(1, x.dim()))
    keep = rng.choice(["", ", keepdim=True"])
    n = x.shape[-1]
    forms = [
        *(f"{name}.{f}({d}{keep})" for f in ("sum", "mean", "prod", "amax", "amin", "argmax", "all", "any", "std", "logsumexp")),
        *(f"{name}.{f}({tuple(dims)}{keep})" for f in ("sum", "mean", "amax", "var", "nansum")),
        f"{name}.sum()", f"{name}.cumsum({d})", f"{name}.cumprod({d})", f"{name}.softmax({d})", f"{name}.log_softmax({d})",
        f"{name}.sort({d}).values", f"{name}.max({d}{keep})[0]", f"{name}.median({d}{keep})[0]", f"{name}.topk(1, {d})[0]",
        f"F.layer_norm({name}, ({n},))", f"F.rms_norm({name}, ({n},))", f"F.normalize({name}, dim={d})", f"{name}.norm(dim={d}{keep})",
        f"{name}.cummax({d})[0]", f"{name}.logcumsumexp({d})", f"{name}.argsort({d}, stable=True)", f"{name}.diff(dim={d})",
        f"torch.count_nonzero({name}, {d})",
    ]  # fmt: skip
    return Statement((fresh("v"),), rng.choice(forms), "reduce")


_ACTIVATIONS = (
    "relu",
    "gelu",
    "silu",
    "tanh",
    "sigmoid",
    "softplus",
    "elu",
    "leaky_relu",
    "hardswish",
    "mish",
    "logsigmoid",
    "hardtanh",
    "softsign",
    "selu",
)


def pointwise(rng: random.Random, values: Values, fresh: Fresh) -> Statement | None:
    """A function of one value."""
    name = _some(rng, values)
    if name is None:
        return None
    forms = [f"F.{f}({name})" for f in _ACTIVATIONS] + [
        f"torch.{f}({name})"
        for f in (
            "exp",
            "log",
            "sqrt",
            "rsqrt",
            "abs",
            "neg",
            "floor",
            "round",
            "trunc",
            "sin",
            "cos",
            "erf",
            "sign",
            "reciprocal",
            "square",
            "log1p",
            "expm1",
            "isnan",
            "nan_to_num",
            "logical_not",
            "atan",
            "asinh",
            "frac",
        )
    ]
    forms += [
        f"torch.where({name} > 0, {name}, -{name})",
        f"{name}.clamp(min=-0.5)",
        f"{name}.pow({rng.choice(['2', '3', '0.5', '-1', '-0.5', '0'])})",
    ]
    return Statement((fresh("v"),), rng.choice(forms), "pointwise")


#: Weighted: what was in the programs that found mistakes comes more often.
MAKERS: tuple[tuple[Maker, float], ...] = (
    (view, 3.0), (parts, 0.7), (join, 1.2), (write, 1.6), (out, 0.4), (cast, 0.8), (constant, 0.5),
    (scalar, 2.2), (gather, 1.0), (reduce, 1.6), (pointwise, 1.6),
)  # fmt: skip


_WEIGHTED = ("Linear", "Norm", "PReLU", "GRU", "LSTM", "RNN", "Conv", "Transformer")


def modules(  # noqa: C901 (a branch for each number of dimensions)
    rng: random.Random, values: Values, fresh: Fresh, *, draws: bool = False
) -> tuple[Statement, str, str] | None:
    """A call of a module on a value that fits: the statement, the module's name and its text.

    Most are in training mode. With `draws` there are those that drop elements, too.
    """
    name = _some(
        rng, values, lambda x: x.dtype.is_floating_point and x.dim() >= 1 and x.numel() > 0
    )
    if name is None:
        return None
    x = values[name]
    n = x.shape[-1]
    c = x.shape[1] if x.dim() > 1 else 0
    k = rng.choice([1, 2, 3])
    texts = [
        f"nn.Linear({n}, {rng.choice([2, 4, 5])})",
        f"nn.RMSNorm({n})",
        "nn.PReLU()",
        "nn.GLU()",
        "nn.Flatten()",
    ]
    if draws:
        texts += ["nn.Dropout(0.4)", "nn.Dropout(0.2)", "nn.AlphaDropout(0.3)", "nn.RReLU()"]
        if x.dim() in (2, 3) and n > 1:
            texts += [
                f"nn.TransformerEncoderLayer({n}, 1, 8, dropout=0.3, batch_first=True)",
                f"nn.GRU({n}, 3, 2, dropout=0.4)",
                f"nn.Sequential(nn.Linear({n}, 6), nn.Dropout(0.5), nn.Linear(6, 3))",
            ]
    if x.dim() in (2, 3):
        texts += [
            f"nn.GRU({n}, 3, batch_first=True)",
            f"nn.LSTM({n}, 3, bidirectional=True)",
            f"nn.RNN({n}, 2)",
        ]
        texts += [
            f"nn.BatchNorm1d({c})",
            f"nn.InstanceNorm1d({c})",
        ]
    if n > 1:  # the norm of one number is 0, of which the CPU leaves a rounding
        texts.append(f"nn.LayerNorm({n})")
        if x.dim() in (2, 3):
            encoder = f"nn.TransformerEncoderLayer({n}, 1, 8, dropout=0.0, batch_first=True)"
            texts.append(encoder)
    if x.dim() == 3:
        texts += [
            f"nn.Conv1d({c}, 4, {k}, padding={k // 2})",
            f"nn.ConvTranspose1d({c}, 3, {k}, stride=2)",
            "nn.AvgPool1d(2)",
            "nn.MaxPool1d(2)",
        ]
    if x.dim() == 4:
        s = rng.choice([1, 2])
        texts += [
            f"nn.Conv2d({c}, 4, {k}, stride={s}, padding={k // 2})", f"nn.Conv2d({c}, {c}, {k}, groups={c})", f"nn.ConvTranspose2d({c}, 3, {k}, stride=2)",
            f"nn.BatchNorm2d({c})", f"nn.GroupNorm(1, {c})", "nn.MaxPool2d(2)", "nn.AvgPool2d(2, 1)", "nn.AdaptiveAvgPool2d((1, 2))",
            "nn.Upsample(scale_factor=2)", "nn.PixelUnshuffle(2)", f"nn.InstanceNorm2d({c}, affine=True)", "nn.Flatten(1)", "nn.Upsample(scale_factor=2, mode='bilinear')",
        ]  # fmt: skip
    text = rng.choice(texts)
    if x.dtype is not torch.float32 and rng.random() < 0.9 and any(w in text for w in _WEIGHTED):
        text = f"{text[:-1]}{'' if text.endswith('()') else ', '}dtype={x.dtype})"
    if draws and "Sequential" in text:
        text = text.replace(f", dtype={x.dtype}", "") + f".to({x.dtype})"
    if rng.random() < 0.25:
        text += ".eval()"
    module = fresh("m")
    first = (
        "[0]" if any(r in text for r in ("GRU", "LSTM", "RNN(")) and "RMSNorm" not in text else ""
    )
    dropped = draws and ("ropout" in text or "RReLU" in text) and not text.endswith(".eval()")
    form = "random" if dropped else "module"
    return Statement((fresh("v"),), f"{module}({name}){first}", form), module, text
