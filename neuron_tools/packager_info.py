"""The output of `neuron-packager info` and `validate` about a NEFF."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import asdict
from typing import Any

from neuron_tools.packager_files import foreign_files
from neuronxcc.neff.container import HEADER_BYTES, Header, Neff, parse_header, read_neff
from neuronxcc.neff.features import TORCHNEURON, feature_names
from neuronxcc.program.errors import NeffError
from neuronxcc.program.footprint import memory_of
from neuronxcc.program.interface import Interface, interface

_TEXTS = frozenset({"neff_build_version", "name"})
_LABEL = 22


def document(data: bytes) -> dict[str, Any]:
    """The content of a NEFF, as JSON's types.

    Keys: "header" with all documented fields (bytes as text or hexadecimal digits; "tpb_per_node"
    as its numbers, without the zeros behind), "features" (names), "hash_matches". Of ours also
    "program", "target", "lnc", "flags", "producer", "inputs" and "outputs" (name, dtype, shape,
    bytes), "supplied" (inputs that the loader fills), "memory" (bytes by category), "engines"
    (steps and bytes by engine). Of the vendor's: "files" (bytes by name). If the content is
    damaged: "error".

    Raises:
        NeffError: It is no NEFF.
    """
    header = parse_header(data)
    found: dict[str, Any] = {
        "header": {name: _plain(name, value) for name, value in header._asdict().items()},
        "features": feature_names(header.feature_bits),
        "hash_matches": _hash_matches(header, data),
    }
    try:
        if header.feature_bits & TORCHNEURON:
            found |= _contents(read_neff(data))
        else:
            files = foreign_files(data)
            found["files"] = {name: len(content) for name, content in files.items()}
    except NeffError as error:
        found["error"] = str(error)
    return found


def verdict(data: bytes) -> str:
    """Says that a NEFF is right, and what was checked.

    Raises:
        NeffError: It is not.
    """
    header = parse_header(data)
    if header.feature_bits & TORCHNEURON:
        neff = read_neff(data)
        interface(neff.program)
        return f"valid: header, hash, archive and {len(neff.program.steps)} steps"
    if not _hash_matches(header, data):
        raise NeffError("the content does not have the hash in the header")
    count = len(foreign_files(data))
    return (
        f"not ours: header, hash and archive of {count} files are right; the machine code in it "
        "was not checked"
    )


def describe(found: dict[str, Any]) -> str:
    """A document for people."""
    header = {name: _shown(value) for name, value in found["header"].items() if name != "pad"}
    header["feature_bits"] = f"{found['header']['feature_bits']:#x}"
    lines = ["header", *(_row(name, value) for name, value in header.items())]
    lines += [
        _row("features", ", ".join(found["features"]) or "none"),
        _row("hash matches", "yes" if found["hash_matches"] else "NO"),
    ]
    if "error" in found:
        return "\n".join(lines)
    if "files" in found:
        lines += ["files", *(_row(name, f"{size:,} B") for name, size in found["files"].items())]
        return "\n".join(lines)
    lines += [
        "program",
        *(_row(n, _shown(found[n])) for n in ("program", "target", "lnc", "flags")),
    ]
    for kind in ("inputs", "outputs"):
        lines += [kind, *(_row(t["name"], _tensor(t)) for t in found[kind])]
    if found["supplied"]:
        lines.append("inputs that the loader fills")
        lines += [_row(name, what) for name, what in found["supplied"].items()]
    lines += ["memory", *(_row(name, f"{size:,} B") for name, size in found["memory"].items())]
    lines.append("steps by engine")
    for name, engine in found["engines"].items():
        moved = f"{engine['bytes']:,} B read and written"
        lines.append(_row(name, f"{engine['steps']:>6} steps {moved:>36}"))
    return "\n".join(lines)


def _contents(neff: Neff) -> dict[str, Any]:
    face = interface(neff.program)
    return {
        "program": neff.program.name,
        "target": neff.info.target,
        "lnc": neff.info.lnc,
        "flags": " ".join(neff.info.flags),
        "producer": neff.info.producer,
        "inputs": _tensors(face, "given"),
        "outputs": _tensors(face, "outputs"),
        "supplied": {face.inputs[n].name: what for n, what in face.supplied.items()},
        "memory": asdict(memory_of(neff.program)),
        "engines": _engines(neff.program.meta.get("steps", ())),
    }


def _tensors(face: Interface, which: str) -> list[dict[str, Any]]:
    return [
        {
            "name": info.name,
            "dtype": info.dtype.numpy.name,
            "shape": list(info.shape),
            "bytes": info.nbytes,
        }
        | ({"alias_of": face.inputs[info.alias].name} if info.alias >= 0 else {})
        for info in getattr(face, which)
    ]


def _engines(steps: Any) -> dict[str, dict[str, int]]:
    """Sums of the compiler's notes, which a file may also lack."""
    counted: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for step in steps if isinstance(steps, list | tuple) else ():
        if isinstance(step, dict) and isinstance(step.get("bytes"), int):
            counted[str(step.get("engine"))] += 1
            moved[str(step.get("engine"))] += step["bytes"]
    return {name: {"steps": counted[name], "bytes": moved[name]} for name in sorted(counted)}


def _hash_matches(header: Header, data: bytes) -> bool:
    """SHA-256 or, in older packages, MD5 with zeros behind; which of them is not documented."""
    body = memoryview(data)[HEADER_BYTES:]
    if hashlib.sha256(body).digest() == header.hash:
        return True
    return hashlib.md5(body, usedforsecurity=False).digest().ljust(32, b"\0") == header.hash


def _plain(name: str, value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    if name in _TEXTS:
        return value.split(b"\0", 1)[0].decode(errors="replace")
    if name == "tpb_per_node":
        return list(value.rstrip(b"\0"))
    if name == "pad":
        return value.rstrip(b"\0").hex()
    return value.hex()


def _tensor(tensor: dict[str, Any]) -> str:
    text = f"{tensor['dtype']}{tensor['shape']}"
    alias = f"  in place of {_quoted(tensor['alias_of'])}" if "alias_of" in tensor else ""
    return f"{text:<28}{tensor['bytes']:>14,} B{alias}"


def _row(name: str, value: Any) -> str:
    return f"  {_quoted(name):<{_LABEL}} {value}"


def _shown(value: Any) -> str:
    return _quoted(value) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    """Without what would move a terminal's cursor: a file's names are not trusted."""
    return text if text.isprintable() else repr(text)
