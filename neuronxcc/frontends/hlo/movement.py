"""Instructions that move elements, constants, and what only passes values on."""

from __future__ import annotations

from neuronxcc.frontends.hlo.errors import invalid
from neuronxcc.frontends.hlo.literals import array_of
from neuronxcc.frontends.hlo.scalar import SET, Scalar
from neuronxcc.frontends.hlo.site import Handler, Site, Value
from neuronxcc.frontends.hlo.types import Type
from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.indexing import gather, scatter
from neuronxcc.ir.node import Node, TensorType, is_uniform


def _constant(site: Site) -> Value:
    return _literal(site.proto.literal, site.type)


def _literal(literal: object, type_: Type) -> Value:
    if type_ is None:
        return None
    if isinstance(type_, TensorType):
        array = array_of(literal, type_)
        first = array.ravel()[:1]
        if array.size > 1 and is_uniform(array):
            return build.broadcast_in_dim(build.constant(first.reshape(())), type_.shape, ())
        return build.constant(array, owned=True)
    parts = literal.tuple_literals  # type: ignore[attr-defined]
    if len(parts) != len(type_):
        raise invalid(f"a literal of {len(parts)} parts for a tuple of {len(type_)}")
    return tuple(_literal(part, t) for part, t in zip(parts, type_, strict=True))


def _iota(site: Site) -> Node:
    type_ = site.tensor_type
    return build.iota(type_.dtype, type_.shape, site.proto.dimensions[0] if type_.rank else 0)


def _broadcast(site: Site) -> Node:
    x, dims = site.one, list(site.proto.dimensions)
    if len(dims) != x.type.rank:
        raise invalid(f"broadcast of {x.type} with dimensions {dims}")
    order = sorted(range(len(dims)), key=dims.__getitem__)
    return build.broadcast_in_dim(build.transpose(x, order), site.tensor_type.shape, sorted(dims))


def _reshape(site: Site) -> Node:
    return build.reshape(site.one, site.tensor_type.shape)


def _transpose(site: Site) -> Node:
    return build.transpose(site.one, site.proto.dimensions)


def _reverse(site: Site) -> Node:
    return build.reverse(site.one, list(site.proto.dimensions))


def _slice(site: Site) -> Node:
    dims = site.proto.slice_dimensions
    return build.slice_(
        site.one, [d.start for d in dims], [d.limit for d in dims], [d.stride or 1 for d in dims]
    )


def _pad(site: Site) -> Node:
    x, value = site.take(2)
    dims = site.proto.padding_config.dimensions
    return build.pad(
        x, value, [d.low for d in dims], [d.high for d in dims], [d.interior for d in dims]
    )


def _concatenate(site: Site) -> Node:
    if len(site.proto.dimensions) != 1:
        raise invalid("concatenate goes along one dimension")
    return build.concatenate(site.tensors, site.proto.dimensions[0])


def _starts(x: Node, starts: tuple[Node, ...]) -> list[Node]:
    """One scalar per dimension; an old form has them in one vector."""
    if len(starts) == 1 and starts[0].type.rank == 1:
        vector = starts[0]
        return [build.reshape(build.slice_dim(vector, 0, i, i + 1), ()) for i in range(x.type.rank)]
    return list(starts)


def _dynamic_slice(site: Site) -> Node:
    x, *starts = site.tensors
    return build.dynamic_slice(x, _starts(x, tuple(starts)), list(site.proto.dynamic_slice_sizes))


def _dynamic_update_slice(site: Site) -> Node:
    x, update, *starts = site.tensors
    return build.dynamic_update_slice(x, update, _starts(x, tuple(starts)))


def _gather(site: Site) -> Node:
    x, indices = site.take(2)
    dims = site.proto.gather_dimension_numbers
    return gather(
        x,
        indices,
        offset_dims=dims.offset_dims,
        collapsed_slice_dims=dims.collapsed_slice_dims,
        start_index_map=dims.start_index_map,
        slice_sizes=site.proto.gather_slice_sizes,
        index_vector_dim=dims.index_vector_dim,
        operand_batching_dims=dims.operand_batching_dims,
        start_indices_batching_dims=dims.start_indices_batching_dims,
    )


def _scatter(site: Site) -> Value:
    count = len(site.tensors) // 2
    if len(site.tensors) != 2 * count + 1:
        raise invalid(f"scatter of {len(site.tensors)} operands")
    xs, indices, updates = site.tensors[:count], site.tensors[count], site.tensors[count + 1 :]
    combiner = Scalar.of(site, [x.dtype for x in (*xs, *updates)])
    dims = site.proto.scatter_dimension_numbers
    kinds = combiner.kinds(SET)
    results = tuple(
        scatter(
            x,
            indices,
            update,
            kind=_scatter_kind(kind, x.dtype),
            update_window_dims=dims.update_window_dims,
            inserted_window_dims=dims.inserted_window_dims,
            scatter_dims_to_operand_dims=dims.scatter_dims_to_operand_dims,
            index_vector_dim=dims.index_vector_dim,
            input_batching_dims=dims.input_batching_dims,
            scatter_indices_batching_dims=dims.scatter_indices_batching_dims,
            unique=bool(site.proto.unique_indices),
        )
        for x, update, kind in zip(xs, updates, kinds, strict=True)
    )
    return results if isinstance(site.type, tuple) else results[0]


def _scatter_kind(kind: str, dtype: DType) -> str:
    return {"and": "min", "or": "max"}.get(kind, kind) if dtype is DType.PRED else kind


def _tuple(site: Site) -> Value:
    return site.operands


def _get(site: Site) -> Value:
    (value,) = site.operands if len(site.operands) == 1 else (None,)
    index = site.proto.tuple_index
    if not isinstance(value, tuple) or not 0 <= index < len(value):
        raise invalid(f"get-tuple-element {index} of something else than such a tuple")
    part: Value = value[index]
    return part


def _first(site: Site) -> Value:
    if not site.operands:
        raise invalid(f"{site.opcode} without an operand")
    return site.operands[0]


def _all(site: Site) -> Value:
    return site.operands[0] if len(site.operands) == 1 else site.operands


def _token(_site: Site) -> Value:
    return None


def _dimension_size(site: Site) -> Node:
    dims = site.proto.dimensions
    if len(dims) != 1 or not 0 <= dims[0] < site.one.type.rank:
        raise invalid(f"get-dimension-size {list(dims)} of {site.one.type}")
    return build.constant(site.one.shape[dims[0]], DType.S32)


TABLE: dict[str, Handler] = {
    "constant": _constant,
    "iota": _iota,
    "broadcast": _broadcast,
    "reshape": _reshape,
    "bitcast": _reshape,
    "transpose": _transpose,
    "reverse": _reverse,
    "slice": _slice,
    "pad": _pad,
    "concatenate": _concatenate,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter,
    "tuple": _tuple,
    "get-tuple-element": _get,
    "copy": _first,
    "domain": _first,
    "add-dependency": _first,
    "opt-barrier": _all,
    "after-all": _token,
    "get-dimension-size": _dimension_size,
}
