"""How NKI 0.2 to 0.5 spelt calls of instructions: a table from there to the spelling of today.

Every row names something that today's signature refuses or that cannot be meant otherwise, so the
rows hold for every version. Only :data:`VERSIONED` depends on the version in use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from nki.dtypes import canonical, info
from nki.errors import NkiError
from nki.isa import enums
from nki.tensor import NkiTensor
from nki.versions import since

__all__ = ["FUNCTIONS_BEFORE", "OF_ALL", "SPELLINGS", "VERSIONED", "Call", "respell"]


class Call(NamedTuple):
    """A call as the kernel wrote it."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


Change = Callable[[Call], Call]


class Spelling(NamedTuple):
    """An old spelling.

    Attributes:
        last: the last version that had it.
        what: for the documentation.
        change: returns the call in today's spelling, or as it is.
    """

    last: str
    what: str
    change: Change


def _renamed(old: str, new: str, convert: Callable[[Any], Any] = lambda value: value) -> Change:
    def change(call: Call) -> Call:
        if old not in call.kwargs or new in call.kwargs:
            return call
        kwargs = {k: v for k, v in call.kwargs.items() if k != old}
        return call._replace(kwargs={**kwargs, new: convert(call.kwargs[old])})

    return change


def _dropped(old: str) -> Change:
    return lambda call: call._replace(kwargs={k: v for k, v in call.kwargs.items() if k != old})


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def _offset_third(call: Call) -> Call:
    """(dst, pattern, offset, channel_multiplier, on_true, ...): today a tensor stands fourth."""
    args = call.args
    if len(args) > 3 and _is_number(args[3]) and "offset" not in call.kwargs:
        return call._replace(args=(*args[:2], *args[3:]), kwargs={**call.kwargs, "offset": args[2]})
    return call


def _scales_third(call: Call) -> Call:
    """(dst, srcs, scales, reduce_op): today the operator stands third, and scales are no one."""
    args = call.args
    if len(args) >= 3 and (args[2] is None or isinstance(args[2], (list, tuple))):
        kwargs = {**call.kwargs, "scales": args[2]}
        names = ("reduce_op", "name")
        kwargs.update(zip(names, args[3:], strict=False))
        return call._replace(args=args[:2], kwargs=kwargs)
    return call


def _without_priority(place: int, kind: type) -> Change:
    """Versions before 0.4 have no `priority`: an enumeration stands in its place."""

    def change(call: Call) -> Call:
        if len(call.args) > place and isinstance(call.args[place], kind):
            return call._replace(args=(*call.args[:place], None, *call.args[place:]))
        return call

    return change


def _without_accumulate(call: Call) -> Call:
    """nc_matmul before 0.3: `tile_position`, a tuple, stands where `accumulate` does today."""
    place = 6
    if len(call.args) > place and isinstance(call.args[place], (tuple, list)):
        return call._replace(args=(*call.args[:place], None, *call.args[place:]))
    return call


def _by_flag(call: Call) -> Call:
    """psum_accumulate_flag: bit 0 is set where the first product of a group overwrites."""
    kwargs = dict(call.kwargs)
    flag = kwargs.pop("psum_accumulate_flag", None)
    if flag is None:
        return call
    return call._replace(kwargs={**kwargs, "accumulate": not int(flag) & 1})


def _read_modify_write(call: Call) -> Call:
    """dma_copy(dst, src, dst_rmw_op=nl.add) adds to dst, which is dma_compute today."""
    kwargs = dict(call.kwargs)
    op = kwargs.pop("dst_rmw_op", None)
    if op is None:
        kwargs.pop("unique_indices", None)
        return call._replace(kwargs=kwargs)
    dst = call.args[0] if call.args else kwargs.pop("dst", None)
    src = call.args[1] if len(call.args) > 1 else kwargs.pop("src", None)
    kwargs.pop("dge_mode", None)  # dma_compute chooses for itself
    return Call("dma_compute", (dst, [src, dst], op), kwargs)


def _without_type(call: Call) -> Call:
    """Instructions returned tiles once, of a type that was asked for; `dst` has its own."""
    if "dtype" not in call.kwargs:
        return call
    asked = call.kwargs["dtype"]
    return _dropped("dtype")(call) if asked is None or _is_type(asked) else call


