"""Random bits: a key and a counter in, the counter moved on and bits out.

XLA leaves the default algorithm to the backend. Ours is Philox4x32-10, as XLA's own on CPU and GPU,
so a seeded JAX program draws the same numbers here. Source of the algorithm: Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3" (2011); how XLA numbers the counters was measured.
"""

from __future__ import annotations

import math
from typing import Final

from neuronxcc.frontends.hlo.elementwise import UNSIGNED
from neuronxcc.frontends.hlo.errors import RefusedError, invalid, unsupported
from neuronxcc.frontends.hlo.site import Handler, Site, Value
from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, TensorType

DEFAULT_ALGORITHM, UNIFORM, NORMAL = 0, 1, 2
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)
_ROUNDS: Final = 10


def _halves(x: Node) -> tuple[Node, Node]:
    """Low and high 32 bits of 64."""
    return build.convert(x, DType.U32), build.convert(build.shift_right_logical(x, 32), DType.U32)


def _joined(low: Node, high: Node) -> Node:
    wide = build.shift_left(build.convert(high, DType.U64), 32)
    return build.or_(build.convert(low, DType.U64), wide)


def philox(counter: list[Node], key: tuple[Node, Node]) -> list[Node]:
    """Four words of random bits for every counter of four words; all are u32 of one shape."""
    words, (first, second) = list(counter), key
    for _ in range(_ROUNDS):
        low0, high0 = _halves(build.multiply(build.convert(words[0], DType.U64), _MULTIPLIERS[0]))
        low1, high1 = _halves(build.multiply(build.convert(words[2], DType.U64), _MULTIPLIERS[1]))
        words = [
            build.xor(build.xor(high1, words[1]), first),
            low1,
            build.xor(build.xor(high0, words[3]), second),
            low0,
        ]
        first, second = build.add(first, _WEYL[0]), build.add(second, _WEYL[1])
    return words


def _bit_generator(site: Site) -> Value:
    state = site.one
    if site.proto.rng_algorithm != DEFAULT_ALGORITHM:
        raise RefusedError(
            "NCC_EVRF006", "RNGBitGenerator using an algorithm other than RNG_DEFAULT",
            "use the default algorithm of rng_bit_generator",
        )  # fmt: skip
    if state.dtype is not DType.U64 or state.shape not in ((2,), (3,)):
        raise invalid(f"the state of rng-bit-generator is u64[2] or u64[3], not {state.type}")
    if not isinstance(site.type, tuple) or len(site.type) != 2:
        raise invalid("rng-bit-generator returns a state and bits")
    out = site.type[1]
    if not isinstance(out, TensorType) or out.dtype is DType.PRED or out.dtype.is_complex:
        raise unsupported(f"rng-bit-generator of {out}")
    size = out.dtype.itemsize
    blocks = math.ceil(out.size / (2 if size == 8 else 4))
    key, low, high = (_scalar(state, i % state.shape[0]) for i in (0, 1, 2))
    moved, moved_high = _advanced(low, high, build.constant(blocks, DType.U64))
    parts = [moved, moved_high][: state.shape[0] - 1]
    new_state = build.concatenate([build.reshape(x, (1,)) for x in (key, *parts)], 0)
    if not out.size:
        return new_state, build.splat(0, out)
    steps = build.iota(DType.U64, (blocks,), 0)
    counters = _advanced(
        build.broadcast_to(low, (blocks,)), build.broadcast_to(high, (blocks,)), steps
    )
    first, second = (build.broadcast_to(word, (blocks,)) for word in _halves(key))
    words = philox([*_halves(counters[0]), *_halves(counters[1])], (first, second))
    if size == 8:
        words = [_joined(words[0], words[1]), _joined(words[2], words[3])]
    flat = build.reshape(build.stack(words, 1), (blocks * len(words),))
    bits = build.convert(build.slice_dim(flat, 0, 0, out.size), UNSIGNED[size])
    return new_state, build.reshape(build.bitcast_convert(bits, out.dtype), out.shape)


def _scalar(state: Node, index: int) -> Node:
    return build.reshape(build.slice_dim(state, 0, index, index + 1), ())


def _advanced(low: Node, high: Node, count: Node) -> tuple[Node, Node]:
    """A number of 128 bits plus one of 64."""
    moved = build.add(low, count)
    carry = build.convert(build.less(moved, low), DType.U64)
    return moved, build.add(high, carry)


def _distribution(site: Site) -> Node:
    """Numbers of the device's own generator: the module holds no state for them."""
    first, second = site.take(2)
    type_ = site.tensor_type
    wide = TensorType(DType.F32 if type_.dtype.itemsize < 4 else type_.dtype, type_.shape)
    if not wide.dtype.is_float:
        if site.proto.distribution != UNIFORM or not type_.dtype.is_integer:
            raise unsupported(f"rng of {type_}")
        span = build.convert(build.subtract(second, first), DType.F32)
        drawn = _drawn(site, "aten::rand", TensorType(DType.F32, type_.shape))
        scaled = build.multiply(drawn, build.broadcast_to(span, type_.shape))
        steps = build.convert(build.floor(scaled), type_.dtype)
        return build.add(steps, build.broadcast_to(first, type_.shape))
    first, second = (
        build.broadcast_to(build.convert(x, wide.dtype), type_.shape) for x in (first, second)
    )
    if site.proto.distribution == UNIFORM:
        span = build.subtract(second, first)
        result = build.add(build.multiply(_drawn(site, "aten::rand", wide), span), first)
    elif site.proto.distribution == NORMAL:
        result = build.add(build.multiply(_drawn(site, "aten::randn", wide), second), first)
    else:
        raise invalid(f"rng of distribution {site.proto.distribution}")
    return build.convert(result, type_.dtype)


def _drawn(site: Site, target: str, type_: TensorType) -> Node:
    return build.custom_call(
        target,
        (type_,),
        (),
        args=(type_.shape,),
        kwargs={"dtype": type_.dtype},
        device=True,
        sequence=site.counter(),
    )


TABLE: dict[str, Handler] = {"rng-bit-generator": _bit_generator, "rng": _distribution}
