"""Making tensors. Inside a kernel, filling one is an instruction; outside, it happens at once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nki.access import write
from nki.arguments import as_integer, as_tensor
from nki.context import current_run
from nki.dtypes import canonical, info
from nki.errors import NkiError, NkiTypeError
from nki.memory import MemoryRegion, Storage
from nki.pattern import contiguous
from nki.tensor import NkiTensor, create, tensor_of

__all__ = [
    "empty_like",
    "full",
    "ndarray",
    "ones",
    "shared_constant",
    "shared_identity_matrix",
    "zeros",
    "zeros_like",
]


def ndarray(
    shape: Sequence[int],
    dtype: Any,
    buffer: Any = MemoryRegion.sbuf,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> NkiTensor:
    """Return a new tensor whose contents are undefined until an instruction writes them.

    Args:
        shape: sizes, all at least 1; in SBUF and PSUM first the partitions, at most 128, and at
            least one free dimension.
        dtype: a data type of ``nl``.
        buffer: ``nl.sbuf``, ``nl.psum``, ``nl.private_hbm`` (also ``nl.hbm``) or ``nl.shared_hbm``.
        name: what messages and schedules call it.
        address: (first partition, byte within the partitions) in SBUF or PSUM, where a PSUM tensor
            starts at a bank. Tensors with overlapping addresses share their bytes.

    Raises:
        NkiError: no shape (NKI003, NKI029), too large (NKI004, NKI005), or no address (NKI006,
            NKI036).
        NkiTypeError: no data type (NKI001) or region (NKI002).
    """
    return create(shape, dtype, buffer, name, address)


def full(
    shape: Sequence[int],
    fill_value: float,
    dtype: Any,
    buffer: Any = MemoryRegion.sbuf,
    name: str = "",
) -> NkiTensor:
    """Return a new tensor with ``fill_value`` everywhere.

    Raises:
        NkiError: what `ndarray` raises, or ``dtype`` cannot hold the value (NKI008).
    """
    kind = canonical(dtype)
    value = checked_value(fill_value, kind)
    tensor = create(shape, kind, buffer, name)
    recorder = current_run()
    if recorder is not None:
        recorder.fill(tensor, value)
    else:
        write(tensor, np.full(tensor.shape, value, info(kind).numpy))
    return tensor


def zeros(
    shape: Sequence[int], dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = ""
) -> NkiTensor:
    """Return a new tensor of zeros; see `full`."""
    return full(shape, 0, dtype, buffer, name)


def ones(
    shape: Sequence[int], dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = ""
) -> NkiTensor:
    """Return a new tensor of ones; see `full`."""
    return full(shape, 1, dtype, buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """Return zeros in the shape of ``x``, by default of its type and, as documented, in SBUF."""
    as_tensor(x, "nl.zeros_like x")
    where = MemoryRegion.sbuf if buffer is None else buffer
    return full(x.shape, 0, x.dtype if dtype is None else dtype, where, name)


def empty_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """Return a new tensor in the shape of ``x``, by default of its type and in its memory."""
    as_tensor(x, "nl.empty_like x")
    return create(
        x.shape, x.dtype if dtype is None else dtype, x.buffer if buffer is None else buffer, name
    )


def shared_constant(constant: npt.NDArray[Any] | str | Path, dtype: Any = None) -> NkiTensor:
    """Return a tensor in shared HBM that holds a copy of an array, or of a ``.npy`` file.

    Args:
        constant: the array, or the path of a file.
        dtype: NKI 0.2 took one to cast to; by default that of the array.

    Raises:
        NkiTypeError: it is neither (NKI007), or NKI has no such type (NKI001).
        NkiError: it has no dimension or no element (NKI003).
    """
    array = np.load(constant) if isinstance(constant, (str, Path)) else constant
    if not isinstance(array, np.ndarray):
        raise NkiTypeError(
            "NKI007",
            f"a constant was given as {type(array).__name__}",
            "give a NumPy array or the path of a .npy file",
        )
    kind = canonical(array.dtype if dtype is None else dtype)
    data = np.array(array, dtype=array.dtype if dtype is None else info(kind).numpy, order="C")
    return _constant(data, kind, MemoryRegion.shared_hbm)


def shared_identity_matrix(n: int, dtype: Any = "uint8", dst: NkiTensor | None = None) -> NkiTensor:
    """Return the identity of shape (n, n) in SBUF; all of one size and type are one tensor's copy.

    Args:
        n: rows and columns, at most 128.
        dtype: the type of the elements.
        dst: a tensor of that shape and type to write to and return, instead of a new one.

    Raises:
        NkiError: ``dst`` is another (NKI007), or what `ndarray` raises.
        NkiTypeError: ``n`` is no integer, or ``dst`` no tensor (NKI240).
    """
    kind = canonical(dtype)
    n = as_integer(n, "nl.shared_identity_matrix n")
    if n > 128:
        raise NkiError(
            "NKI004",
            f"an identity of {n} rows ends at partition {n}, and there are 128",
            "use at most 128 rows",
        )
    data = np.eye(n, dtype=info(kind).numpy)
    if info(kind).is_packed:
        checked_value(1, kind)
    if dst is None:
        return _constant(data, kind, MemoryRegion.sbuf)
    as_tensor(dst, "nl.shared_identity_matrix dst")
    if dst.shape != (n, n) or dst.dtype != kind:
        raise NkiError(
            "NKI007",
            f"an identity of {kind}[{n}, {n}] does not fit {dst!r}",
            "give a destination of that shape and type",
        )
    recorder = current_run()
    if recorder is not None:
        recorder.copy(dst, _constant(data, kind, MemoryRegion.sbuf))
    else:
        write(dst, data)
    return dst


def _constant(data: npt.NDArray[Any], kind: str, region: MemoryRegion) -> NkiTensor:
    if not data.ndim or not data.size:
        raise NkiError(
            "NKI003",
            f"a constant of shape {data.shape} has no elements or dimensions",
            "give an array with at least one of each",
        )
    storage = Storage.from_array(data, region, dtype=kind)
    recorder = current_run()
    if recorder is not None:
        recorder.constant(storage)
    return tensor_of(storage, contiguous(kind, data.shape, partition=region.on_chip))


def checked_value(value: float, kind: str) -> float:
    """Return a scalar as an int or float that a data type can hold.

    Floating-point types take any number and round it; integer types take integers within their
    range; packed types take 0.

    Raises:
        NkiError: the type cannot hold it (NKI008).
    """
    row = info(kind)
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, (int, float)):
        if row.is_packed:
            fits = number == 0
        elif row.is_float:
            fits = True
        else:
            low, high = (0, 1) if kind == "bool_" else _limits(row.numpy)
            fits = number == number // 1 and low <= number <= high
        if fits:
            return float(number) if row.is_float and not row.is_packed else int(number)
    raise NkiError(
        "NKI008",
        f"{value!r} is no value of {kind}",
        "packed types are filled with 0 only"
        if row.is_packed
        else "use a number within the type's range, and a whole one for integers",
    )


def _limits(kind: np.dtype[Any]) -> tuple[int, int]:
    limits = np.iinfo(kind)
    return limits.min, limits.max
