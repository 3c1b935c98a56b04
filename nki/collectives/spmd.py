"""Running a kernel on several ranks in this process.

The vendor's interface has no way to do so: on Trainium each rank is a process of its own, started
by PyTorch or JAX, and the vendor's simulator has no collectives. Here the ranks' recordings are
merged into one program, so that a test needs one call, and runs the same way each time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nki.errors import NkiError
from nki.kernel import Kernel, simulate

__all__ = ["Spmd", "spmd"]

_RANKS = range(2, 129)  # the cores of the largest machine


class Spmd:
    """A kernel on several ranks.

    Attributes:
        kernel: what each rank runs.
        ranks: how many there are.
    """

    def __init__(self, kernel: Kernel, ranks: int) -> None:
        """Wrap a kernel."""
        self.kernel = kernel
        self.ranks = ranks

    def __getitem__(self, cores: Any) -> Spmd:
        """Return the same with 1 or 2 physical cores for each rank."""
        made = copy.copy(self)
        made.kernel = self.kernel[cores]
        return made

    def __call__(self, args: Sequence[Any], /, **common: Any) -> list[Any]:
        """Run all ranks.

        Args:
            args: for each rank a tuple of its arguments, or a dict of them by name. Arrays have the
                same shapes and types on all ranks if collectives take them.
            common: arguments that all ranks get, by name.

        Returns:
            What the kernel returns, for each rank. Arguments that it writes are changed in place.

        Raises:
            NkiError: the arguments are not those of so many ranks (NKI323), or the ranks'
                collectives do not fit each other (NKI302, NKI319).
        """
        if not isinstance(args, (list, tuple)) or len(args) != self.ranks:
            count = len(args) if isinstance(args, (list, tuple)) else "no"
            raise NkiError(
                "NKI323",
                f"{self.kernel.function.__name__} runs on {self.ranks} ranks and was given "
                f"{count} lists of arguments",
                "pass a list with a tuple of arguments for each rank",
            )
        launch, frontend, values = self.kernel.prepared([_call(one, common) for one in args])
        results: list[Any] = frontend.execute(launch, values)
        return results


def _call(one: Any, common: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(one, (tuple, list)):
        return tuple(one), dict(common)
    if isinstance(one, Mapping):
        return (), {**common, **one}
    raise NkiError(
        "NKI323",
        f"the arguments of a rank are a {type(one).__name__}",
        "pass a tuple for each rank, (x,) for one argument, or a dict by name",
    )


def spmd(kernel: Callable[..., Any], ranks: int) -> Spmd:
    """Return a kernel that runs on several ranks: ``spmd(kernel, ranks=4)([(x0,), (x1,), ...])``.

    Args:
        kernel: a kernel, or ``kernel[2]`` for two physical cores in each rank.
        ranks: 2 to 128.

    Raises:
        NkiError: another number of ranks (NKI323).
    """
    if isinstance(ranks, bool) or ranks not in _RANKS:
        raise NkiError(
            "NKI323", f"ranks={ranks!r}", "run on 2 to 128 ranks, or call the kernel itself for one"
        )
    return Spmd(simulate(kernel), int(ranks))
