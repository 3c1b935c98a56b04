"""The known limits of NeuronCores, each once: compiler code, reason, remedy.

Codes are those of the public error reference of neuronx-cc. Where it has no code that fits, `code`
is "" or the closest general one and the gap is marked as derived.
"""

from __future__ import annotations

from .entry import COMPLEX, EVERY, INTEGRAL, INTS, WIDE_INTS, Basis, Gap, dtype_bits

# --- by dtype: they hold for every operator that reads elements --------------------------------

FLOAT64 = Gap(
    "ESPP004",
    "float64 is no data type of a NeuronCore",
    "use torch.float32, e.g. x.to(torch.float32)",
    dtypes=dtype_bits("float64"),
    basis=Basis.DERIVED,
)
COMPLEX_DTYPE = Gap(
    "EVRF004",
    "complex data types are not supported on the Neuron device",
    "keep real and imaginary parts as two real tensors (torch.view_as_real), or compute on the CPU",
    dtypes=COMPLEX,
)
FP8_E4M3FN = Gap(
    "EVRF051",
    dtypes=dtype_bits("float8_e4m3fn"),
    on=lambda t: "float8_e4m3fn" not in t.dtypes,
)
FP8_FNUZ = Gap(
    "EVRF005",
    dtypes=dtype_bits("float8_e5m2fnuz float8_e4m3fnuz"),
)
FP4 = Gap(
    "ESPP004",
    "float4_e2m1fn has no code generation outside block-scaled matrix products",
    "cast to bfloat16",
    dtypes=dtype_bits("float4_e2m1fn_x2"),
)
SCALE_DTYPE = Gap(
    "ESPP004",
    "float8_e8m0fnu exists only as the scale of a block-scaled matrix product",
    "cast to float32",
    dtypes=dtype_bits("float8_e8m0fnu"),
    basis=Basis.DERIVED,
)
QUANTIZED_DTYPE = Gap(
    "ESPP004",
    "PyTorch's quantized tensor types have no form on a NeuronCore",
    "keep int8 values and their scale as separate tensors",
    dtypes=dtype_bits("qint8 quint8 qint32 quint4x2 quint2x4"),
    basis=Basis.DERIVED,
)
SUB_BYTE_DTYPE = Gap(
    "ESPP004",
    "a NeuronCore has no such data type",
    "unpack to int8 or uint8",
    dtypes=dtype_bits(
        "bits1x8 bits2x4 bits4x2 bits8 bits16 uint1 uint2 uint3 uint4 uint5 uint6 uint7 "
        "int1 int2 int3 int4 int5 int6 int7"
    ),
    basis=Basis.DERIVED,
)
DTYPE_GAPS: tuple[Gap, ...] = (
    FLOAT64,
    COMPLEX_DTYPE,
    FP8_E4M3FN,
    FP8_FNUZ,
    FP4,
    SCALE_DTYPE,
    QUANTIZED_DTYPE,
    SUB_BYTE_DTYPE,
)

# --- by operator and integer dtype -------------------------------------------------------------

DOT_INT64 = Gap(
    "EVRF035",
    "a matrix product has no 64-bit integer datapath",
    dtypes=WIDE_INTS,
    accept="dot",
)
DOT_INT32 = Gap(
    "EVRF035",
    "a matrix product has no 32-bit integer datapath on this target",
    dtypes=dtype_bits("int32 uint32"),
    on=lambda t: not t.core.wide_products,
    accept="dot",
)
INTEGER_DOT = (DOT_INT64, DOT_INT32)
SCATTER_ADD_INT = Gap(
    "EVRF060",
    dtypes=INTS | WIDE_INTS,
    accept="scatter",
)
SCATTER_REDUCE_INT = Gap(
    "EVRF016",
    dtypes=INTEGRAL,
)
SCATTER_ARGUMENT_INT = Gap(
    "EVRF016",
    dtypes=INTEGRAL,
    when="a reduction is asked for (reduce=...)",
)
ACCUMULATE_INT = Gap(
    "EVRF060",
    dtypes=INTS | WIDE_INTS,
    when="accumulate=True",
)
TOPK_INT = Gap(
    "EVRF013",
    dtypes=dtype_bits("int32 uint32") | WIDE_INTS,
)
POW_INT64 = Gap(
    "EVRF062",
    dtypes=WIDE_INTS,
    accept="pow",
)
SHIFT = Gap(
    "EVRF022",
    dtypes=dtype_bits("uint8 int8 int16 uint16") | WIDE_INTS,
)

