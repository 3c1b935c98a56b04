"""Keys of the compile cache: hashes of labelled parts, so that a miss can be explained."""

from __future__ import annotations

import functools
import hashlib
import re
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import neuronxcc
from neuronxcc.cache.messages import LOG
from neuronxcc.ir.graph import Graph
from neuronxcc.ir.text import to_text
from neuronxcc.options import Options

OPTION = "option."
_IMPORTED = time.time()
_SHOWN = 100  # characters: shorter parts are kept as they are, to be shown in explanations
_DEVICE = re.compile(r"\b(neuron|privateuseone|nc):\d+")


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a key: its hash, and its text (None in keys that were read back, if long)."""

    hash: str
    text: str | None

    @property
    def shown(self) -> str | None:
        """The text if it is short enough for a message."""
        return self.text if self.text is not None and len(self.text) <= _SHOWN else None


@dataclass(frozen=True, slots=True)
class CacheKey:
    """The name of a compilation: equal exactly if all parts are.

    Attributes:
        parts: By label, "graph", "layouts", "option.auto_cast", "version.torch", ...
        digest: 64 hexadecimal digits over all of them.
        folder: Directory of the entry, in the documented form `MODULE_<graph>+<flags>`; parts that
            are options count as flags.
    """

    parts: Mapping[str, Part]
    digest: str
    folder: str

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> CacheKey:
        """The key of these texts by label."""
        parts = {
            label: Part(
                hashlib.sha256(texts[label].encode("utf-8", "backslashreplace")).hexdigest(),
                texts[label],
            )
            for label in sorted(texts)
        }
        return cls.of_parts(parts)

    @classmethod
    def of_parts(cls, parts: Mapping[str, Part]) -> CacheKey:
        """The key of these parts, whose labels are sorted; only their hashes count."""
        flags = {label: part for label, part in parts.items() if label.startswith(OPTION)}
        rest = {label: part for label, part in parts.items() if label not in flags}
        folder = f"MODULE_{_digest(rest)[:20]}+{_digest(flags)[:8]}"
        return cls(parts, _digest(parts), folder)

    def labels(self) -> dict[str, str]:
        """Hashes by label, shortened: what a NEFF says about its key."""
        return {label: part.hash[:16] for label, part in self.parts.items()}


def make_key(graph: Graph | str, options: Options, *, layouts: str = "", **more: str) -> CacheKey:
    """The key of a graph under options, with the versions of everything that compiles it.

    Args:
        graph: The graph, or a text of it that is complete: equal texts must mean equal programs.
            Its name and the places in the user's files don't count.
        options: The compiler's options.
        layouts: Strides of parameters and results, and what else is asked of their memory.
        more: Further parts by label.

    Device numbers in the texts don't count: a program made for `neuron:3` runs on `neuron:0`.
    """
    if isinstance(graph, Graph):
        graph = to_text(replace(graph, name="", locs={}))
    texts = {
        "graph": without_device_numbers(graph),
        "layouts": without_device_numbers(layouts),
        **{OPTION + name: value for name, value in options.canonical().items()},
        **{f"version.{name}": text for name, text in versions().items()},
        **more,
    }
    return CacheKey.of(texts)


def layouts_of(
    param_strides: Sequence[tuple[int, ...]],
    result_strides: Sequence[tuple[int, ...]],
    constant_params: Collection[int] | None,
) -> str:
    """A graph's `layouts` for `make_key`; the arguments are those of `compile_graph`."""
    weights = None if constant_params is None else sorted(constant_params)
    return f"{tuple(param_strides)} {tuple(result_strides)} weights {weights}"


def without_device_numbers(text: str) -> str:
    """The text with every device of a process made its first one."""
    return _DEVICE.sub(r"\1:0", text)


@functools.cache
def versions() -> dict[str, str]:
    """Versions of what a program depends on; "source" is a hash of the compiler's own files.

    The last makes a change to a checkout a change of the key, where the version stays the same.
    """
    found = {"neuronxcc": neuronxcc.__version__}
    for name in ("torch", "torchneuron", "llvmlite"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return {**found, "source": source_digest(Path(neuronxcc.__file__).parent)}


def source_digest(root: Path) -> str:
    """A hash of all Python files below a directory, names and contents.

    A file that was changed after this process imported the compiler is not what the process runs.
    The hash then is one that nobody else has, so that nothing is kept under a wrong name.
    """
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root)}:{len(content)}:".encode())
        digest.update(content)
        if path.stat().st_mtime > _IMPORTED:
            LOG.info("%s changed while the process runs; nothing is taken from the cache", path)
            digest.update(secrets.token_bytes(16))
    return digest.hexdigest()


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def _digest(parts: Mapping[str, Part]) -> str:
    digest = hashlib.sha256()
    for label, part in parts.items():
        digest.update(f"{label}={part.hash}\n".encode())
    return digest.hexdigest()
