"""Vectors of elements from and to memory: contiguous, reversed, in a pattern or anywhere."""

from __future__ import annotations

from dataclasses import dataclass

from neuronxcc.codegen.llvm.emitter import BITS, Emitter, Val, power_of_two_above, vector_type

# A pattern that spans at most so many vectors is served better by wide loads and shuffles than by
# a gather.
_SHUFFLED_SPAN = 4
_LINE = 64
NOWHERE = Val("ptr", 0, "%nowhere", 0)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the lanes' elements are.

    Attributes:
        elem: LLVM's type of an element.
        pointer: The element that the others are counted from.
        pattern: Elements from there to that of each lane; empty for a single element.
        extra: Elements to add for each lane; None for none.
    """

    elem: str
    pointer: Val
    pattern: tuple[int, ...]
    extra: Val | None = None

    @property
    def lanes(self) -> int:
        """0 for a single element."""
        return len(self.pattern)

    @property
    def single(self) -> bool:
        """All lanes have one address."""
        return self.extra is None and not any(self.pattern)

    @property
    def direction(self) -> int:
        """1 if the lanes lie side by side, -1 if they do backwards, else 0."""
        if self.extra is None:
            for step in (1, -1):
                if self.pattern == tuple(range(0, step * self.lanes, step)):
                    return step
        return 0

    @property
    def span(self) -> int:
        """Elements from the lowest to the highest address, without `extra`."""
        return max(self.pattern) - min(self.pattern) + 1

    @property
    def from_low(self) -> list[int]:
        """The pattern, counted from its lowest element."""
        low = min(self.pattern)
        return [offset - low for offset in self.pattern]

    @property
    def align(self) -> int:
        """Bytes."""
        return BITS[self.elem] // 8

    @property
    def vector(self) -> str:
        """LLVM's type of the vector."""
        return vector_type(self.elem, self.lanes)


def _both(em: Emitter, a: Val | None, b: Val | None) -> Val | None:
    if a is None or b is None:
        return b if a is None else a
    return em.binary("and", a, b)


def reverse(em: Emitter, vector: Val) -> Val:
    """The lanes in the opposite order."""
    return em.shuffle(vector, None, range(vector.lanes - 1, -1, -1))


def _pointers(em: Emitter, place: Place) -> Val:
    offsets = em.lane_constants("i64", place.pattern)
    if place.extra is not None:
        offsets = em.binary("add", place.extra, offsets) if any(place.pattern) else place.extra
    return em.gep(place.elem, place.pointer, offsets)


def _spanned(em: Emitter, place: Place, lanes: int) -> Place:
    """So many neighbouring elements from the lowest one of the place on."""
    pointer = em.gep(place.elem, place.pointer, em.const("i64", min(place.pattern)))
    return Place(place.elem, pointer, tuple(range(lanes)))


def _spread_mask(em: Emitter, place: Place, mask: Val, lanes: int) -> Val:
    """The mask of a place as one of all elements that it spans; those between are not touched.

    Lanes may share an element, of which some may be masked: it is wanted if one of them wants it.
    """
    layers: list[dict[int, int]] = []
    for lane, offset in enumerate(place.from_low):
        layer = next((taken for taken in layers if offset not in taken), None)
        if layer is None:
            layer = {}
            layers.append(layer)
        layer[offset] = lane
    none = em.const("i1", 0, mask.lanes)
    wanted: Val | None = None
    for layer in layers:
        part = em.shuffle(mask, none, [layer.get(i, mask.lanes) for i in range(lanes)])
        wanted = part if wanted is None else em.binary("or", wanted, part)
    assert wanted is not None
    return wanted


def _from_low_end(
    em: Emitter, place: Place, mask: Val | None, lanes: int
) -> tuple[Val, Val | None]:
    """For direction -1: the pointer to the last lane's element, and the mask reversed."""
    pointer = em.gep(place.elem, place.pointer, em.const("i64", 1 - lanes))
    return pointer, None if mask is None else reverse(em, mask)


def _emit(em: Emitter, elem: str, lanes: int, rhs: str, *operands: Val, fresh: bool) -> Val:
    return em.here(elem, lanes, rhs) if fresh else em.pure(elem, lanes, rhs, *operands)