# --- by operator and arguments: explained, not enforced ----------------------------------------

POOL_DILATION = Gap(
    "EVRF018",
    when="dilation > 1",
)
CONV_DILATIONS = Gap(
    "EVRF010",
    when="a transposed convolution (or the input gradient of a strided one) has dilation > 1",
)
CONV_STRIDED_DILATED = Gap(
    "EVRF011",
    when="input dilation and stride are both greater than 1",
)
CONVOLUTION = (CONV_DILATIONS, CONV_STRIDED_DILATED)
BOOLEAN_INDEX = Gap(
    "EMOD025",
    "the size of the result depends on the values of the mask",
    "use torch.where or masked_fill, which keep the shape",
    when="an index is a boolean mask",
)

# --- operators that run on the host ------------------------------------------------------------


def _host(code: str, reason: str, remedy: str, basis: Basis = Basis.DERIVED) -> Gap:
    return Gap(code, reason, remedy, dtypes=EVERY, basis=basis)


TRIANGULAR_SOLVE = _host(
    "EUOC002",
    "triangular-solve is not an operator of the compiler",
    "multiply by an inverse computed beforehand, or solve on the CPU",
    Basis.DOCUMENTED,
)
DECOMPOSITION = _host(
    "EUOC002",
    "matrix decompositions are not operators of the compiler",
    "compute it on the CPU, outside the training step if possible",
)
FFT = _host(
    "EUOC002",
    "fft is not an operator of the compiler",
    "compute it on the CPU, or multiply by a DFT matrix kept as real and imaginary part",
    Basis.DOCUMENTED,
)
COMPLEX_RESULT = _host(
    "EVRF004",
    "its values are complex, which the Neuron device does not support",
    "keep real and imaginary parts as two real tensors, or compute on the CPU",
    Basis.DOCUMENTED,
)
SORT = _host(
    "EUOC002",
    "sort is not an operator of the compiler; AWS' own examples leave aten::sort to the CPU",
    "use torch.topk with k = the length, on a floating-point tensor",
    Basis.DOCUMENTED,
)
SORT_BASED = _host(
    "EUOC002",
    "it is computed by sorting, which is not an operator of the compiler",
    "use torch.topk where k is small, or compute it on the CPU",
)
DYNAMIC_SHAPE = _host(
    "EMOD025",
    "the size of the result depends on the values; all dimensions must be static",
    "use a form with a fixed size (torch.where, nonzero_static, a mask)",
    Basis.DOCUMENTED,
)
DATA_LOOP = _host(
    "EUOC002",
    "it repeats until the values say stop, which no operator of the compiler expresses",
    "compute it on the CPU",
)
SPECIAL_FUNCTION = _host(
    "EUOC002",
    "neither an operator of the compiler nor expanded into operators by XLA",
    "compute it on the CPU",
)
REDUCTION_KIND = _host(
    "EUOC002",
    "a reduction can only add, multiply, or take the minimum or maximum",
    "compute it on the CPU",
    Basis.DOCUMENTED,
)
EXPLICIT_RNG = _host(
    "EVRF006",
    "the random generator takes no other algorithm than its default",
    "use torch.rand and torch.randn",
    Basis.DOCUMENTED,
)
SPARSE_LAYOUT = _host(
    "EUOC002",
    "the compiler has no sparse tensor layout",
    "use a dense tensor (to_dense) or gather and scatter",
)
NESTED_LAYOUT = _host(
    "EMOD025",
    "a nested tensor has no static shape",
    "pad it: torch.nested.to_padded_tensor",
)
QUANTIZED_LAYOUT = _host(
    "ESPP004",
    "PyTorch's quantized tensor types have no form on a NeuronCore",
    "keep int8 values and their scale as separate tensors",
)
CPU_LIBRARY = _host(
    "",
    "it belongs to a library for CPUs (oneDNN, FBGEMM, NNPACK) or uses its packed weights",
    "use the operator without the library's prefix",
)
OTHER_VENDOR = _host(
    "",
    "it belongs to another vendor's device and has no kernel anywhere else",
    "use the operator without the vendor's prefix",
)
HOST_SERVICE = _host(
    "",
    "a service of the host process (files, tests, set-up of tables)",
    "no action is needed",
)
NOT_IN_TABLE = _host(
    "EUOC002",
    "it is not in the operator table (a custom operator, or newer than this release)",
    "write it with ATen operators, or compute it on the CPU",
)
