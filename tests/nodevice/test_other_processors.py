"""What files for one instruction set define is there for other processors, too, or isn't asked for.

A core for another processor has no such files, and a function that only they have would be missing
when it is loaded: no compiler and no linker says so, because PyTorch's functions are missing then
as well.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.where import ROOT

CSRC = ROOT / "torch_neuronx" / "csrc"
# As CMakeLists.txt has it.
LEFT_OUT = re.compile(r"_avx(2|512|512bf16|512amx)\.cpp$")
# What compilers for x86-64 define, or would by the options of such a file, and others don't.
X86 = re.compile(r"defined\(__(x86_64|SSE2|AVX\w*|FMA|F16C)__\)")
# Their names say so, but in namespaces that TN_DECLARE_TABLES makes.
FUNCTION = re.compile(r"^[A-Za-z][\w:<>*& ]*?[ *&](\w*(?:avx|amx)\w*)\([^;{}]*\) \{", re.MULTILINE)


def _without_comments(path: Path) -> str:
    return re.sub(r"//.*", "", path.read_text())


def _elsewhere(text: str) -> str:
    """Return the lines that a compiler for aarch64 Linux takes, or might take."""
    kept: list[str] = []
    taken = [True]  # of the blocks around a line: whether this branch is
    had: list[bool] = []  # ... and whether an earlier one was
    for line in text.splitlines():
        word, _, condition = line.replace("# ", "#").strip().partition(" ")
        if word in {"#if", "#ifdef", "#ifndef"}:
            taken.append(word != "#if" or _may_hold(condition))
            had.append(word == "#if" and taken[-1] and _is_known(condition))
        elif word == "#elif":
            taken[-1] = not had[-1] and _may_hold(condition)
            had[-1] |= taken[-1] and _is_known(condition)
        elif word == "#else":
            taken[-1] = not had[-1]
        elif word == "#endif":
            taken.pop()
            had.pop()
        elif all(taken):
            kept.append(line)
    assert not had
    return "\n".join(kept)


def _python(condition: str) -> str:
    known = X86.sub("False", condition)
    known = re.sub(r"defined\(__(aarch64|linux|GNUC)__\)", "True", known)
    return known.replace("&&", " and ").replace("||", " or ").replace("!", " not ").strip()


def _is_known(condition: str) -> bool:
    return set(re.findall(r"\w+", _python(condition))) <= {"False", "True", "and", "or", "not"}


def _may_hold(condition: str) -> bool:
    """Return whether it holds, or names something that this file doesn't know."""
    if not _is_known(condition):
        # False wherever all of it needs one of x86's.
        return not re.search(r"(^|&& *)False\b(?! *\|\|)", X86.sub("False", condition))
    return bool(eval(_python(condition)))  # noqa: S307 - of the words above


def test_the_conditions_are_understood() -> None:
    text = """
#if defined(__x86_64__)
one();
#elif defined(__aarch64__)
two();
#else
three();
#endif
#if !defined(__SSE2__) || defined(SOMETHING)
four();
#else
five();
#endif
#if defined(__x86_64__) && (__GNUC__ >= 12 || defined(__clang__))
six();
#endif
"""
    assert re.findall(r"\w+(?=\()", _elsewhere(text)) == ["two", "four", "five"]


def test_what_one_instruction_set_defines_others_need_not() -> None:
    paths = [path for path in CSRC.rglob("*") if path.suffix in {".cpp", ".h"}]
    left_out = [path for path in paths if LEFT_OUT.search(path.name)]
    theirs = {name for path in left_out for name in FUNCTION.findall(_without_comments(path))}
    # Products, rows of attention, Winograd's method: what has no portable form.
    assert {"avx512_kernels", "amx_kernels", "rows_avx512", "winograd_avx512"} <= theirs
    portable = [path for path in paths if path not in left_out]
    texts = {path: _elsewhere(_without_comments(path)) for path in portable}
    everything = "\n".join(texts.values())
    missing = {
        (path.relative_to(CSRC).as_posix(), name)
        for path, text in texts.items()
        for name in theirs
        if re.search(rf"\b{name}\(", text)
        and not re.search(rf"\b{name}\([^;{{}}]*\) {{", everything)
    }
    assert not missing