def read(
    em: Emitter, place: Place, mask: Val | None, condition: Val | None, *, fresh: bool = False
) -> Val:
    """The elements.

    Args:
        em: The function.
        place: Where.
        mask: Lanes that may be read (i1 vector); None for all.
        condition: Elements that may be read besides (i1, a scalar for all lanes); None for all.
        fresh: The memory may have been written since it was last read.

    Returns:
        A scalar if all lanes have one address, else a vector. Lanes not read hold anything.
    """
    elem, lanes = place.elem, place.lanes
    if place.single and (condition is None or not condition.lanes):
        pointer = place.pointer
        if condition is not None:
            pointer = em.select(condition, pointer, NOWHERE)
        return _emit(em, elem, 0, em.load_rhs(elem, 0, pointer), pointer, fresh=fresh)
    if condition is not None:
        condition = em.splat(condition, lanes)
    mask = _both(em, mask, condition)
    if place.direction:
        return _read_contiguous(em, place, mask, fresh=fresh)
    if place.extra is None and 1 < place.span <= _SHUFFLED_SPAN * lanes:
        if mask is None:
            wide = read(em, _spanned(em, place, place.span), None, None, fresh=fresh)
            return em.shuffle(wide, None, place.from_low)
        if em.host.masked:
            everything = _spanned(em, place, power_of_two_above(place.span))
            mask = _spread_mask(em, place, mask, everything.lanes)
            wide = read(em, everything, mask, None, fresh=fresh)
            return em.shuffle(wide, None, place.from_low)
    pointers = _pointers(em, place)
    mask = mask or em.const("i1", 1, lanes)
    name = f"@llvm.masked.gather.v{lanes}{_name(elem)}.v{lanes}p0"
    em.declarations[name] = (
        f"declare {place.vector} {name}(<{lanes} x ptr>, i32, <{lanes} x i1>, {place.vector})"
    )
    rhs = (
        f"call {place.vector} {name}({pointers.typed}, i32 {place.align}, {mask.typed},"
        f" {place.vector} zeroinitializer)"
    )
    return _emit(em, elem, lanes, rhs, pointers, mask, fresh=fresh)


def _read_contiguous(em: Emitter, place: Place, mask: Val | None, *, fresh: bool) -> Val:
    elem, lanes, pointer = place.elem, place.lanes, place.pointer
    if place.direction < 0:
        pointer, mask = _from_low_end(em, place, mask, lanes)
    operands = [pointer]
    if mask is None:
        rhs = em.load_rhs(elem, lanes, pointer)
    else:
        name = f"@llvm.masked.load.v{lanes}{_name(elem)}.p0"
        em.declarations[name] = (
            f"declare {place.vector} {name}(ptr, i32, <{lanes} x i1>, {place.vector})"
        )
        rhs = (
            f"call {place.vector} {name}({pointer.typed}, i32 {place.align}, {mask.typed},"
            f" {place.vector} zeroinitializer)"
        )
        operands.append(mask)
    vector = _emit(em, elem, lanes, rhs, *operands, fresh=fresh)
    return reverse(em, vector) if place.direction < 0 else vector


def write(
    em: Emitter,
    place: Place,
    value: Val,
    mask: Val | None,
    condition: Val | None,
    *,
    stream: bool = False,
) -> None:
    """Stores the elements of the lanes in `mask` for which `condition` holds (None: all).

    With `stream`, lanes that fill whole lines, side by side, go past the caches; the pointer is
    then a multiple of a line's size.
    """
    if place.single and not value.lanes and (condition is None or not condition.lanes):
        pointer = place.pointer
        if condition is not None:
            pointer = em.select(condition, pointer, NOWHERE)
        em.line(f"store {value.typed}, {pointer.typed}, align {place.align}")
        return
    lanes = place.lanes
    value = em.splat(value, lanes)
    if condition is not None:
        condition = em.splat(condition, lanes)
    mask = _both(em, mask, condition)
    if place.direction:
        if stream and mask is None and place.direction > 0 and lanes * place.align % _LINE == 0:
            write_lines(em, place, value)
        else:
            _write_contiguous(em, place, value, mask)
        return
    distinct = len(set(place.pattern)) == lanes
    if place.extra is None and distinct and place.span <= _SHUFFLED_SPAN * lanes and em.host.masked:
        everything = _spanned(em, place, power_of_two_above(place.span))
        mask = _spread_mask(em, place, mask or em.const("i1", 1, lanes), everything.lanes)
        source = {offset: lane for lane, offset in enumerate(place.from_low)}
        wide = em.shuffle(value, None, [source.get(i, -1) for i in range(everything.lanes)])
        _write_contiguous(em, everything, wide, mask)
        return
    pointers = _pointers(em, place)
    mask = mask or em.const("i1", 1, lanes)
    name = f"@llvm.masked.scatter.v{lanes}{_name(place.elem)}.v{lanes}p0"
    em.declarations[name] = (
        f"declare void {name}({place.vector}, <{lanes} x ptr>, i32, <{lanes} x i1>)"
    )
    em.line(f"call void {name}({value.typed}, {pointers.typed}, i32 {place.align}, {mask.typed})")


