"""Emits LLVM IR as text, already without redundant or loop-invariant instructions.

Every value knows the nesting level it is computed at: that of the innermost loop it depends on. An
instruction goes to the level of its operands, in front of the loop that needs it, and equal
instructions of a level are one. So common subexpressions and loop invariants never arise, and no
LLVM pass has to find them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from neuronxcc.codegen.llvm.host import Host


class Val:
    """An SSA value. `lanes` is 0 for a scalar; `elem` is LLVM's type of an element."""

    __slots__ = ("elem", "lanes", "level", "text")

    def __init__(self, elem: str, lanes: int, text: str, level: int) -> None:
        self.elem, self.lanes, self.text, self.level = elem, lanes, text, level

    @property
    def type(self) -> str:
        """LLVM's type."""
        return f"<{self.lanes} x {self.elem}>" if self.lanes else self.elem

    @property
    def typed(self) -> str:
        """Type and name, as an operand is written."""
        return f"{self.type} {self.text}"

    @property
    def constant(self) -> bool:
        """A literal."""
        return not self.text.startswith("%")

    def __repr__(self) -> str:
        return self.typed


class _Scope:
    __slots__ = ("barrier", "label", "lines", "local", "memo")

    def __init__(self, label: str, *, barrier: bool) -> None:
        self.lines: list[str] = []
        self.memo: dict[str, Val] = {}
        self.local: dict[Any, Any] = {}  # what clients remember as long as this scope is open
        self.label = label
        self.barrier = barrier


class Loop:
    """An open loop: its index, the carried values, and what they become."""

    def __init__(self, index: Val, carried: list[Val]) -> None:
        self.index = index
        self.carried = carried
        self.next: list[Val] = list(carried)
        self.results: list[Val] = []  # after the loop


BITS = {
    "i1": 1,
    "i8": 8,
    "i16": 16,
    "i32": 32,
    "i64": 64,
    "half": 16,
    "float": 32,
    "double": 64,
}


def bits_of(elem: str) -> int:
    """Width of an element; integers may have any."""
    return BITS.get(elem) or int(elem[1:])


_FLOAT = frozenset({"half", "float", "double"})
_SUFFIX = {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}


def power_of_two_above(count: int) -> int:
    """The smallest power of two that is not below `count`."""
    return 1 << max(0, count - 1).bit_length()


def vector_type(elem: str, lanes: int) -> str:
    """LLVM's type of so many elements (0: of a scalar)."""
    return f"<{lanes} x {elem}>" if lanes else elem


def literal(elem: str, value: float) -> str:
    """The text of a scalar literal."""
    if elem == "i1":
        return "true" if value else "false"
    if elem not in _FLOAT:
        bits = bits_of(elem)
        wrapped = int(value) & ((1 << bits) - 1)
        return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)
    if elem == "float" and not math.isnan(value):
        try:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            value = math.copysign(math.inf, value)
    if elem == "half":
        return "0xH" + struct.pack(">e", value).hex().upper()
    if math.isnan(value):
        value = math.copysign(math.nan, 1.0)
    return "0x" + struct.pack(">d", value).hex().upper()