def _is_type(asked: Any) -> bool:
    try:
        canonical(asked)
    except NkiError:
        return False
    return True


# Of every instruction that writes to `dst`.
OF_ALL: tuple[Spelling, ...] = (
    Spelling("0.3", "dtype= had no effect: dst has its type", _without_type),
)

SPELLINGS: Mapping[str, tuple[Spelling, ...]] = MappingProxyType(
    {
        "register_move": (Spelling("0.2", "imm= is src=", _renamed("imm", "src")),),
        "sendrecv": (
            Spelling(
                "0.2",
                "use_gpsimd_dma=True is dma_engine=dma_engine.gpsimd_dma",
                _renamed(
                    "use_gpsimd_dma",
                    "dma_engine",
                    lambda on: enums.dma_engine.gpsimd_dma if on else enums.dma_engine.dma,
                ),
            ),
        ),
        "nc_matmul": (
            Spelling(
                "0.2",
                "is_moving_zero= is is_moving_onezero=",
                _renamed("is_moving_zero", "is_moving_onezero"),
            ),
            Spelling("0.2", "psumAccumulateFlag= had no effect", _dropped("psumAccumulateFlag")),
            Spelling("0.2", "bit 0 of psum_accumulate_flag= is accumulate=False", _by_flag),
            Spelling("0.2", "a seventh argument is tile_position", _without_accumulate),
        ),
        "nc_matmul_mx": (
            Spelling("0.2", "bit 0 of psum_accumulate_flag= is accumulate=False", _by_flag),
        ),
        "affine_select": (
            Spelling("0.2", "a third argument is offset, before two numbers", _offset_third),
        ),
        "dma_compute": (Spelling("0.2", "scales, a list, stands before reduce_op", _scales_third),),
        "dma_copy": (
            Spelling("0.2", "dst_rmw_op= is nisa.dma_compute", _read_modify_write),
            Spelling("0.3", "oob_mode stands third", _without_priority(2, enums.oob_mode)),
        ),
        "dma_transpose": (
            Spelling("0.3", "dge_mode stands fourth", _without_priority(3, enums.dge_mode)),
        ),
    }
)

# Functions that are another one today.
FUNCTIONS_BEFORE: Mapping[str, str] = MappingProxyType(
    {"tensor_copy_dynamic_src": "tensor_copy", "tensor_copy_dynamic_dst": "tensor_copy"}
)


# --- the same call, another meaning --------------------------------------------------------------


def _cast_value(call: Call) -> Call:
    dst = call.args[0] if call.args else call.kwargs.get("dst")
    value: Any = call.args[1] if len(call.args) > 1 else call.kwargs.get("value")
    if not isinstance(dst, NkiTensor) or not info(dst.dtype).is_int or not _is_number(value):
        return call
    kwargs = {k: v for k, v in call.kwargs.items() if k not in ("dst", "value")}
    return call._replace(args=(dst, int(value), *call.args[2:]), kwargs=kwargs)


def _ignore_choice(call: Call) -> Call:
    args = call.args[:6]
    names = ("reduce_cmd", "reduce_res", "reduce_op", "range_start", "on_false_value", "name")
    given = {**dict(zip(names, call.args[6:], strict=False)), **call.kwargs}
    kwargs = {k: v for k, v in given.items() if k not in ("reduce_cmd", "on_false_value")}
    return call._replace(args=args, kwargs=kwargs)


# By instruction: the row of `nki.versions.DIFFERENCES`, and the call of today that means the same
# as the call did before.
VERSIONED: Mapping[str, tuple[str, Change]] = MappingProxyType(
    {"memset": ("memset", _cast_value), "range_select": ("range_select", _ignore_choice)}
)


def respell(call: Call) -> Call:
    """Return a call in the spelling of today."""
    for spelling in (*OF_ALL, *SPELLINGS.get(call.name, ())):
        call = spelling.change(call)
    versioned = VERSIONED.get(call.name)
    if versioned is not None and not since(versioned[0]):
        call = versioned[1](call)
    return call
