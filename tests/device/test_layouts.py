"""Unusual tensors go where they are sent: nested, quantized, sparse, jagged and oneDNN's."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

Tensor = torch.Tensor

# Sparse tensors warn that their invariants are not checked, nested ones that they are prototypes.
pytestmark = pytest.mark.filterwarnings("ignore")

DEVICES = ("cpu", "neuron:0", "neuron:2")  # the current core, and one that is not


def _matrix() -> Tensor:
    return torch.tensor([[0.0, 2, 0, 0], [1, 0, 0, 3], [0, 0, 0, 0], [0, 5, 6, 0]])


def _parts() -> list[Tensor]:
    return [torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3) - 3]


KINDS: dict[str, Callable[[], Tensor]] = {
    "nested": lambda: torch.nested.nested_tensor(_parts()),
    "jagged": lambda: torch.nested.nested_tensor(_parts(), layout=torch.jagged),
    "quantized": lambda: torch.quantize_per_tensor(_matrix(), 0.5, 1, torch.qint8),
    "quantized by channel": lambda: torch.quantize_per_channel(
        _matrix(), torch.tensor([0.5, 0.25, 1, 2]), torch.tensor([0, 1, 2, 3]), 1, torch.quint8
    ),
    "coo": lambda: _matrix().to_sparse(),
    "coo, not coalesced": lambda: torch.sparse_coo_tensor(
        torch.tensor([[0, 0, 1]]), torch.tensor([1.0, 2, 3]), (4,)
    ),
    "hybrid coo": lambda: _matrix().to_sparse(1),
    "csr": lambda: _matrix().to_sparse_csr(),
    "csc": lambda: _matrix().to_sparse_csc(),
    "bsr": lambda: _matrix().to_sparse_bsr((2, 2)),
    "bsc": lambda: _matrix().to_sparse_bsc((2, 2)),
}
_COMPRESSED = {"csr", "csc", "bsr", "bsc"}


def devices(t: Tensor) -> set[str]:
    """Those of a tensor and of all it is made of."""
    found = {str(t.device)}
    if t.layout == torch.sparse_coo:
        found |= devices(t._indices()) | devices(t._values())
    elif t.layout in {torch.sparse_csr, torch.sparse_bsr}:
        found |= devices(t.crow_indices()) | devices(t.col_indices()) | devices(t.values())
    elif t.layout in {torch.sparse_csc, torch.sparse_bsc}:
        found |= devices(t.ccol_indices()) | devices(t.row_indices()) | devices(t.values())
    elif t.is_nested:
        found |= devices(t.values())
    elif t.is_quantized:
        found |= devices(t.int_repr())
    return found


def facts(t: Tensor) -> list[Any]:
    """All that a tensor is but its device, to be compared."""
    same: list[Any] = [t.layout, t.dtype]
    if t.is_nested:
        return [*same, *(part.tolist() for part in t.unbind())]
    if t.is_quantized:
        same += [t.qscheme(), t.int_repr().tolist(), t.dequantize().tolist()]
        if t.qscheme() == torch.per_tensor_affine:
            return [*same, t.q_scale(), t.q_zero_point()]
        scales, zeros = t.q_per_channel_scales(), t.q_per_channel_zero_points()
        return [*same, scales.tolist(), zeros.tolist(), t.q_per_channel_axis()]
    if t.layout == torch.sparse_coo:
        same.append(t.is_coalesced())
    return [*same, tuple(t.shape), t.to_dense().tolist()]


def _saved(t: Tensor, device: str) -> Any:
    file = io.BytesIO()
    torch.save(t, file)
    file.seek(0)
    return torch.load(file, map_location=device, weights_only=False)


def _neuron(t: Tensor, device: str) -> Any:
    if device == "cpu":
        return t.cpu()
    moved: Any = t
    return moved.neuron(int(device[-1]))


#: What brings a tensor to a device.
MOVES: dict[str, Callable[[Tensor, str], Any]] = {
    "to": lambda t, device: t.to(device),
    "to with copy": lambda t, device: t.to(device, copy=True),
    "to like another": lambda t, device: (
        t.to(torch.empty(0, dtype=t.dtype, device=device)) if not t.is_quantized else t.to(device)
    ),
    "named method": _neuron,
    "non_blocking": lambda t, device: t.to(device, non_blocking=True),
    "copy_": lambda t, device: torch.empty_like(t, device=device).copy_(t),
    "save and load": _saved,
}

#: What leaves it where it is.
STAYS: dict[str, Callable[[Tensor], Any]] = {
    "clone": lambda t: t.clone(),
    "detach": lambda t: t.detach(),
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),  # noqa: S301
    "deepcopy": copy.deepcopy,
    "empty_like and copy_": lambda t: torch.empty_like(t).copy_(t),
}


def at(kind: str, device: str) -> Tensor:
    made = KINDS[kind]()
    return made if device == "cpu" else made.to(device)


@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("source", DEVICES)
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("kind", KINDS)
def test_moves(kind: str, move: str, source: str, target: str) -> None:
    t = at(kind, source)
    moved = MOVES[move](t, target)
    assert devices(moved) == {target}
    torch.accelerator.synchronize(source if target == "cpu" and source != "cpu" else None)
    assert facts(moved) == facts(KINDS[kind]())
    assert devices(t) == {source}


@pytest.mark.parametrize("source", DEVICES[1:])
@pytest.mark.parametrize("stay", STAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_stays(kind: str, stay: str, source: str) -> None:
    if (kind, stay) == ("nested", "deepcopy"):  # as on the CPU
        with pytest.raises(NotImplementedError, match="aten::new_empty"):
            copy.deepcopy(at(kind, source))
        return
    made = STAYS[stay](at(kind, source))
    assert devices(made) == {source}
    assert facts(made) == facts(KINDS[kind]())


@pytest.mark.parametrize("source", DEVICES)
@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("kind", [k for k in KINDS if not k.startswith("quantized")])
def test_with_another_type(kind: str, source: str, target: str) -> None:
    moved = at(kind, source).to(target, torch.float64)
    assert devices(moved) == {target}
    assert facts(moved) == facts(KINDS[kind]().to(torch.float64))


@pytest.mark.parametrize("source", DEVICES)
@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("kind", [k for k in KINDS if not k.startswith("quantized")])
def test_factories_like(kind: str, source: str, target: str) -> None:
    made = torch.zeros_like(at(kind, source), device=target)
    assert devices(made) == {target}
    assert facts(made) == facts(torch.zeros_like(KINDS[kind]()))


@pytest.mark.parametrize("device", DEVICES[1:])
@pytest.mark.parametrize(
    "kind", [k for k in KINDS if "q" not in k and k not in {"nested", "jagged"}]
)
def test_made_on_a_core(kind: str, device: str) -> None:
    """A dense tensor of any core becomes a sparse one of it."""
    sparse = KINDS[kind]()
    if kind == "coo, not coalesced":
        made = torch.sparse_coo_tensor(
            torch.tensor([[0, 0, 1]]), torch.tensor([1.0, 2, 3]), (4,), device=device
        )
    elif kind == "hybrid coo":
        made = _matrix().to(device).to_sparse(1)
    else:
        block = (2, 2) if kind in {"bsr", "bsc"} else None
        made = _matrix().to(device).to_sparse(layout=sparse.layout, blocksize=block)
    assert devices(made) == {device}
    assert facts(made) == facts(sparse)
    assert (made + made if kind not in {"csc", "bsr", "bsc"} else made * 2).device == made.device


def test_a_matrix_of_another_core_becomes_sparse() -> None:
    assert devices(torch.eye(3, device="neuron:1").to_sparse()) == {"neuron:1"}


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_host_is_pinned(kind: str) -> None:
    t = at(kind, "neuron:2")
    with pytest.raises(RuntimeError, match="cannot pin"):
        t.pin_memory()


@pytest.mark.parametrize("target", DEVICES[1:])
def test_layout_of_onednn_is_refused(target: str) -> None:
    packed = torch.ones(4, 4).to_mkldnn()
    with pytest.raises(NotImplementedError, match="Unsupported device type for mkldnn layout"):
        packed.to(target)
    with pytest.raises(NotImplementedError, match="a result of layout Mkldnn can't live on neuron"):
        torch.ones(4, 4, device=target).to_mkldnn()


@pytest.mark.parametrize(
    "operator",
    [
        lambda x: x @ x.transpose(1, 2),
        lambda x: torch.nn.functional.linear(x, torch.ones(2, 3, device=x.device)),
        lambda x: x.softmax(-1),
        lambda x: x * 2 + x,
        lambda x: x.reshape(2, -1, 1, 3),
        lambda x: torch._scaled_dot_product_attention_math(*[x.unsqueeze(1)] * 3)[0],
    ],
)
def test_operators_of_nested_tensors(operator: Callable[[Tensor], Tensor]) -> None:
    """Composite ones too, which have kernels of their own for nested tensors, and gradients."""
    results = []
    for device in ("cpu", "neuron"):
        x = torch.nested.nested_tensor(_parts()).to(device).detach().requires_grad_()
        out = operator(x)
        torch.stack([part.square().sum() for part in out.unbind()]).sum().backward()
        assert x.grad is not None
        results.append([t.detach().cpu() for t in (*out.unbind(), *x.grad.unbind())])
    for got, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, expected)
