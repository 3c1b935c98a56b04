"""Calls from a short stack.

PyTorch formats the Python stack in every `torch.manual_seed` and for every node that it traces.
Under pytest the stack is some 60 frames deep, and that took half the time of the operator tests.
"""

import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def shallow(function: Callable[P, R]) -> Callable[P, R]:
    """The function, run by a new thread while the caller waits; it raises what that raised."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        results: list[R] = []
        errors: list[BaseException] = []

        def body() -> None:
            try:
                results.append(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
                errors.append(error)

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        for error in errors:
            raise error
        return results[0]

    return run
