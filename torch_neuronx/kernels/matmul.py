"""Matrix products, with operands of 1, 2 or 4 bytes and with quantised weights.

Blocks of both factors stay in SBUF while everything that needs them is computed, so that each is
loaded as seldom as its size allows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import nki
import nki.isa as nisa
import nki.language as nl
from nki.errors import NkiError
from torch_neuronx.kernels.reference import wide
from torch_neuronx.kernels.tiles import PARTITIONS, load, row_vector, spans
from torch_neuronx.nki import nki_op

__all__ = ["matmul", "matmul_reference", "quantized_matmul", "quantized_matmul_reference"]

COLUMNS = 512  # of one product: what a PSUM bank holds of float32
_BLOCK_ROWS = 1024
_BLOCK_COLUMNS = 2048
_BLOCK_DEPTH = 2048
WEIGHTS = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)


@nki.jit
def matmul_kernel(lhs: Any, rhs: Any, scale: Any = None) -> Any:
    """Multiply lhs [k, m], transposed, and rhs [k, n]; each column times its scale, if any.

    The right factor may be of another type, whose values the left one's type holds.
    """
    depth, rows = lhs.shape
    columns = rhs.shape[1]
    out = nl.ndarray((rows, columns), dtype=lhs.dtype, buffer=nl.shared_hbm)
    for left, right in spans(columns, _BLOCK_COLUMNS):
        factors = None if scale is None else row_vector(scale[left:right], min(rows, PARTITIONS))
        for top, bottom in spans(rows, _BLOCK_ROWS):
            sums: dict[tuple[int, int], Any] = {}
            for first, last in spans(depth, _BLOCK_DEPTH):
                parts = list(spans(last - first))
                a = [load(lhs[first + x : first + y, top:bottom]) for x, y in parts]
                b = [_right(rhs[first + x : first + y, left:right], lhs.dtype) for x, y in parts]
                _multiply(a, b, sums)
            for (row, column), total in sums.items():
                count, width = total.shape
                result = nl.ndarray((count, width), dtype=lhs.dtype, buffer=nl.sbuf)
                if factors is None:
                    nisa.tensor_copy(dst=result, src=total)
                else:
                    factor = factors[0:count, column : column + width]
                    nisa.tensor_tensor(dst=result, data1=total, data2=factor, op=nl.multiply)
                place = out[top + row : top + row + count, left + column : left + column + width]
                nisa.dma_copy(dst=place, src=result)
    return out


def _right(src: Any, dtype: Any) -> Any:
    """A tile of the right factor, of the left one's type."""
    tile = load(src)
    if tile.dtype == dtype:
        return tile
    wide = nl.ndarray(tile.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=wide, src=tile)
    return wide


def _multiply(a: list[Any], b: list[Any], sums: dict[tuple[int, int], Any]) -> None:
    """Add the products of all tiles to the sums, by their first row and column in the block."""
    for row, row_end in spans(a[0].shape[1]):
        for column, end in spans(b[0].shape[1], COLUMNS):
            part = nl.ndarray((row_end - row, end - column), dtype=nl.float32, buffer=nl.psum)
            for x, y in zip(a, b, strict=True):
                nisa.nc_matmul(dst=part, stationary=x[:, row:row_end], moving=y[:, column:end])
            before = sums.get((row, column))
            total = nl.ndarray(part.shape, dtype=nl.float32, buffer=nl.sbuf)
            if before is None:
                nisa.tensor_copy(dst=total, src=part)
                sums[row, column] = total
            else:
                nisa.tensor_tensor(dst=before, data1=before, data2=part, op=nl.add)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return a b; differentiable.

    Args:
        a: [m, k], float32, bfloat16 or float16.
        b: [k, n], of the same type.

    Raises:
        NkiError: Other shapes or types (NKI274).
    """
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or a.dtype != b.dtype:
        raise _unfit("matmul", a, b)
    out: Tensor = _product(a, b)
    return out


def matmul_reference(a: Tensor, b: Tensor) -> Tensor:
    """Compute the same by operators of PyTorch, with sums of float32."""
    return (wide(a) @ wide(b)).to(a.dtype)


def quantized_matmul(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Return x (weight * scale) for weights of one byte; differentiable in x.

    Args:
        x: [..., k], float32 or bfloat16.
        weight: [k, n], int8, float8_e4m3fn or float8_e5m2.
        scale: [n], float32: what the columns of the weight are multiples of.

    Raises:
        NkiError: Other shapes or types (NKI274).
    """
    fits = weight.dim() == 2 and x.shape[-1] == weight.shape[0] and scale.shape == weight.shape[1:]
    if not fits or weight.dtype not in WEIGHTS or x.dtype is torch.float16:
        raise _unfit("quantized_matmul", x, weight, scale)
    rows = x.reshape(-1, x.shape[-1])
    out: Tensor = _quantized(rows, weight, scale.float())
    return out.reshape(*x.shape[:-1], weight.shape[1])


def quantized_matmul_reference(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Compute the same by operators of PyTorch, with sums of float32."""
    return ((wide(x) @ weight.to(wide(x).dtype)) * scale).to(x.dtype)


def _unfit(name: str, *tensors: Tensor) -> NkiError:
    kinds = ", ".join(f"{t.dtype}{list(t.shape)}" for t in tensors)
    return NkiError("NKI274", f"{name} of {kinds}", "its documentation says what it takes")


@nki_op("torch_neuronx_kernels::matmul", mutates_args=())
def _product(a: Tensor, b: Tensor) -> Tensor:
    out: Tensor = matmul_kernel(a.t().contiguous(), b)
    return out


@nki_op("torch_neuronx_kernels::quantized_matmul", mutates_args=())
def _quantized(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    out: Tensor = matmul_kernel(x.t().contiguous(), weight, scale)
    return out


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    a, b = ctx.saved_tensors
    return _product(grad, b.t()), _product(a.t(), grad)


def _quantized_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    x, weight, scale = ctx.saved_tensors
    scaled = (grad.float() * scale).to(x.dtype)
    ones = torch.ones(weight.shape[0], dtype=torch.float32, device=weight.device)
    return _quantized(scaled, weight.t().contiguous(), ones), None, None


_product.register_autograd(_gradient, setup_context=_save)
_quantized.register_autograd(_quantized_gradient, setup_context=_save)
