"""`nki.check`: everything that is known to be wrong with a kernel, as a list."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from nki.errors import NkiError, NkiWarning
from nki.kernel import simulate
from nki.lint import Problem, check_arguments, check_python

__all__ = ["check"]


def check(kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Problem]:
    """Return what the NKI compiler or the hardware refuses in a kernel; nothing is executed.

    Without arguments only the Python of the kernel is looked at, and that of the user's functions
    and classes that it names. With arguments they are looked at too, and the kernel is recorded for
    them: the first rule that it breaks, or else what is undefined on hardware.

    Args:
        kernel: a kernel, ``kernel[2]``, or a plain function.
        args: as in a call; only shapes and types of arrays matter.
        kwargs: likewise.

    Returns:
        Problems with code, text, remedy, file and line. Those that are not `sure` are inferred from
        what the language guide says is supported.

    Raises:
        NkiTypeError: the arguments do not fit the kernel's signature (NKI207).
    """
    found = check_python(kernel)
    if not args and not kwargs:
        return found
    made = simulate(kernel)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NkiWarning)
        try:
            recording = made.record(*args, **kwargs)
        except NkiError as error:
            if error.code == "NKI207":
                raise
            broken = [Problem(error.code, error.what, error.remedy, *error.where)]
        else:
            broken = [
                Problem(finding.code, finding.text, "correct it for hardware", *where)
                for finding, where in recording.findings
            ]
    return list(dict.fromkeys([*found, *check_arguments(kernel, args, kwargs), *broken]))