class Emitter:
    """One function under construction."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.declarations: dict[str, str] = {}
        self.externals: set[str] = set()  # symbols of the C library
        self.allocas: list[str] = []
        self.streams = False  # some stores go past the caches
        self._serial = 0
        self._scopes = [_Scope("entry", barrier=False)]

    # -- names and levels ---------------------------------------------------------------------

    def fresh(self, prefix: str = "v") -> str:
        """A name that nothing has yet, without its sigil."""
        self._serial += 1
        return f"{prefix}{self._serial}"

    @property
    def level(self) -> int:
        """Depth of the innermost open scope."""
        return len(self._scopes) - 1

    def _floor(self) -> int:
        for level in range(len(self._scopes) - 1, -1, -1):
            if self._scopes[level].barrier:
                return level
        return 0

    def placed(self, level: int) -> int:
        """Where a pure instruction goes whose operands are of `level`."""
        return max(level, self._floor())

    def local(self, level: int) -> dict[Any, Any]:
        """A dictionary that lives as long as the open scope of that level."""
        return self._scopes[level].local

    def recall(self, key: Any) -> Any:
        """The value of `key` in an open scope's dictionary, or None."""
        for scope in self._scopes:
            found = scope.local.get(key)
            if found is not None:
                return found
        return None

    def line(self, text: str) -> None:
        """Appends an instruction with an effect to the innermost scope."""
        self._scopes[-1].lines.append(f"  {text}")

    def effect(self, text: str, *operands: Val) -> None:
        """Appends an instruction, whose effect repeated changes nothing, where operands allow."""
        level = self.placed(max(operand.level for operand in operands))
        self._scopes[level].lines.append(f"  {text}")

    def pure(self, elem: str, lanes: int, rhs: str, *operands: Val) -> Val:
        """The value of an instruction without effects, computed where its operands allow."""
        low = 0
        for operand in operands:
            low = max(low, operand.level)
        high = self.placed(low)
        for level in range(low, high + 1):
            known = self._scopes[level].memo.get(rhs)
            if known is not None:
                return known
        value = Val(elem, lanes, "%" + self.fresh(), high)
        self._scopes[high].lines.append(f"  {value.text} = {rhs}")
        self._scopes[high].memo[rhs] = value
        return value

    def here(self, elem: str, lanes: int, rhs: str) -> Val:
        """The value of an instruction that must stay where it is (a load of memory we write)."""
        value = Val(elem, lanes, "%" + self.fresh(), self.level)
        self.line(f"{value.text} = {rhs}")
        return value

    # -- constants and shapes -----------------------------------------------------------------

    def const(self, elem: str, value: float, lanes: int = 0) -> Val:
        """A literal, in every lane."""
        text = literal(elem, value)
        return Val(elem, lanes, f"splat ({elem} {text})" if lanes else text, 0)

    def lane_constants(self, elem: str, values: Sequence[float]) -> Val:
        """A vector of literals."""
        inner = ", ".join(f"{elem} {literal(elem, v)}" for v in values)
        return Val(elem, len(values), f"<{inner}>", 0)

    def like(self, value: Val, number: float) -> Val:
        """A literal of the type of `value`."""
        return self.const(value.elem, number, value.lanes)

    def splat(self, value: Val, lanes: int) -> Val:
        """The scalar in every lane (a vector of that many lanes is returned as it is)."""
        if value.lanes == lanes:
            return value
        assert value.lanes == 0, (value, lanes)
        if value.constant:
            return Val(value.elem, lanes, f"splat ({value.elem} {value.text})", 0)
        vec = vector_type(value.elem, lanes)
        first = self.pure(
            value.elem, lanes, f"insertelement {vec} poison, {value.typed}, i64 0", value
        )
        rhs = f"shufflevector {first.typed}, {vec} poison, <{lanes} x i32> zeroinitializer"
        return self.pure(value.elem, lanes, rhs, first)

    def join(self, *values: Val) -> list[Val]:
        """The values with equal lanes: scalars are broadcast if one is a vector."""
        lanes = max(v.lanes for v in values)
        return [self.splat(v, lanes) for v in values] if lanes else list(values)

    def shuffle(self, a: Val, b: Val | None, lanes: Sequence[int]) -> Val:
        """Lanes of a ++ b (-1: any)."""
        index = ", ".join("i32 poison" if i < 0 else f"i32 {i}" for i in lanes)
        second = f"{a.type} poison" if b is None else b.typed
        rhs = f"shufflevector {a.typed}, {second}, <{len(lanes)} x i32> <{index}>"
        return self.pure(a.elem, len(lanes), rhs, a, *([] if b is None else [b]))

    def extract(self, value: Val, lane: int) -> Val:
        """One lane as a scalar."""
        return self.pure(value.elem, 0, f"extractelement {value.typed}, i64 {lane}", value)

    def insert(self, vector: Val, value: Val, lane: int) -> Val:
        """The vector with one lane replaced."""
        rhs = f"insertelement {vector.typed}, {value.typed}, i64 {lane}"
        return self.pure(vector.elem, vector.lanes, rhs, vector, value)

    def poison(self, elem: str, lanes: int) -> Val:
        """A vector whose lanes nobody looks at."""
        return Val(elem, lanes, "poison", 0)

    # -- arithmetic ---------------------------------------------------------------------------

    def binary(self, opcode: str, a: Val, b: Val) -> Val:
        """An instruction of two operands of one type."""
        a, b = self.join(a, b)
        return self.pure(a.elem, a.lanes, f"{opcode} {a.typed}, {b.text}", a, b)

    def unary(self, opcode: str, a: Val) -> Val:
        """An instruction of one operand, result of its type."""
        return self.pure(a.elem, a.lanes, f"{opcode} {a.typed}", a)

    def compare(self, predicate: str, a: Val, b: Val) -> Val:
        """Compares: fcmp or icmp, by type."""
        a, b = self.join(a, b)
        kind = "fcmp" if a.elem in _FLOAT else "icmp"
        return self.pure("i1", a.lanes, f"{kind} {predicate} {a.typed}, {b.text}", a, b)

    def select(self, condition: Val, a: Val, b: Val) -> Val:
        """Takes a where the condition holds, else b."""
        if condition.lanes == 0:
            a, b = self.join(a, b)
        else:
            condition, a, b = self.join(condition, a, b)
        rhs = f"select {condition.typed}, {a.typed}, {b.typed}"
        return self.pure(a.elem, a.lanes, rhs, condition, a, b)

    def cast(self, opcode: str, a: Val, elem: str) -> Val:
        """A conversion instruction."""
        if a.elem == elem:
            return a
        rhs = f"{opcode} {a.typed} to {vector_type(elem, a.lanes)}"
        return self.pure(elem, a.lanes, rhs, a)

    def bits(self, a: Val, elem: str) -> Val:
        """The bits of the value as another type of that size."""
        return self.cast("bitcast", a, elem)

    def halves(self, a: Val) -> Val:
        """A vector of 32-bit values as twice as many of 16 bits, the lower ones first."""
        lanes = 2 * a.lanes
        return self.pure("i16", lanes, f"bitcast {a.typed} to <{lanes} x i16>", a)

    def integer(self, a: Val, elem: str, *, signed: bool = True) -> Val:
        """An integer of another width."""
        if BITS[elem] == BITS[a.elem]:
            return a
        if BITS[elem] < BITS[a.elem]:
            return self.cast("trunc", a, elem)
        return self.cast("sext" if signed else "zext", a, elem)

    def intrinsic(
        self, name: str, elem: str, *args: Val, overload: Val | None = None, extra: str = ""
    ) -> Val:
        """llvm.<name> on values of equal lanes, result of that element type.

        Args:
            name: Without "llvm." and type suffix.
            elem: Element type of the result.
            args: Operands.
            overload: A second type that the name carries (conversions).
            extra: Further literal operands, written out, as "i1 false".
        """
        args = tuple(self.join(*args))
        lanes = args[0].lanes
        suffix = _suffix(elem, lanes)
        if overload is not None:
            suffix += "." + _suffix(overload.elem, overload.lanes)
        full = f"@llvm.{name}.{suffix}"
        result = vector_type(elem, lanes)
        types = [a.type for a in args] + ([extra.split(maxsplit=1)[0]] if extra else [])
        self.declarations[full] = f"declare {result} {full}({', '.join(types)})"
        operands = [a.typed for a in args] + ([extra] if extra else [])
        return self.pure(elem, lanes, f"call {result} {full}({', '.join(operands)})", *args)

    def reduce_or(self, mask: Val) -> Val:
        """A truth value: some lane of an i1 vector is set."""
        whole = self.bits_of_mask(mask)
        return self.compare("ne", whole, self.const(whole.elem, 0))

    def bits_of_mask(self, mask: Val) -> Val:
        """An i1 vector as one integer of as many bits."""
        elem = f"i{mask.lanes}"
        return self.pure(elem, 0, f"bitcast {mask.typed} to {elem}", mask)

    def call_each(self, symbol: str, elem: str, *args: Val) -> Val:
        """A function of the C library on scalars of type `elem`, called for every lane."""
        args = tuple(self.join(*args))
        self.externals.add(symbol)
        signature = ", ".join(a.elem for a in args)
        self.declarations[f"@{symbol}"] = (
            f"declare {elem} @{symbol}({signature}) nounwind willreturn memory(none)"
        )
        lanes = args[0].lanes

        def one(operands: Sequence[Val]) -> Val:
            text = ", ".join(o.typed for o in operands)
            return self.pure(elem, 0, f"call {elem} @{symbol}({text})", *operands)

        if not lanes:
            return one(args)
        result = self.poison(elem, lanes)
        for lane in range(lanes):
            value = one([self.extract(a, lane) for a in args])
            result = self.insert(result, value, lane)
        return result

    # -- memory -------------------------------------------------------------------------------

    def gep(self, elem: str, base: Val, index: Val) -> Val:
        """Address base + index elements; a vector of indices gives a vector of pointers."""
        if index.constant and index.text == "0":
            return base
        rhs = f"getelementptr {elem}, {base.typed}, {index.typed}"
        return self.pure("ptr", index.lanes, rhs, base, index)

    def alloca(self, elem: str, count: int) -> Val:
        """Memory of the function's own, aligned to 64 bytes."""
        name = "%" + self.fresh("m")
        self.allocas.append(f"  {name} = alloca [{count} x {elem}], align 64")
        return Val("ptr", 0, name, 0)

    def load_rhs(self, elem: str, lanes: int, pointer: Val) -> str:
        """The text of a plain load, aligned as its elements are."""
        align = max(1, BITS[elem] // 8) if elem != "ptr" else 8
        return f"load {vector_type(elem, lanes)}, {pointer.typed}, align {align}"

    # -- control flow -------------------------------------------------------------------------

    def _push(self, label: str, *, barrier: bool) -> _Scope:
        scope = _Scope(label, barrier=barrier)
        self._scopes.append(scope)
        return scope

    @contextmanager
    def region(self) -> Iterator[None]:
        """Code whose values are not shared with what follows; no control flow."""
        self._push(self._scopes[-1].label, barrier=True)
        yield
        scope = self._scopes.pop()
        self._scopes[-1].lines += scope.lines
        self._scopes[-1].label = scope.label

    @contextmanager
    def when(self, condition: Val) -> Iterator[None]:
        """Code that runs if the condition (a scalar i1) holds."""
        inside, after = self.fresh("then"), self.fresh("end")
        self._push(inside, barrier=True)
        yield
        scope = self._scopes.pop()
        parent = self._scopes[-1]
        parent.lines.append(f"  br i1 {condition.text}, label %{inside}, label %{after}")
        parent.lines.append(f"{inside}:")
        parent.lines += scope.lines
        parent.lines += [f"  br label %{after}", f"{after}:"]
        parent.label = after

    def either(self, condition: Val, then: Callable[[], Val], otherwise: Val) -> Val:
        """then() where the scalar condition holds, else `otherwise`, with a branch."""
        inside, after = self.fresh("then"), self.fresh("end")
        self._push(inside, barrier=True)
        value = then()
        scope = self._scopes.pop()
        parent = self._scopes[-1]
        before = parent.label
        parent.lines.append(f"  br i1 {condition.text}, label %{inside}, label %{after}")
        parent.lines.append(f"{inside}:")
        parent.lines += scope.lines
        parent.lines += [f"  br label %{after}", f"{after}:"]
        parent.label = after
        rhs = f"phi {value.type} [ {value.text}, %{scope.label} ], [ {otherwise.text}, %{before} ]"
        return self.here(value.elem, value.lanes, rhs)

    @contextmanager
    def loop(
        self,
        start: Val,
        stop: Val,
        step: int = 1,
        carried: Sequence[Val] = (),
        *,
        may_be_empty: bool = False,
    ) -> Iterator[Loop]:
        """Loop for (i64 i = start; i < stop; i += step), with values carried from turn to turn.

        The body sets `.next`; `.results` hold the final values after the loop. Unless
        `may_be_empty`, start < stop is known.
        """
        body, after = self.fresh("loop"), self.fresh("end")
        self._push(body, barrier=False)
        index = Val("i64", 0, "%" + self.fresh("i"), self.level)
        phis = [Val(c.elem, c.lanes, "%" + self.fresh("c"), self.level) for c in carried]
        loop = Loop(index, phis)
        yield loop
        scope = self._scopes.pop()
        parent = self._scopes[-1]
        before = parent.label
        lines = parent.lines
        if may_be_empty:
            guard, pre = self.fresh(), self.fresh("pre")
            lines.append(f"  %{guard} = icmp slt {start.typed}, {stop.text}")
            lines.append(f"  br i1 %{guard}, label %{pre}, label %{after}")
            lines.append(f"{pre}:")
            entry = pre
        else:
            entry = before
        following, more = self.fresh("i"), self.fresh()
        lines += [f"  br label %{body}", f"{body}:"]
        lines.append(
            f"  {index.text} = phi i64 [ {start.text}, %{entry} ], [ %{following}, %{scope.label} ]"
        )
        for phi, first, then in zip(phis, carried, loop.next, strict=True):
            lines.append(
                f"  {phi.text} = phi {phi.type} [ {first.text}, %{entry} ],"
                f" [ {then.text}, %{scope.label} ]"
            )
        lines += scope.lines
        lines.append(f"  %{following} = add nuw nsw i64 {index.text}, {step}")
        lines.append(f"  %{more} = icmp slt i64 %{following}, {stop.text}")
        lines.append(f"  br i1 %{more}, label %{body}, label %{after}")
        lines.append(f"{after}:")
        parent.label = after
        for first, then in zip(carried, loop.next, strict=True):
            if may_be_empty:
                rhs = (
                    f"phi {first.type} [ {first.text}, %{before} ], [ {then.text}, %{scope.label} ]"
                )
                loop.results.append(self.here(first.elem, first.lanes, rhs))
            else:
                loop.results.append(Val(then.elem, then.lanes, then.text, self.level))

    def body(self) -> list[str]:
        """The lines of the finished function."""
        assert len(self._scopes) == 1
        end = ["  ret void"]
        if self.streams and self.host.triple.startswith("x86_64"):
            # Such stores are ordered with nothing else.
            end.insert(0, "  call void @llvm.x86.sse.sfence()")
            self.declarations["@llvm.x86.sse.sfence"] = "declare void @llvm.x86.sse.sfence()"
        return ["entry:", *self.allocas, *self._scopes[0].lines, *end]


def _suffix(elem: str, lanes: int) -> str:
    name = _SUFFIX.get(elem, elem)
    return f"v{lanes}{name}" if lanes else name