def write_lines(em: Emitter, place: Place, value: Val) -> None:
    """Stores lanes that fill whole lines, one register at a time, past the caches."""
    em.streams = True
    step = em.host.lanes * 4 // place.align
    for first in range(0, place.lanes, step):
        part = em.shuffle(value, None, range(first, first + step))
        pointer = em.gep(place.elem, place.pointer, em.const("i64", first))
        line = f"store {part.typed}, {pointer.typed}, align {em.host.lanes * 4}"
        em.line(f"{line}, !nontemporal !0")
    em.declarations["!0"] = "!0 = !{i32 1}"


def _write_contiguous(em: Emitter, place: Place, value: Val, mask: Val | None) -> None:
    pointer, lanes = place.pointer, place.lanes
    if place.direction < 0:
        pointer, mask = _from_low_end(em, place, mask, lanes)
        value = reverse(em, value)
    if mask is None:
        em.line(f"store {value.typed}, {pointer.typed}, align {place.align}")
        return
    name = f"@llvm.masked.store.v{lanes}{_name(place.elem)}.p0"
    em.declarations[name] = f"declare void {name}({place.vector}, ptr, i32, <{lanes} x i1>)"
    em.line(f"call void {name}({value.typed}, {pointer.typed}, i32 {place.align}, {mask.typed})")


def _doubled(em: Emitter, value: Val | None, lanes: int) -> Val | None:
    if value is None or not value.lanes:
        return value
    return em.shuffle(value, None, [lane // 2 for lane in range(2 * lanes)])


def _side_by_side(place: Place) -> bool:
    pairs = tuple(range(0, 2 * place.lanes, 2))
    return place.extra is None and bool(pairs) and place.pattern == pairs


def read_pair(
    em: Emitter, place: Place, mask: Val | None, condition: Val | None, *, fresh: bool = False
) -> tuple[Val, Val]:
    """Neighbouring elements (real, imaginary); `place` is that of the real parts."""
    lanes = place.lanes
    if _side_by_side(place):
        both = Place(place.elem, place.pointer, tuple(range(2 * lanes)))
        wide = read(
            em, both, _doubled(em, mask, lanes), _doubled(em, condition, lanes), fresh=fresh
        )
        even, odd = range(0, 2 * lanes, 2), range(1, 2 * lanes, 2)
        return em.shuffle(wide, None, even), em.shuffle(wide, None, odd)
    second = em.gep(place.elem, place.pointer, em.const("i64", 1))
    other = Place(place.elem, second, place.pattern, place.extra)
    re = read(em, place, mask, condition, fresh=fresh)
    return re, read(em, other, mask, condition, fresh=fresh)


def write_pair(
    em: Emitter, place: Place, re: Val, im: Val, mask: Val | None, condition: Val | None
) -> None:
    """Stores (real, imaginary) as neighbours."""
    lanes = place.lanes
    if _side_by_side(place):
        re, im = em.splat(re, lanes), em.splat(im, lanes)
        order = [lane // 2 + lanes * (lane % 2) for lane in range(2 * lanes)]
        both = Place(place.elem, place.pointer, tuple(range(2 * lanes)))
        wide = em.shuffle(re, im, order)
        write(em, both, wide, _doubled(em, mask, lanes), _doubled(em, condition, lanes))
        return
    second = em.gep(place.elem, place.pointer, em.const("i64", 1))
    other = Place(place.elem, second, place.pattern, place.extra)
    write(em, place, re, mask, condition)
    write(em, other, im, mask, condition)


def _name(elem: str) -> str:
    return {"float": "f32", "double": "f64", "half": "f16"}.get(elem, elem)
