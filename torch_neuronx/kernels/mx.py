"""Products in the microscaling format MXFP8, which Trainium3's Tensor engine has."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import nki
import nki.isa as nisa
import nki.language as nl
from nki.errors import NkiError
from nki.isa import mx
from torch_neuronx.kernels.matmul import COLUMNS, matmul
from torch_neuronx.kernels.tiles import PARTITIONS, spans
from torch_neuronx.nki import nki_op

__all__ = ["mx_matmul", "mx_matmul_reference"]

PACK = 4  # elements of one item
LEAST = 32  # partitions: groups of 32 elements are 8 partitions of 4


@nki.jit
def mx_kernel(lhs: Any, rhs: Any) -> Any:
    """Multiply lhs [m, k] and rhs [n, k], transposed, both quantised along k on the way."""
    rows, depth = lhs.shape
    columns = rhs.shape[0]
    out = nl.ndarray((rows, columns), dtype=lhs.dtype, buffer=nl.shared_hbm)
    for left, right in spans(columns, COLUMNS):
        moving = _quantised(rhs[left:right], depth)
        for top, bottom in spans(rows):
            stationary = _quantised(lhs[top:bottom], depth)
            total = nl.ndarray((bottom - top, right - left), dtype=nl.float32, buffer=nl.psum)
            for (a, a_scale), (b, b_scale) in zip(stationary, moving, strict=True):
                nisa.nc_matmul_mx(
                    dst=total, stationary=a, moving=b, stationary_scale=a_scale,
                    moving_scale=b_scale,
                )  # fmt: skip
            result = nl.ndarray(total.shape, dtype=lhs.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=result, src=total)
            nisa.dma_copy(dst=out[top:bottom, left:right], src=result)
    return out


def _quantised(src: Any, depth: int) -> list[tuple[Any, Any]]:
    """Rows [n, k] of HBM as quantised tiles [k / 4, n] of four elements each, with their scales."""
    count = src.shape[0]
    found = []
    for first, last in spans(depth, PACK * PARTITIONS):
        partitions = (last - first) // PACK
        tile = nl.ndarray((partitions, PACK * count), dtype=src.dtype, buffer=nl.sbuf)
        # Partition p holds elements 4 p to 4 p + 3 of every row.
        pattern = [[PACK, partitions], [depth, count], [1, PACK]]
        nisa.dma_copy(dst=tile.reshape_dim(1, (count, PACK)), src=src.ap(pattern, offset=first))
        items = nl.ndarray((partitions, count), dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
        scales = nl.ndarray((partitions, count), dtype=nl.float8_e8m0fnu, buffer=nl.sbuf)
        nisa.quantize_mx(dst=items, src=tile, dst_scale=scales)
        found.append((items, scales))
    return found


def mx_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """Return x weight^T with both factors rounded to MXFP8 (e4m3fn, groups of 32 along k).

    The gradient is that of the product without rounding. On neuron tensors the emulated device must
    be trn3; tensors of the CPU have NKI's default target, which is.

    Args:
        x: [m, k], bfloat16 or float16; an even m, k a multiple of 128.
        weight: [n, k], of the same type.

    Raises:
        NkiError: Other shapes or types (NKI274), or another target (NKI112).
    """
    fits = x.dim() == weight.dim() == 2 and x.shape[1] == weight.shape[1]
    if not fits or x.shape[1] % (LEAST * PACK) or x.shape[0] % 2 or x.dtype != weight.dtype:
        kinds = ", ".join(f"{t.dtype}{list(t.shape)}" for t in (x, weight))
        raise NkiError("NKI274", f"mx_matmul of {kinds}", "its documentation says what it takes")
    out: Tensor = _product(x, weight)
    return out


def mx_matmul_reference(x: Tensor, weight: Tensor) -> Tensor:
    """Compute the same by operators of PyTorch, with sums of float32."""
    return (rounded(x) @ rounded(weight).t()).to(x.dtype)


def rounded(x: Tensor) -> Tensor:
    """Return float32 values of rows rounded to MXFP8, as `nisa.quantize_mx` documents it."""
    groups = x.float().reshape(x.shape[0], -1, 32)
    largest = groups.abs().amax(-1, keepdim=True)
    exponent = torch.frexp(largest)[1] - 1 - (8 if mx.rule_in_use() is mx.ScaleRule.OCP else 7)
    scale = torch.ldexp(torch.ones_like(largest), exponent)
    scale = torch.where(largest == 0, 2.0**-127, scale)
    kept = (groups / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn).float()
    return (kept * scale).reshape(x.shape)


@nki_op("torch_neuronx_kernels::mx_matmul", mutates_args=())
def _product(x: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = mx_kernel(x, weight)
    return out


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, weight = ctx.saved_tensors
    return matmul(grad, weight), matmul(grad.t(), x)


_product.register_autograd(_gradient, setup_context=_save)
