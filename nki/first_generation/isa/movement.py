"""Instructions of the Tensor Engine and of DMA, with the signatures of the first generation."""

from __future__ import annotations

import math
from typing import Any

from nki.errors import NkiError
from nki.first_generation.boxes import Box, boxes_of, region_of_mask, whole_box
from nki.first_generation.compute import Operand, as_tensor, compute, tile_of
from nki.first_generation.dtypes import dtype_name
from nki.first_generation.isa.common import kind_of, no_more
from nki.first_generation.isa.constants import dge_mode as modes
from nki.first_generation.isa.constants import engine as engines
from nki.first_generation.isa.constants import oob_mode as bounds
from nki.first_generation.isa.product_masks import (
    flat,
    operand_within,
    preceded,
    product_cut,
    product_mask,
    shape_of,
    valid_of,
    zeroed,
)
from nki.first_generation.state import issue, new_tile
from nki.first_generation.tensors import Result, Tensor
from nki.first_generation.writes import (
    aligned,
    copy,
    fill,
    in_sbuf,
    is_number,
    legal,
    on_sbuf,
    take,
)
from nki.isa.alu import op_name
from nki.memory import MemoryRegion
from nki.tensor import NkiTensor, tensor_of

_MODES = {"": "none", "none": "none", "double_row": "double_row", "double_row_gen3": "double_row"}


def nc_matmul(
    stationary: Tensor,
    moving: Tensor,
    *,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (),
    perf_mode: Any = "",
    mask: Any = None,
    **more: Any,
) -> Tensor:
    """Return ``stationary.T @ moving`` in PSUM; ``psum[...] +=`` it accumulates."""
    no_more("nc_matmul", more)
    mode = _MODES.get(str(getattr(perf_mode, "name", perf_mode)))
    if mode is None:
        raise NkiError(
            "NKI268",
            f"nc_matmul was given perf_mode={perf_mode!r}",
            "use double_row_gen3, or leave it out",
        )
    rows = 2 if mode == "double_row" else 1
    shapes = shape_of(stationary, "nc_matmul stationary"), shape_of(moving, "nc_matmul moving")
    columns = math.prod(shapes[0][1:]) // rows
    free = shapes[1][2:] if rows == 2 else shapes[1][1:]
    free = free or (1,)
    cut = product_cut(mask, (shapes[0][0], columns, math.prod(free)))
    box = cut.box
    a, b = (in_sbuf(operand_within(t, cut, k)) for k, t in ((1, stationary), (2, moving)))
    if cut.zeros and rows > 1:
        raise product_mask(mask, "operands of two rows")
    for number, region in cut.zeros:
        a, b = (zeroed(a, region), b) if number == 1 else (a, zeroed(b, region))
    attributes = {
        "is_stationary_onezero": is_stationary_onezero,
        "is_moving_onezero": is_moving_onezero,
        "is_transpose": is_transpose,
        "tile_position": tuple(tile_position) or None,
        "tile_size": tuple(tile_size) or None,
        "perf_mode": mode,
    }
    whole = box == whole_box((a.shape[0], columns, math.prod(free)))
    if box is not None and not whole:
        a, b = (aligned(take(flat(t), (box[0], box[k]))) for k, t in ((1, a), (2, b)))
    shape = (columns, *free)

    def put(dst: NkiTensor, *, accumulate: bool | None) -> None:
        if box is None:
            return
        part, left = (dst, a) if whole else (take(flat(dst), box[1:]), a)
        if not legal(part):
            part, left = take(flat(dst), ((0, box[1][1]), box[2])), preceded(a, box[1][0])
        issue("nc_matmul", dst=part, stationary=left, moving=b, accumulate=accumulate, **attributes)

    return Result(
        shape,
        "float32",
        MemoryRegion.psum,
        lambda dst: put(dst, accumulate=False),
        (a, b),
        valid_of(cut, shape),
        frozenset({"psum"}),
        put,
    )


