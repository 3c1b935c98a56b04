"""``import neuronxcc.nki.language as nl``: the kernel language of the first generation."""

from typing import Any, Final

from nki.first_generation.constants import bfp16, finfo, fp32
from nki.first_generation.dtypes import PLAIN
from nki.first_generation.indices import Index, arange, mgrid
from nki.first_generation.isa.movement import atomic_rmw
from nki.first_generation.language.creation import (
    empty_like,
    full,
    ndarray,
    ones,
    par_dim,
    shared_constant,
    shared_identity_matrix,
    zeros,
    zeros_like,
)
from nki.first_generation.language.looped import loop_reduce
from nki.first_generation.language.math import (
    BINARY,
    UNARY,
    ceil,
    cos,
    divide,
    floor,
    fmod,
    mod,
    sin,
    tan,
    trunc,
    where,
)
from nki.first_generation.language.programs import (
    affine_range,
    all_reduce,
    device_print,
    nc,
    num_programs,
    program_id,
    program_ndim,
    sequential_range,
    spmd_dim,
    static_range,
)
from nki.first_generation.language.reductions import (
    all,  # noqa: A004
    broadcast_to,
    dropout,
    expand_dims,
    gather_flattened,
    load,
    load_transpose2d,
    matmul,
    max,  # noqa: A004
    mean,
    min,  # noqa: A004
    prod,
    rand,
    random_seed,
    rms_norm,
    softmax,
    static_cast,
    store,
    sum,  # noqa: A004
    transpose,
    var,
)
from nki.first_generation.tensors import Tensor as tensor  # noqa: N813 (its public name)
from nki.indexing import DynamicSlice
from nki.language.constants import average, bypass, prelu
from nki.language.tile_size import tile_size
from nki.memory import MemoryRegion

sbuf: Final = MemoryRegion.sbuf
psum: Final = MemoryRegion.psum
hbm: Final = MemoryRegion.private_hbm
private_hbm: Final = MemoryRegion.private_hbm
shared_hbm: Final = MemoryRegion.shared_hbm

bool_: Final = PLAIN["bool_"]
int8: Final = PLAIN["int8"]
int16: Final = PLAIN["int16"]
int32: Final = PLAIN["int32"]
uint8: Final = PLAIN["uint8"]
uint16: Final = PLAIN["uint16"]
uint32: Final = PLAIN["uint32"]
float16: Final = PLAIN["float16"]
float32: Final = PLAIN["float32"]
bfloat16: Final = PLAIN["bfloat16"]
tfloat32: Final = PLAIN["tfloat32"]
float8_e4m3: Final = PLAIN["float8_e4m3"]
float8_e4m3fn: Final = PLAIN["float8_e4m3fn"]
float8_e5m2: Final = PLAIN["float8_e5m2"]

abs = UNARY["abs"]  # noqa: A001
arctan = UNARY["arctan"]
erf = UNARY["erf"]
erf_dx = UNARY["erf_dx"]
exp = UNARY["exp"]
gelu = UNARY["gelu"]
gelu_apprx_sigmoid = UNARY["gelu_apprx_sigmoid"]
gelu_apprx_sigmoid_dx = UNARY["gelu_apprx_sigmoid_dx"]
gelu_apprx_tanh = UNARY["gelu_apprx_tanh"]
gelu_dx = UNARY["gelu_dx"]
log = UNARY["log"]
mish = UNARY["mish"]
relu = UNARY["relu"]
rsqrt = UNARY["rsqrt"]
sigmoid = UNARY["sigmoid"]
sign = UNARY["sign"]
silu = UNARY["silu"]
silu_dx = UNARY["silu_dx"]
softplus = UNARY["softplus"]
sqrt = UNARY["sqrt"]
square = UNARY["square"]
tanh = UNARY["tanh"]
negative = UNARY["negative"]
reciprocal = UNARY["reciprocal"]
invert = UNARY["invert"]
logical_not = UNARY["logical_not"]
copy = UNARY["copy"]

add = BINARY["add"]
subtract = BINARY["subtract"]
multiply = BINARY["multiply"]
maximum = BINARY["maximum"]
minimum = BINARY["minimum"]
power = BINARY["power"]
bitwise_and = BINARY["bitwise_and"]
bitwise_or = BINARY["bitwise_or"]
bitwise_xor = BINARY["bitwise_xor"]
left_shift = BINARY["left_shift"]
right_shift = BINARY["right_shift"]
equal = BINARY["equal"]
not_equal = BINARY["not_equal"]
greater = BINARY["greater"]
greater_equal = BINARY["greater_equal"]
less = BINARY["less"]
less_equal = BINARY["less_equal"]
logical_and = BINARY["logical_and"]
logical_or = BINARY["logical_or"]
logical_xor = BINARY["logical_xor"]


def ds(start: Any, size: int) -> DynamicSlice:
    """Return an index for `size` elements from `start` on; `dslice` is the same."""
    if isinstance(start, Index) and start.affine and not any(start.steps):
        start = start.offset
    return DynamicSlice(start, size)


dslice = ds

__all__ = [
    "abs",
    "add",
    "affine_range",
    "all",
    "all_reduce",
    "arange",
    "arctan",
    "atomic_rmw",
    "average",
    "bfloat16",
    "bfp16",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bool_",
    "broadcast_to",
    "bypass",
    "ceil",
    "copy",
    "cos",
    "device_print",
    "divide",
    "dropout",
    "ds",
    "dslice",
    "empty_like",
    "equal",
    "erf",
    "erf_dx",
    "exp",
    "expand_dims",
    "finfo",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "floor",
    "fmod",
    "fp32",
    "full",
    "gather_flattened",
    "gelu",
    "gelu_apprx_sigmoid",
    "gelu_apprx_sigmoid_dx",
    "gelu_apprx_tanh",
    "gelu_dx",
    "greater",
    "greater_equal",
    "hbm",
    "int8",
    "int16",
    "int32",
    "invert",
    "left_shift",
    "less",
    "less_equal",
    "load",
    "load_transpose2d",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "loop_reduce",
    "matmul",
    "max",
    "maximum",
    "mean",
    "mgrid",
    "min",
    "minimum",
    "mish",
    "mod",
    "multiply",
    "nc",
    "ndarray",
    "negative",
    "not_equal",
    "num_programs",
    "ones",
    "par_dim",
    "power",
    "prelu",
    "private_hbm",
    "prod",
    "program_id",
    "program_ndim",
    "psum",
    "rand",
    "random_seed",
    "reciprocal",
    "relu",
    "right_shift",
    "rms_norm",
    "rsqrt",
    "sbuf",
    "sequential_range",
    "shared_constant",
    "shared_hbm",
    "shared_identity_matrix",
    "sigmoid",
    "sign",
    "silu",
    "silu_dx",
    "sin",
    "softmax",
    "softplus",
    "spmd_dim",
    "sqrt",
    "square",
    "static_cast",
    "static_range",
    "store",
    "subtract",
    "sum",
    "tan",
    "tanh",
    "tensor",
    "tfloat32",
    "tile_size",
    "transpose",
    "trunc",
    "uint8",
    "uint16",
    "uint32",
    "var",
    "where",
    "zeros",
    "zeros_like",
]
