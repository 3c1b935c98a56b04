"""Errors of code generation."""

from __future__ import annotations


class CodegenUnsupported(NotImplementedError):  # noqa: N818 - names a limit, not a mistake
    """This kernel is valid, but the code generator has no schedule or instruction for it.

    The client takes another path: it splits the kernel, or runs the operation otherwise.
    """


class CodegenError(ValueError):
    """The kernel breaks a rule of `codegen/loop.py`: its maker has a bug."""