def nc_transpose(
    data: Tensor,
    *,
    mask: Any = None,
    dtype: Any = None,
    engine: Any = engines.unknown,
    **more: Any,
) -> Tensor:
    """Return the tile with partition and free dimensions exchanged.

    The Tensor Engine, which is chosen beyond 32 by 32, writes to PSUM.
    """
    no_more("nc_transpose", more)
    tile = tile_of(data, "nc_transpose data", mask)
    domain, tile = tile.shape, flat(tile)
    small = max(tile.shape) <= 32
    name = engine.name if engine is not None and engine != engines.unknown else ""
    on_tensor = name == "tensor" or (not name and not small)
    if on_tensor or not tile.buffer.on_chip:
        tile = in_sbuf(tile)
    if mask is not None and len(domain) != 2:
        raise NkiError(
            "NKI262",
            f"nc_transpose was given a mask for a tile of shape {domain}",
            "merge its free dimensions with reshape first",
        )
    made = compute(
        "nc_transpose",
        (tile.shape[1], tile.shape[0]),
        tile.dtype,
        {"data": Operand(tile)},
        attributes={"engine": engines.tensor if on_tensor else engines.vector},
        domain=tile.shape,
        follows=lambda box: (box[1], box[0]),
        mask=mask,
        buffer=MemoryRegion.psum if on_tensor else MemoryRegion.sbuf,
        regions=frozenset({"psum"} if on_tensor else {"sbuf"}),
    )
    return made if dtype is None or dtype_name(dtype) == tile.dtype else made.astype(dtype)


# --- DMA -----------------------------------------------------------------------------------------


def dma_copy(
    *,
    dst: Tensor,
    src: Tensor,
    mask: Any = None,
    dst_rmw_op: Any = None,
    oob_mode: Any = bounds.error,
    dge_mode: Any = modes.unknown,
    **more: Any,
) -> None:
    """Copy between HBM and SBUF, where `mask` holds; with `dst_rmw_op` add to what is there."""
    no_more("dma_copy", more)
    dst, src = as_tensor(dst, "nisa.dma_copy dst"), as_tensor(src, "nisa.dma_copy src")
    if mask is not None and dst.shape != src.shape:
        raise NkiError(
            "NKI262",
            f"dma_copy from {src.shape} to {dst.shape} was given a mask",
            "give both the shape that the mask is for",
        )
    region = region_of_mask(mask, src.shape)
    if dst_rmw_op is not None and op_name(dst_rmw_op) != "add":
        raise NkiError(
            "NKI268",
            f"dma_copy was given dst_rmw_op={op_name(dst_rmw_op)}",
            "the DMA engines add only: dst_rmw_op=np.add",
        )
    for box in boxes_of(region):
        to = dst.tile() if mask is None else dst.part(box)
        of = src.tile() if mask is None else src.part(box)
        if dst_rmw_op is None and MemoryRegion.psum in (to.buffer, of.buffer):
            copy(to, of)
        elif dst_rmw_op is None:
            issue("dma_copy", dst=to, src=of, oob_mode=oob_mode, dge_mode=dge_mode)
        else:
            _add_rows(to, on_sbuf(of), oob_mode)


def _add_rows(dst: NkiTensor, src: NkiTensor, oob_mode: Any) -> None:
    """Add to rows that indices choose, one after the other: an index may occur twice."""
    indirect = dst.pattern.indirect
    if indirect is None or indirect.kind == "scalar":
        issue("dma_compute", dst=dst, srcs=[dst, src], reduce_op="add", oob_mode=oob_mode)
        return
    for row in range(dst.shape[0]):
        moved = indirect._replace(index=indirect.index[row : row + 1])
        pattern = dst.pattern._replace(shape=(1, *dst.shape[1:]), indirect=moved)
        to = tensor_of(dst.storage, pattern)
        issue(
            "dma_compute",
            dst=to,
            srcs=[to, src[row : row + 1]],
            reduce_op="add",
            oob_mode=oob_mode,
        )


