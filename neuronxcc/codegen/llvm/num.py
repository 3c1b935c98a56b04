"""Vectors with Python's operators, for writing the scalar library as formulas."""

from __future__ import annotations

from neuronxcc.codegen.llvm.emitter import Emitter, Val

Number = int | float


class Num:
    """A value and the function it is computed in. Plain numbers become literals of its type."""

    __slots__ = ("em", "val")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, em: Emitter, val: Val) -> None:
        self.em, self.val = em, val

    @property
    def is_float(self) -> bool:
        """Float or double."""
        return self.val.elem in ("float", "double")

    def operand(self, other: Num | Number) -> Val:
        """The value of `other`, of this one's type if it is a plain number."""
        return other.val if isinstance(other, Num) else self.em.like(self.val, other)

    def _binary(
        self, floating: str, integer: str, other: Num | Number, *, swap: bool = False
    ) -> Num:
        a, b = self.val, self.operand(other)
        if swap:
            a, b = b, a
        return Num(self.em, self.em.binary(floating if self.is_float else integer, a, b))

    def __add__(self, other: Num | Number) -> Num:
        return self._binary("fadd", "add", other)

    def __sub__(self, other: Num | Number) -> Num:
        return self._binary("fsub", "sub", other)

    def __mul__(self, other: Num | Number) -> Num:
        return self._binary("fmul", "mul", other)

    def __radd__(self, other: Number) -> Num:
        return self._binary("fadd", "add", other, swap=True)

    def __rsub__(self, other: Number) -> Num:
        return self._binary("fsub", "sub", other, swap=True)

    def __rmul__(self, other: Number) -> Num:
        return self._binary("fmul", "mul", other, swap=True)

    def __truediv__(self, other: Num | Number) -> Num:
        return Num(self.em, self.em.binary("fdiv", self.val, self.operand(other)))

    def __rtruediv__(self, other: Number) -> Num:
        return Num(self.em, self.em.binary("fdiv", self.operand(other), self.val))

    def __neg__(self) -> Num:
        if self.is_float:
            return Num(self.em, self.em.unary("fneg", self.val))
        return 0 - self

    def __and__(self, other: Num | Number) -> Num:
        return Num(self.em, self.em.binary("and", self.val, self.operand(other)))

    def __or__(self, other: Num | Number) -> Num:
        return Num(self.em, self.em.binary("or", self.val, self.operand(other)))

    def __xor__(self, other: Num | Number) -> Num:
        return Num(self.em, self.em.binary("xor", self.val, self.operand(other)))

    def __invert__(self) -> Num:
        return self ^ -1

    def __lshift__(self, other: Num | Number) -> Num:
        return Num(self.em, self.em.binary("shl", self.val, self.operand(other)))

    def __rshift__(self, other: Num | Number) -> Num:
        """Arithmetic."""
        return Num(self.em, self.em.binary("ashr", self.val, self.operand(other)))

    def shift_right_logical(self, other: Num | Number) -> Num:
        """Zeros come in."""
        return Num(self.em, self.em.binary("lshr", self.val, self.operand(other)))

    def _compare(self, floating: str, integer: str, other: Num | Number) -> Num:
        predicate = floating if self.is_float else integer
        return Num(self.em, self.em.compare(predicate, self.val, self.operand(other)))

    def __lt__(self, other: Num | Number) -> Num:
        return self._compare("olt", "slt", other)

    def __le__(self, other: Num | Number) -> Num:
        return self._compare("ole", "sle", other)

    def __gt__(self, other: Num | Number) -> Num:
        return self._compare("ogt", "sgt", other)

    def __ge__(self, other: Num | Number) -> Num:
        return self._compare("oge", "sge", other)

    def equals(self, other: Num | Number) -> Num:
        """Elementwise ==."""
        return self._compare("oeq", "eq", other)

    def differs(self, other: Num | Number) -> Num:
        """Elementwise !=, true for NaN."""
        return self._compare("une", "ne", other)

    def is_nan(self) -> Num:
        """Elementwise."""
        return Num(self.em, self.em.compare("uno", self.val, self.val))

    def where(self, yes: Num | Number, no: Num | Number) -> Num:
        """This (i1) ? yes : no; at least one of them is a Num."""
        typed = yes if isinstance(yes, Num) else no
        assert isinstance(typed, Num)
        return Num(self.em, self.em.select(self.val, typed.operand(yes), typed.operand(no)))

    def pick(self, elem: str, yes: Number, no: Number) -> Num:
        """This (i1) ? yes : no, both literals of element type `elem`."""
        em, lanes = self.em, self.val.lanes
        a, b = em.const(elem, yes, lanes), em.const(elem, no, lanes)
        return Num(em, em.select(self.val, a, b))

    def mad(self, times: Num | Number, plus: Num | Number) -> Num:
        """Result self * times + plus: fused where that is one instruction, else rounded twice."""
        times_val, plus_val = self.operand(times), self.operand(plus)
        if self.em.host.fma:
            return Num(
                self.em,
                self.em.intrinsic("fma", self.val.elem, self.val, times_val, plus_val),
            )
        product = self.em.binary("fmul", self.val, times_val)
        return Num(self.em, self.em.binary("fadd", product, plus_val))

    def fma(self, times: Num | Number, plus: Num | Number) -> Num:
        """Result self * times + plus, rounded once, whatever that costs."""
        return Num(
            self.em,
            self.em.intrinsic(
                "fma", self.val.elem, self.val, self.operand(times), self.operand(plus)
            ),
        )

    def call(self, name: str) -> Num:
        """An LLVM intrinsic of one operand and a result of its type."""
        return Num(self.em, self.em.intrinsic(name, self.val.elem, self.val))

    def abs(self) -> Num:
        """|x| for floats."""
        return self.call("fabs")

    def sqrt(self) -> Num:
        """Correctly rounded."""
        return self.call("sqrt")

    def bits(self, elem: str) -> Num:
        """The same bits as another type."""
        return Num(self.em, self.em.bits(self.val, elem))

    def to(self, elem: str) -> Num:
        """Converts: signed integers and floats; a float to an integer must be in range."""
        em, val = self.em, self.val
        to_float = elem in ("float", "double")
        if self.is_float and to_float:
            if val.elem == elem:
                return self
            return Num(em, em.cast("fpext" if elem == "double" else "fptrunc", val, elem))
        if to_float:
            return Num(em, em.cast("sitofp", val, elem))
        if self.is_float:
            return Num(em, em.cast("fptosi", val, elem))
        return Num(em, em.integer(val, elem))

    def lower(self, other: Num | Number) -> Num:
        """Result other < self ? other : self: the smaller one; NaN if self is NaN."""
        number = Num(self.em, self.operand(other))
        return (number < self).where(number, self)

    def upper(self, other: Num | Number) -> Num:
        """Result other > self ? other : self: the larger one; NaN if self is NaN."""
        number = Num(self.em, self.operand(other))
        return (number > self).where(number, self)


def horner(x: Num, first: Number, *rest: Number) -> Num:
    """The polynomial with these coefficients, highest power first."""
    total = x.mad(first, rest[0]) if rest else Num(x.em, x.em.like(x.val, first))
    for coefficient in rest[1:]:
        total = total.mad(x, coefficient)
    return total
