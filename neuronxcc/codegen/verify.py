"""The rules of a loop kernel, checked. What passes has a meaning in `reference.py`."""

from __future__ import annotations

from neuronxcc.codegen.errors import CodegenError
from neuronxcc.codegen.loop import Access, Kernel, Kind, Scalar, Store, scalars
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import COMBINERS, ShapeError
from neuronxcc.ir.table import Group, infer


def verify(kernel: Kernel) -> None:
    """Checks a kernel.

    Raises:
        CodegenError: A rule of `loop.py` is broken; says which, in which kernel and where.
    """
    rules = _Rules(kernel)
    for scalar in scalars(kernel):
        rules.scalar(scalar)
    for store in kernel.stores:
        rules.store(store)
    rules.in_place()


def _name(op: Op | None) -> str:
    return "nothing" if op is None else op.value


class _Rules:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.reduced = sum(dim.kind is Kind.REDUCE for dim in kernel.dims)

    def demand(self, holds: bool, what: object, text: str) -> None:
        if not holds:
            raise CodegenError(f"kernel {self.kernel.name!r}, {what}: {text}")

    def scalar(self, scalar: Scalar) -> None:
        check = {
            "load": self._load,
            "check": self._check,
            "const": self._const,
            "index": self._index,
            "op": self._op,
            "reduce": self._reduce,
            "arg": self._arg,
        }.get(scalar.what)
        if check is None:
            raise CodegenError(f"kernel {self.kernel.name!r}: no expression {scalar.what!r}")
        check(scalar)

    def access(self, what: object, access: Access, dtype: DType) -> None:
        kernel = self.kernel
        self.demand(0 <= access.slot < len(kernel.slots), what, f"there is no slot {access.slot}")
        self.demand(
            len(access.strides) == len(kernel.dims),
            what,
            f"{len(access.strides)} strides for {len(kernel.dims)} dimensions",
        )
        slot = kernel.slots[access.slot]
        self.demand(slot.dtype is dtype, what, f"the slot is of {slot.dtype.value}")
        for index, _ in access.indices:
            self.demand(index.dtype.is_integer, what, "an index is not an integer")

    def _load(self, scalar: Scalar) -> None:
        assert scalar.access is not None
        self.access(scalar, scalar.access, scalar.dtype)
        if scalar.srcs:
            types = tuple(s.dtype for s in scalar.srcs)
            wanted = (DType.PRED, scalar.dtype)
            self.demand(types == wanted, scalar, f"mask and other are {types}, not {wanted}")

    def _check(self, scalar: Scalar) -> None:
        assert scalar.access is not None
        self.access(scalar, scalar.access, scalar.dtype)
        types = {s.dtype for s in scalar.srcs}
        fits = len(scalar.srcs) == 3 and types == {scalar.dtype} and scalar.dtype.is_integer
        self.demand(fits, scalar, "compares three integers of its type")
        still = not any(scalar.access.strides) and not scalar.access.indices
        self.demand(still, scalar, "makes its note at more than one place")

    def _const(self, scalar: Scalar) -> None:
        value = scalar.value
        self.demand(value is not None, scalar, "has no value")
        real = value is None or not value.imag
        self.demand(scalar.dtype.is_complex or real, scalar, f"{value} is complex")

    def _index(self, scalar: Scalar) -> None:
        self.demand(0 <= scalar.dim < len(self.kernel.dims), scalar, f"no dimension {scalar.dim}")
        self.demand(scalar.dtype.is_integer, scalar, "a position is an integer")

    def _op(self, scalar: Scalar) -> None:
        op = scalar.op
        if op not in Group.ELEMENTWISE or op is None:
            raise CodegenError(f"kernel {self.kernel.name!r}, {scalar}: not elementwise")
        attrs: dict[str, object] = {}
        srcs = scalar.srcs
        if op in (Op.CONVERT, Op.BITCAST_CONVERT):
            attrs["dtype"] = scalar.dtype
        if op is Op.COMPARE:
            attrs["direction"] = scalar.direction
        if op is Op.REDUCE_PRECISION:
            bits = [s.value for s in srcs[1:]]
            self.demand(len(bits) == 2 and None not in bits, scalar, "bits must be two constants")
            attrs = dict(zip(("exponent_bits", "mantissa_bits"), bits, strict=True))
            srcs = srcs[:1]
        try:
            (result,) = infer(op, tuple(TensorType(s.dtype, (1,)) for s in srcs), attrs)
        except ShapeError as error:
            raise CodegenError(f"kernel {self.kernel.name!r}, {scalar}: {error}") from error
        self.demand(result.dtype is scalar.dtype, scalar, f"gives {result.dtype.value}")

    def _reduce(self, scalar: Scalar) -> None:
        self.demand(self.reduced > 0, scalar, "the kernel has no REDUCE dimension")
        self.demand(scalar.op in COMBINERS.values(), scalar, f"{_name(scalar.op)} does not reduce")
        self.demand(len(scalar.srcs) == 1, scalar, "needs one operand")

    def _arg(self, scalar: Scalar) -> None:
        self.demand(self.reduced == 1, scalar, "needs exactly one REDUCE dimension")
        self.demand(
            scalar.op in (Op.MINIMUM, Op.MAXIMUM), scalar, f"{_name(scalar.op)} has no position"
        )
        self.demand(scalar.dtype.is_integer, scalar, "a position is an integer")

    def store(self, store: Store) -> None:
        self.access("store", store.access, store.value.dtype)
        if self.kernel.slots[store.access.slot].tile:
            # What makes an operand of a product writes its tile, and does nothing else.
            read = any(s.access is not None and s.access.slot == 0 for s in scalars(self.kernel))
            alone = len(self.kernel.stores) == 1 and store.mask is None and store.combine is None
            makes = store.access.slot == 0 and alone and not read
            self.demand(makes, "store", "the tile is read only")
        mask = store.mask is None or store.mask.dtype is DType.PRED
        self.demand(mask, "store", "the mask is not pred")
        combine = store.combine is None or store.combine in COMBINERS.values()
        self.demand(combine, "store", f"{_name(store.combine)} does not combine")

    def in_place(self) -> None:
        """Check that slots which are stored to are read only where all stores write."""
        for scalar in scalars(self.kernel):
            access = scalar.access
            for store in self.kernel.stores:
                if access is not None and access.slot == store.access.slot:
                    text = f"slot {access.slot} is stored to at another place"
                    self.demand(access == store.access, scalar, text)
