"""Statements that are seldom written and often wrong: draws, overlapping writes, other layouts.

They are makers as those of `statements.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import torch

from tests.programs.program import Statement
from tests.programs.statements import has_elements_apart

Values = Mapping[str, torch.Tensor]
Fresh = Callable[[str], str]


def _some(rng: random.Random, values: Values, accept: Callable[[torch.Tensor], bool]) -> str | None:
    found = [n for n, x in values.items() if accept(x)]
    return rng.choice(found[-4:] if rng.random() < 0.6 else found) if found else None


def _is_real(x: torch.Tensor) -> bool:
    return x.dtype.is_floating_point and x.itemsize > 1


def _is_filled(x: torch.Tensor) -> bool:
    return _is_real(x) and x.dim() > 0 and x.numel() > 0


def draw(rng: random.Random, values: Values, fresh: Fresh) -> Statement | None:
    """Random numbers, and functions that drop elements at random."""
    name = _some(rng, values, _is_real)
    if name is None:
        return None
    x = values[name]
    shape = tuple(x.shape)
    p = rng.choice(["0.1", "0.5", "0.9", "0.0", "1.0"])
    new = f"dtype={x.dtype}, device={name}.device"
    forms = [
        f"F.dropout({name}, {p})", f"F.dropout({name}, {p})", f"F.dropout({name}, {p}, training=False)",
        f"F.alpha_dropout({name}, 0.3, training=True)", f"F.rrelu({name}, training=True)",
        f"torch.rand_like({name})", f"torch.randn_like({name})", f"torch.randint_like({name}, 7)",
        f"torch.rand({shape}, {new})", f"torch.randn({shape}, {new})", f"torch.randint(-3, 9, {shape}, device={name}.device)",
        f"torch.randperm(7, device={name}.device)", f"torch.bernoulli({name}.sigmoid())", f"torch.bernoulli({name}, p=0.3)",
        f"torch.normal({name}, 0.5)", f"torch.normal(0.5, {name}.abs())", f"torch.normal({name}, {name}.abs())",
        f"torch.poisson({name}.abs())", f"torch.empty_like({name}).exponential_(2)", f"torch.empty_like({name}).geometric_(0.4)",
        f"torch.empty_like({name}).cauchy_()", f"torch.empty_like({name}).log_normal_()", f"torch.empty_like({name}).random_(5)",
        f"torch.empty_like({name}).uniform_(-2, 3)", f"torch.empty_like({name}).normal_(1, 2)",
        f"torch.empty_like({name}).bernoulli_(0.4)", f"torch.rand_like({name}, dtype=torch.float64)",
        f"{name} + torch.rand({shape[-1:]}, {new})", f"torch.where(torch.rand_like({name}) > 0.5, {name}, 0)",
        f"F.gumbel_softmax({name}, dim=0)" if x.dim() else f"F.dropout({name}, 0.3)",
    ]  # fmt: skip
    writes = [
        f"{name}.normal_()", f"{name}.uniform_()", f"{name}.random_(9)", f"{name}.bernoulli_(0.5)",
        f"{name}.exponential_()", f"F.dropout({name}, {p}, inplace=True)",
    ]  # fmt: skip
    if x.dim() in (1, 2) and x.numel():
        forms.append(f"torch.multinomial({name}.float().nan_to_num(0).softmax(-1), 1)")
    if x.dim() in (3, 4):
        forms += [
            f"F.dropout1d({name}, {p})",
            f"F.feature_alpha_dropout({name}, 0.3, training=True)",
        ]
        forms.append(f"F.scaled_dot_product_attention({name}, {name}, {name}, dropout_p=0.3)")
    if x.dim() == 4:
        forms.append(f"F.dropout2d({name}, {p})")
    if rng.random() < 0.15:
        return Statement((), rng.choice(writes), "random")
    return Statement((fresh("v"),), rng.choice(forms), "random")


def overlap(rng: random.Random, values: Values, fresh: Fresh) -> Statement | None:
    """A write, or an `out=`, whose operands share memory with what is written, wholly or partly."""
    name = _some(rng, values, lambda x: x.dim() > 0 and x.shape[0] > 1 and has_elements_apart(x))
    if name is None:
        return None
    n = values[name].shape[0]
    low, high = f"{name}[:{n - 1}]", f"{name}[1:]"
    function = rng.choice(["add", "mul", "maximum", "sub", "atan2", "logical_and", "eq"])
    single = rng.choice(["exp", "neg", "abs", "sigmoid", "floor"])
    pairs = [(low, low), (name, name)]
    # What an overlap of tensors with gaps gives, PyTorch neither defines nor always refuses.
    if values[name].is_contiguous():
        pairs += [(low, high), (high, low), (f"{name}[::2]", f"{name}[:{(n + 1) // 2}]")]
    a, b = rng.choice(pairs)
    out = [
        f"torch.{function}({a}, {a}, out={b})", f"torch.{single}({a}, out={b})", f"torch.cumsum({a}, 0, out={b})",
        f"torch.where({a} > 0, {a}, {b}, out={b})", f"torch.cat([{a}], out={b})", f"torch.sort({a}, 0, out=({b}, torch.zeros_like({a}, dtype=torch.int64)))[0]",
        f"torch.{function}({name}, {name}.flip(0), out={name})", f"torch.clamp({a}, 0, 1, out={b})",
    ]  # fmt: skip
    write = [
        f"{a}.copy_({b})", f"{a}.add_({b})", f"{a}.mul_({b})", f"{name}.__setitem__(slice(1, None), {low})",
        f"torch._foreach_add_([{a}], [{b}])", f"{a}.addcmul_({b}, {a})", f"{a}.swapaxes(0, -1).add_({b})",
    ]  # fmt: skip
    if rng.random() < 0.6:
        return Statement((fresh("v"),), rng.choice(out), "out")
    return Statement((), rng.choice(write), "write")


def round_trip(rng: random.Random, values: Values, fresh: Fresh) -> Statement | None:
    """A tensor of another kind, and back: 8-bit floats, complex, sparse, nested, quantised, bits."""
    name = _some(rng, values, _is_real)
    if name is None:
        return None
    x = values[name]
    eight = rng.choice(["float8_e4m3fn", "float8_e5m2"])
    back = f".to({x.dtype})"
    forms = [
        f"{name}.to(torch.{eight}){back}", f"{name}.to(torch.{eight})", f"({name}.to(torch.{eight}).view(torch.uint8) & 127).view(torch.{eight}){back}",
        f"torch.cat([{name}.to(torch.{eight}).view(-1), {name}.to(torch.{eight}).view(-1)])[1:].clone(){back}" if x.is_contiguous() else f"{name}.to(torch.{eight}).contiguous(){back}",
        f"({name} > 0).to(torch.int8)", f"({name} > 0) & ({name} < 1)", f"({name} > 0).sum()", f"~({name} > 0)", f"{name}.ge(0).long().cumsum(0)" if x.dim() else f"{name}.ge(0).long()",
        f"{name}.nan_to_num(0, 100, -100).clamp(-100, 100).to(torch.int32) << 2", f"{name}.nan_to_num(0, 9, -9).clamp(-100, 100).to(torch.int16) // 3",
    ]  # fmt: skip
    if x.dtype in (torch.float32, torch.float64):
        forms += [
            f"torch.complex({name}, {name}).abs()", f"torch.polar({name}.abs(), {name}).real", f"torch.view_as_complex(torch.stack([{name}, -{name}], -1)).conj().imag",
            f"torch.view_as_real(torch.complex({name}, {name} * 2) * torch.complex({name}, -{name}))", f"(torch.complex({name}, {name}) * 1j).angle()",
            f"torch.fft.rfft({name}).abs()" if x.dim() and x.numel() else f"{name}.abs()", f"{name}.to(torch.complex64)",
            f"torch.view_as_real(torch.complex({name}, {name}).conj().resolve_conj())[..., 1]",
        ]  # fmt: skip
    if x.dtype is torch.float32:
        forms += [
            f"torch.quantize_per_tensor({name}.nan_to_num(0, 9, -9), 0.05, 3, torch.qint8).dequantize()",
            f"torch.quantize_per_tensor({name}.nan_to_num(0, 9, -9), 0.05, 3, torch.quint8).int_repr()",
            f"torch.fake_quantize_per_tensor_affine({name}, 0.1, 0, -128, 127)",
        ]  # fmt: skip
    if x.dim() and x.numel():
        forms += [f"{name}.to_sparse().to_dense()", f"({name}.to_sparse() * 2).coalesce().to_dense()", f"torch.nested.nested_tensor([{name}, {name}]).to_padded_tensor(0.0)"]  # fmt: skip
    if x.dim() == 2 and x.numel():
        forms += [
            f"{name}.to_sparse_csr().to_dense()", f"torch.sparse.mm({name}.to_sparse(), {name}.t())", f"{name}.to_sparse() @ {name}.mT",
            f"torch.nested.as_nested_tensor([{name}, {name}[:1]], layout=torch.jagged).values()", f"torch.sparse.sum({name}.to_sparse(), 0).to_dense()",
        ]  # fmt: skip
    return Statement((fresh("v"),), rng.choice(forms), "round trip")


def autocast(rng: random.Random, values: Values, fresh: Fresh) -> Statement | None:
    """A call within a region of its own."""
    name = _some(rng, values, lambda x: _is_real(x) and x.dim() > 0)
    if name is None:
        return None
    x = values[name]
    dtype = rng.choice(["torch.bfloat16", "torch.float16"])
    calls = [
        ("torch.prod", name),
        ("torch.sum", name),
        ("torch.exp", name),
        ("torch.add", name, name),
    ]
    if x.dim() > 1:
        calls += [("torch.matmul", name, f"{name}.mT"), ("torch.matmul", f"{name}.half()", f"{name}.mT"), ("F.linear", name, name if x.dim() == 2 else f"{name}[0, :1]")]  # fmt: skip
    if x.dim() == 3:
        calls += [("torch.baddbmm", f"{name} @ {name}.mT", name, f"{name}.mT"), ("F.scaled_dot_product_attention", name, name, name)]  # fmt: skip
    function, *args = rng.choice(calls)
    return Statement(
        (fresh("v"),), f"under_autocast({function}, {dtype}, {', '.join(args)})", "autocast"
    )


def aside(rng: random.Random, values: Values, fresh: Fresh) -> Statement | None:
    """A call after a graph break, or between events; a value that depends on data."""
    name = _some(rng, values, _is_filled)
    if name is None:
        return None
    if rng.random() < 0.25:
        forms = [f"{name} * 2 if bool(({name} > 0).any()) else -{name}", f"{name} + {name}.detach().nan_to_num(0, 9, -9).sum().item()"]  # fmt: skip
        return Statement((fresh("v"),), rng.choice(forms), "aside")
    return _cut(rng, name, values, fresh, ["break", "break", "events", "synchronized"])


def streams(rng: random.Random, values: Values, fresh: Fresh) -> Statement | None:
    """A call on another stream."""
    name = _some(rng, values, _is_filled)
    return None if name is None else _cut(rng, name, values, fresh, ["stream"])


def _cut(
    rng: random.Random, name: str, values: Values, fresh: Fresh, hows: Sequence[str]
) -> Statement:
    x = values[name]
    other = _some(rng, values, lambda y: y.shape == x.shape and y.dtype == x.dtype) or name
    calls = [
        ("torch.exp", name), ("torch.mul", name, other), ("torch.sum", name), ("torch.softmax", name, "-1"),
        ("torch.select", name, "0", "0"), ("torch.flatten", name), ("torch.transpose", name, "0", "-1"), ("torch.unbind", name),
        ("torch.Tensor.detach", name), ("torch.Tensor.view_as", name, name), ("torch.add", name, f"{name}.flip(0)"), ("torch.cumsum", name, "0"),
    ]  # fmt: skip
    if has_elements_apart(x):
        calls += [("torch.Tensor.add_", name, other), ("torch.Tensor.mul_", f"{name}[:1]", "2"), ("torch.relu_", name), ("torch.Tensor.copy_", name, other)]  # fmt: skip
    if x.dim() == 2:
        calls += [("torch.matmul", name, f"{name}.mT"), ("F.layer_norm", name, f"({x.shape[1]},)")]
    function, *args = rng.choice(calls)
    return Statement(
        (fresh("v"),), f"aside({rng.choice(hows)!r}, {function}, {', '.join(args)})", "aside"
    )


def elsewhere(rng: random.Random, values: Values, fresh: Fresh) -> Statement | None:
    """An operand on the host beside one of the device, which is mostly a mistake."""
    name = _some(rng, values, lambda x: x.numel() > 0)
    if name is None:
        return None
    x = values[name]
    forms = [
        f"{name} + {name}.cpu()", f"torch.where({name}.cpu() > 0, {name}, {name})", f"torch.stack([{name}, {name}.cpu()])", f"{name} * torch.tensor(2.0)",
        f"{name}.clone().copy_({name}.cpu())", f"torch.addcmul({name}, {name}.cpu(), {name})", f"{name}.cpu() * 2 + {name}.cpu()", f"{name}.cpu().to({name}.device)",
        f"{name}.masked_fill({name}.cpu() > 0, 1)", f"torch.maximum({name}.cpu(), {name})", f"torch.lerp({name}, {name}, {name}.cpu())",
    ]  # fmt: skip
    if x.dim():
        forms += [f"{name}[torch.tensor([0])]", f"{name}.index_select(0, torch.tensor([0]))", f"{name}.gather(0, torch.zeros({tuple(x.shape)}, dtype=torch.int64))"]  # fmt: skip
    if x.dim() == 2 and _is_real(x):
        forms += [f"{name} @ {name}.cpu().mT", f"F.linear({name}, {name}, {name}[:, 0].cpu())", f"F.layer_norm({name}, {tuple(x.shape[1:])}, {name}[0].cpu())"]  # fmt: skip
    return Statement((fresh("v"),), rng.choice(forms), "elsewhere")