_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def dma_transpose(
    src: Tensor,
    *,
    axes: Any = None,
    mask: Any = None,
    dtype: Any = None,
    dge_mode: Any = modes.unknown,
    **more: Any,
) -> Tensor:
    """Return a tile of SBUF with the dimensions exchanged: (1, 0), (2, 1, 0) or (3, 1, 2, 0)."""
    no_more("dma_transpose", more)
    tile = tile_of(src, "dma_transpose src")
    order = tuple(axes) if axes is not None else _AXES.get(tile.ndim, ())
    made = compute(
        "dma_transpose",
        tuple(tile.shape[axis] for axis in order),
        tile.dtype,
        {"src": Operand(tile)},
        attributes={"axes": order, "dge_mode": dge_mode},
        domain=tile.shape,
        follows=lambda box: tuple(box[axis] for axis in order),
        mask=mask,
    )
    return made if dtype is None or dtype_name(dtype) == tile.dtype else made.astype(dtype)


def load(src: Any, *, mask: Any = None, dtype: Any = None, **more: Any) -> Tensor:
    """Return a new tile in SBUF with what a tensor in HBM holds, where `mask` holds."""
    no_more("load", more)
    if not isinstance(src, Tensor):
        raise NkiError(
            "NKI266", f"nl.load was given a {type(src).__name__}", "give a tensor in HBM"
        )
    if src.block_shape:
        src.tile()  # raises
    shape = src.shape if len(src.shape) > 1 else (src.shape[0], 1)
    region = region_of_mask(mask, shape)

    def read(box: Box) -> NkiTensor:
        return src.part(box) if mask is not None and src.shape == shape else src.tile()

    def write(dst: NkiTensor) -> None:
        for box in boxes_of(region):
            of = read(box)
            if of.buffer is MemoryRegion.psum:
                copy(take(dst, box), of)
            else:
                issue("dma_copy", dst=take(dst, box), src=of)

    return Result(
        shape,
        kind_of(dtype, src.kind),
        MemoryRegion.sbuf,
        write,
        () if not src.region.on_chip or region.box is None else (read(region.box),),
        region,
        frozenset({"sbuf", "hbm"}),
    )


def store(dst: Any, value: Any, *, mask: Any = None, **more: Any) -> None:
    """Write a tile, or a number, to a tensor in HBM, where `mask` holds."""
    no_more("store", more)
    if not isinstance(dst, Tensor) or dst.region.on_chip:
        raise NkiError(
            "NKI267",
            f"nl.store was given {dst!r} as its destination",
            "store to a tensor in HBM; t[...] = tile writes on chip",
        )
    if is_number(value):
        for box in boxes_of(region_of_mask(mask, dst.shape)):
            fill(dst.part(box) if mask is not None else dst.tile(), value)
        return
    tile = on_sbuf(tile_of(value, "nl.store value", mask))
    region = value.valid() if mask is None else region_of_mask(mask, tile.shape)
    if tile.shape == dst.shape:
        for box in boxes_of(region):
            issue("dma_copy", dst=dst.part(box), src=take(tile, box))
        return
    if not region.covers(tile.shape) or math.prod(tile.shape) != math.prod(dst.shape):
        raise NkiError(
            "NKI266",
            f"a tile of shape {tile.shape} was stored to a tensor of shape {dst.shape}",
            "give both the same shape",
        )
    issue("dma_copy", dst=dst.tile(), src=tile)


def atomic_rmw(dst: Tensor, value: Any, op: Any, *, mask: Any = None, **more: Any) -> None:
    """Add a tile to the rows of a tensor in HBM that indices choose, also if one occurs twice."""
    no_more("atomic_rmw", more)
    dst = as_tensor(dst, "nl.atomic_rmw dst")
    source = value if isinstance(value, Tensor) else _filled_like(dst, value)
    dma_copy(dst=dst, src=source, mask=mask, dst_rmw_op=op)


def _filled_like(dst: Tensor, value: float) -> Tensor:
    tile = new_tile(dst.shape, dst.kind)
    fill(tile, value)
    return Tensor((tile,))
