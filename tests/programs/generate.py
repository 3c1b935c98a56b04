"""Random programs: a seed makes one, the same every time with the same PyTorch."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import nn

from tests.device.misuse import TRUSTING, other_indices, other_sizes
from tests.programs import operators, statements, unusual
from tests.programs.program import CALLABLES, Program, Statement, placed, words
from tests.programs.uses import USES, inner_arguments

_SHAPES = (
    (4, 6),
    (2, 3, 8),
    (2, 4, 6, 6),
    (8,),
    (3, 1, 5),
    (16, 16),
    (1, 1),
    (2, 8, 4),
    (),
    (0, 4),
    (5, 12),
    (1, 3, 8, 8),
)
_LIMIT = 20_000
#: Types of the operators' samples besides float32 and the program's own.
_DRAWN = (torch.bfloat16, torch.int64, torch.float64, torch.complex64, torch.int32, torch.uint8, torch.bool)  # fmt: skip


def _differentiable(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


class Generator:
    """Makes one program.

    Statements are tried on the CPU while they are made, so most are valid; one in a hundred that the CPU
    refuses is kept as the end of its program, since the device has to refuse it too. Every eighth
    program ends in a call with an operand of a wrong size or with an index that is out of range.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._torch = torch.Generator().manual_seed(seed)
        self._count = 0
        # Drawn apart, so that what other seeds make does not depend on the number of uses.
        drawn = random.Random(f"use {seed}")
        self.program = Program(
            {}, use=drawn.choice(list(USES)) if drawn.random() < 0.5 else "plain"
        )
        self._values: dict[str, torch.Tensor] = {}
        self._modules: dict[str, nn.Module] = {}
        self._draws = self._rng.random() < 0.2  # random numbers
        makers = [*statements.MAKERS, (unusual.overlap, 0.4), (unusual.round_trip, 0.5)]
        if self._draws:
            makers.append((unusual.draw, 2.0))
        if self._rng.random() < 0.06:
            makers.append((unusual.autocast, 1.5))
        if self._rng.random() < 0.2:
            makers.append((unusual.aside, 2.0))
        # PyTorch trains on two streams in the simplest cases only.
        self._trains = self._rng.random() < 0.93
        if not self._trains:
            makers.append((unusual.streams, 2.0))
        self._makers, self._weights = zip(*makers, strict=True)
        self.refused = False

    def generate(self, length: int) -> Program:
        """A program of so many statements, fewer if one is an error."""
        rng = self._rng
        dtype = rng.choices(
            (*statements.FLOATS, torch.int64, torch.complex64),
            (7, 2, 1, 1, 0.7, 0.7),
        )[0]
        for _ in range(rng.randint(1, 3)):
            self._input(rng.choice(_SHAPES), dtype)
        if rng.random() < 0.06:
            self.program.autocast = rng.choice((torch.bfloat16, torch.bfloat16, torch.float16))
        tries = 0
        while len(self.program.statements) < length and tries < 12 * length and not self.refused:
            tries += 1
            self._step(keep_refused=tries > length // 2)
        if not self.refused:
            self._end()
        names = [n for s in self.program.statements for n in s.outs]
        used = {w for s in self.program.statements for w in words(s.code)}
        sinks = [n for n in names if n not in used]
        results = [*sinks, *rng.sample(names, min(len(names), 2)), next(iter(self.program.inputs))]
        self.program.results = tuple(dict.fromkeys(results))
        self._prune()
        return self.program

    def _end(self) -> None:
        """Let some programs end in a mistake of their caller's."""
        kind = self._rng.random()
        if kind < 0.04:
            statement = unusual.elsewhere(self._rng, self._values, self._fresh)
            if statement is not None:
                self._try(statement, keep_refused=False)
        elif kind < 0.16:
            for _ in range(20):
                statement = self._operator(mistaken=True)
                if statement is not None and self._try(statement, keep_refused=True, surely=True):
                    return

    def _fresh(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count}"

    def _input(self, shape: tuple[int, ...], dtype: torch.dtype) -> str:
        rng = self._rng
        x = self._random(shape, dtype)
        if len(shape) > 1 and rng.random() < 0.3:
            x = x.transpose(-1, -2).contiguous().transpose(-1, -2)
        elif shape and rng.random() < 0.15:
            x = torch.stack([x, x], -1).flatten(-2)[..., ::2]
        if _differentiable(dtype) and x.numel() and rng.random() < 0.12:
            flat = x.reshape(-1).clone()
            special = ("nan", "inf", "-inf", "-0.0", "0.0")
            parts = torch.view_as_real(flat).view(-1) if dtype.is_complex else flat
            parts[rng.randrange(parts.numel())] = float(rng.choice(special))
            x = flat.view(x.shape)
        return self._add(x.requires_grad_(self._is_trained(dtype, 0.6)))

    def _is_trained(self, dtype: torch.dtype, often: float) -> bool:
        return self._trains and _differentiable(dtype) and self._rng.random() < often

    def _add(self, x: torch.Tensor, letter: str = "x") -> str:
        name = self._fresh(letter)
        self.program.inputs[name] = x
        # The program works on copies of leaves, so that it may write to them.
        copy = placed(x, "cpu")
        self._values[name] = inner_arguments([copy])[0] if self.program.use == "inner" else copy
        return name

    def _random(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if dtype is torch.bool:
            return torch.rand(shape, generator=self._torch) > 0.5
        if not _differentiable(dtype):
            return torch.randint(
                0 if dtype is torch.uint8 else -5, 9, shape, generator=self._torch
            ).to(dtype)
        if dtype.is_complex:
            return torch.randn(shape, generator=self._torch, dtype=dtype)
        return torch.randn(shape, generator=self._torch).to(dtype)

    def _step(self, *, keep_refused: bool) -> None:
        rng = self._rng
        kind = rng.random()
        before = dict(self.program.inputs)
        if kind < 0.10 and self._trains:
            made = statements.modules(rng, self._values, self._fresh, draws=self._draws)
            if made is None:
                return
            statement, name, text = made
            try:
                torch.manual_seed(7)
                self._modules[name] = eval(text, {"nn": nn, "torch": torch})
            except (ValueError, RuntimeError, AssertionError, ZeroDivisionError, TypeError):
                return
            if self._try(statement, keep_refused=False):
                self.program.modules[name] = text
            return
        if kind < 0.40:
            statement_or_none = self._operator()
        else:
            maker = rng.choices(self._makers, self._weights)[0]
            statement_or_none = maker(rng, self._values, self._fresh)
        if statement_or_none is not None and not self._try(
            statement_or_none, keep_refused=keep_refused
        ):
            for name in set(self.program.inputs) - set(before):
                del self.program.inputs[name]
                del self._values[name]

    def _operator(  # noqa: C901 (a branch for each form of a call)
        self, *, mistaken: bool = False
    ) -> Statement | None:
        """A call of the table, with tensors replaced by values of the program where they fit.

        Args:
            mistaken: one tensor gets another size, or an index that is out of range, or numbers and
                names among the arguments are others
        """
        rng = self._rng
        operator = rng.choice(operators.operators())
        if mistaken and operator.info.name in TRUSTING:
            return None
        dtype = rng.choices(
            (torch.float32, self._dtype(), *_DRAWN), (4, 3, *(2, 2, 1, 1, 1, 1, 1))
        )[0]
        sample = operators.pick(rng, operator.name, dtype)
        if sample is None:
            return None
        silly = mistaken and rng.random() < 0.4
        places, wrong = 0, rng.randrange(_tensors(sample)) if mistaken and not silly else -1

        def text(x: Any) -> str | None:
            nonlocal places
            if isinstance(x, torch.Tensor):
                places += 1
                return self._mistaken(x) if places - 1 == wrong else self._operand(x)
            if isinstance(x, list | tuple):
                inner = [text(y) for y in x]
                if any(y is None for y in inner):
                    return None
                joined = ", ".join(str(y) for y in inner)
                return (
                    f"[{joined}]"
                    if isinstance(x, list)
                    else f"({joined}{',' if len(inner) == 1 else ''})"
                )
            return operators.wrong_literal(rng, x) if silly else operators.literal(x)

        args = [text(x) for x in (sample.input, *sample.args)]
        here = f"{next(iter(self.program.inputs))}.device"
        kwargs = {k: here if k == "device" else text(v) for k, v in sample.kwargs.items()}
        if any(a is None for a in (*args, *kwargs.values())):
            return None
        if operator.name in operators.TIES and self._has_ties(str(args[0])):
            return None
        words = [*(str(a) for a in args), *(f"{k}={v}" for k, v in kwargs.items())]
        code = f"{operator.text}({', '.join(words)})"
        how = rng.random()
        if how < 0.3 and operator.in_place and self._may_be_written(words[0]):
            code = f"{words[0]}.{operator.in_place}({', '.join(words[1:])})"
        elif how < 0.38 and operator.info.supports_out and "out" not in kwargs:
            code = self._with_out(code) or code
        drops = "dropout_p=0." in code.replace("dropout_p=0.0", "")
        return Statement((self._fresh("t"),), code, "random" if drops else "operator")

    def _has_ties(self, code: str) -> bool:
        """Whether elements are equal, or NaN, so that nobody promises which of them is named."""
        x = self._evaluated(code)
        if not isinstance(x, torch.Tensor) or x.dtype.is_complex or x.itemsize == 1:
            return False
        ordered = x.detach().reshape(-1).sort().values
        return bool((ordered[1:] == ordered[:-1]).any() or ordered.isnan().any())

    def _may_be_written(self, name: str) -> bool:
        return name in self._values and statements.has_elements_apart(self._values[name])

    def _with_out(self, code: str) -> str | None:
        """The call with a new tensor for its result, None if it has another number of results."""
        made = self._evaluated(code)
        if not isinstance(made, torch.Tensor) or made.layout is not torch.strided:
            return None
        first = next(iter(self.program.inputs))
        new = f"{first}.new_zeros({tuple(made.shape)}, dtype={made.dtype})"
        if made.dim() == 2 and self._rng.random() < 0.3:
            new = f"{first}.new_zeros({tuple(made.shape[::-1])}, dtype={made.dtype}).t()"
        return f"{code[:-1]}, out={new})"

    def _dtype(self) -> torch.dtype:
        return next(iter(self.program.inputs.values())).dtype

    def _operand(self, wanted: torch.Tensor) -> str:
        """Text of a value with the wanted shape and type, or the sample's own tensor as an input."""
        rng = self._rng
        exact = [
            n
            for n, x in self._values.items()
            if x.shape == wanted.shape and x.dtype == wanted.dtype
        ]
        if exact and rng.random() < 0.8:
            return rng.choice(exact)
        n = wanted.numel()
        shape = tuple(wanted.shape)
        larger = [
            m for m, x in self._values.items() if x.numel() >= n > 0 and x.dtype == wanted.dtype
        ]
        if larger and wanted.dtype.is_floating_point and rng.random() < 0.75:
            name = rng.choice(larger)
            return f"{name}.reshape(-1)[{self._values[name].numel() - n}:].reshape({shape})"
        other = [
            m for m, x in self._values.items() if x.numel() >= n > 0 and x.dtype.is_floating_point
        ]
        if other and wanted.dtype.is_floating_point and rng.random() < 0.4:
            return f"{rng.choice(other)}.flatten()[:{n}].to({wanted.dtype}).view({shape})"
        kept = wanted.detach().clone(memory_format=torch.preserve_format)
        return self._add(kept.requires_grad_(self._is_trained(wanted.dtype, 0.5)), "c")

    def _mistaken(self, wanted: torch.Tensor) -> str | None:
        """A new input like a tensor but for its size, or for one of the indices that it holds."""
        kinds = [*other_sizes(wanted), *other_indices(wanted)]
        if not kinds:
            return None
        return self._add(self._rng.choice(kinds)[1].detach().contiguous(), "w")

    def _try(self, statement: Statement, *, keep_refused: bool, surely: bool = False) -> bool:
        """Run the statement; whether it became part of the program.

        Args:
            statement: what is tried
            keep_refused: it may become the program's end if the CPU refuses it
            surely: then it does
        """
        if self.program.use == "packed" and self._saves_before_it_draws(statement.code):
            return False
        if "as_strided" in statement.code and self._lies_otherwise_in_graphs(statement.code):
            return False
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.manual_seed(3)
                made = eval(statement.code, self._names())
        except Exception:  # noqa: BLE001 - whatever the CPU raises
            if keep_refused and (surely or self._rng.random() < 0.02):
                self.program.statements.append(statement)
                self.refused = True
                return True
            return False
        return self._bind(statement, made)

    def _saves_before_it_draws(self, code: str) -> bool:
        """Whether a copy of what is saved would hold what the memory held."""
        named = (self._modules.get(name) for name in words(code))
        return "rrelu" in code or any(isinstance(module, nn.RReLU) for module in named)

    def _lies_otherwise_in_graphs(self, code: str) -> bool:
        """Whether `as_strided` of what is named may show another memory than in eager mode.

        A small part of a result gets memory of its own when it leaves a graph (docs/compiler.md);
        what the last statement made is in the same graph. Functionalisation gives an `out=` the
        strides of the operator's result, for every backend. And eager mode makes what `_scatter`
        gives in a copy of the operand's storage, at the operand's offset.
        """

        def memories(names: Iterable[str]) -> set[int]:
            return {self._values[n].untyped_storage().data_ptr() for n in names}

        made = [s for s in self.program.statements if s.outs]
        elsewhere = [s for s in made if "out=" in s.code or "_scatter(" in s.code]
        given = memories(n for s in elsewhere for n in s.outs)
        inputs = memories(self.program.inputs)
        last = made[-1].outs if made else ()
        for name in words(code) & self._values.keys():
            x = self._values[name]
            memory = x.untyped_storage()
            part = 2 * x.nbytes < memory.nbytes() and memory.data_ptr() not in inputs
            if memory.data_ptr() in given or (part and name not in last):
                return True
        return False

    def _names(self) -> dict[str, Any]:
        """What the text of a statement may name."""
        plain = {"torch": torch, "F": F, "inf": torch.inf, "nan": torch.nan}
        return {**plain, **CALLABLES, **self._values, **self._modules}

    def _evaluated(self, code: str) -> Any:
        """What a call gives that writes to none of its operands, None if the CPU refuses it."""
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                return eval(code, self._names())
        except Exception:  # noqa: BLE001 - whatever the CPU raises
            return None

    def _bind(self, statement: Statement, made: Any) -> bool:
        """Take the statement's results into the program, if they are of use."""
        results = [x for x in pytree.tree_leaves(made) if x is not None] if statement.outs else []
        if not all(
            isinstance(r, torch.Tensor) and r.layout is torch.strided and not r.is_quantized
            for r in results
        ):
            return False
        if statement.outs and not isinstance(made, torch.Tensor):
            if len(results) != len(pytree.tree_leaves(made)) or not results:
                return False
            statement = Statement(
                tuple(self._fresh("t") for _ in results), statement.code, "unpack"
            )
        floats = [r for r in results if _differentiable(r.dtype) and r.numel()]
        # A program of NaN tests nothing.
        wide = [r.float() if r.itemsize == 1 else r for r in floats]
        useless = any(bool(r.isnan().all()) for r in wide) and self._rng.random() < 0.95
        if useless or sum(r.numel() for r in results) > _LIMIT:
            return False
        self.program.statements.append(statement)
        self._values |= dict(zip(statement.outs, results, strict=True))
        return True

    def _prune(self) -> None:
        """Drop inputs that no statement names."""
        text = self.program.text().split(":\n", 1)[1]
        used = self.program.inputs.keys() & words(text)
        first = next(iter(self.program.inputs))
        self.program.inputs = {
            n: x for n, x in self.program.inputs.items() if n in used or n == first
        }


def _tensors(sample: Any) -> int:
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return sum(isinstance(x, torch.Tensor) for x in leaves) or 1


def program(seed: int, length: int | None = None) -> Program:
    """The program of a seed, of 5 to 40 statements."""
    rng = random.Random(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecated operators, whose samples are made here
        return Generator(seed).generate(length or rng.randint(5, 40))
