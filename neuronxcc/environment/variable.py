"""One environment variable: its name, how its text is read, and what it means."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off"})


class VariableError(ValueError):
    """An environment variable has a value that it cannot have.

    Attributes:
        variable: Its name.
        given: Its value.
        allowed: What would have been accepted, as text.
    """

    def __init__(self, variable: str, given: str, allowed: str) -> None:
        self.variable, self.given, self.allowed = variable, given, allowed
        super().__init__(
            f"{variable}={given!r} is not valid; allowed: {allowed}. Change it, or unset it."
        )

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.variable, self.given, self.allowed)


class Reader(enum.Enum):
    """Somebody who reads variables; the value is the name in the documentation."""

    COMPILER = "compiler"  # neuronxcc
    NKI = "NKI"
    DEVICE = "device"  # torch_neuronx in Python
    CORE = "native core"  # torch_neuronx/csrc
    NRTPY = "nrtpy"
    TOOLS = "neuron_tools"
    PYTORCH = "PyTorch"
    TESTS = "tests"
    MAKE = "make"


@dataclass(frozen=True, slots=True)
class Kind(Generic[T_co]):
    """A way to read the text of a variable.

    Attributes:
        parse: Takes a text that is not empty; raises ValueError for one that is not allowed.
        allowed: The texts that it takes, in words.
    """

    parse: Callable[[str], T_co]
    allowed: str


def _flag(text: str) -> bool:
    if text.lower() not in _YES | _NO:
        raise ValueError(text)
    return text.lower() in _YES


TEXT: Kind[str] = Kind(str, "any text")
PATH: Kind[Path] = Kind(lambda text: Path(text).expanduser(), "a path")
FLAG: Kind[bool] = Kind(_flag, "0, false, no or off; 1, true, yes or on")


def choice(*names: str, exact: bool = False) -> Kind[str]:
    """Return the kind of a variable that has one of a few values.

    Args:
        names: The values, in lower case.
        exact: Only lower case is allowed.
    """

    def parse(text: str) -> str:
        name = text if exact else text.lower()
        if name not in names:
            raise ValueError(text)
        return name

    return Kind(parse, ", ".join(names))


def number(low: int, high: int, unit: str = "") -> Kind[int]:
    """Return the kind of a whole number from `low` to `high`, written in decimal digits."""

    def parse(text: str) -> int:
        # The length is looked at first: Python refuses to convert thousands of digits.
        if not (text.isascii() and text.isdigit() and len(text) < 30 and low <= int(text) <= high):
            raise ValueError(text)
        return int(text)

    return Kind(parse, f"{unit or 'a number'}, {low} to {high}")


def words(separator: str) -> Kind[tuple[str, ...]]:
    """Return the kind of a list of words with a separator between them."""
    return Kind(
        lambda text: tuple(word.strip() for word in text.split(separator) if word.strip()),
        f"words with {separator!r} between them",
    )


@dataclass(frozen=True)
class Variable(Generic[T]):
    """An environment variable.

    Attributes:
        name: Its name.
        kind: How its text is read.
        default: The value of a variable that is unset or empty.
        said: The default in words, "" where its value says it.
        meaning: One or two sentences.
        source: The document, or the project, that defines it.
        readers: All who read it; a variable without readers is accepted and changes nothing.
        components: Each of them may have a value of its own, in `<name>_<component>`.
    """

    name: str
    kind: Kind[T]
    default: T
    said: str
    meaning: str
    source: str
    readers: frozenset[Reader]
    components: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the variable and of its components' own."""
        return (self.name, *(f"{self.name}_{component}" for component in self.components))

    @property
    def shown(self) -> str:
        """The default as the documentation prints it."""
        if self.said or self.default is None or self.default in ("", ()):
            return self.said or "unset"
        if isinstance(self.default, int):
            return str(int(self.default))
        text = str(self.default)
        return text if text.isdigit() else f"`{text}`"

    def text(self, environ: Mapping[str, str] | None = None, component: str = "") -> str:
        """Return the text as it stands, without blanks around it; "" if there is none.

        Args:
            environ: The environment; that of the process if None.
            component: Whose value is wanted, if the variable has components.
        """
        variables = os.environ if environ is None else environ
        own = variables.get(f"{self.name}_{component}", "").strip() if component else ""
        return own or variables.get(self.name, "").strip()

    def get(self, environ: Mapping[str, str] | None = None, component: str = "") -> T:
        """Return the value; arguments as of `text`.

        Raises:
            VariableError: The text is not one of those that are allowed.
        """
        text = self.text(environ, component)
        if not text:
            return self.default
        try:
            return self.kind.parse(text)
        except ValueError:
            raise VariableError(self.name, text, self.kind.allowed) from None

    def set(self, text: str | None) -> str | None:
        """Change the variable in this process, or remove it with None; returns the text before."""
        before = os.environ.get(self.name)
        if text is None:
            os.environ.pop(self.name, None)
        else:
            os.environ[self.name] = text
        return before


@contextmanager
def changed(values: Mapping[str, str]) -> Iterator[None]:
    """Give variables of the process other values within a `with` block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@dataclass
class Section:
    """A part of the documentation: a table of variables, and prose around it.

    Attributes:
        title: Its heading.
        before: Markdown above the table.
        after: Markdown below it.
        variables: The rows.
    """

    title: str
    before: str = ""
    after: str = ""
    variables: list[Variable[Any]] = field(default_factory=list)

    def variable(
        self,
        name: str,
        kind: Kind[T],
        meaning: str,
        *,
        default: T,
        source: str,
        readers: Collection[Reader] = (),
        said: str = "",
        components: tuple[str, ...] = (),
    ) -> Variable[T]:
        """Declare a variable of this section; arguments as the attributes of `Variable`."""
        made = Variable(name, kind, default, said, meaning, source, frozenset(readers), components)
        self.variables.append(made)
        return made
