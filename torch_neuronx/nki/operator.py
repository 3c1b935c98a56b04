"""`nki_op`: custom operators of PyTorch that call kernels."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch._library.custom_ops import CustomOpDef
from torch._subclasses.functional_tensor import FunctionalTensorMode

from nki.errors import NkiError
from nki.kernel import Kernel, jit
from torch_neuronx._operator_bodies import BODIES

__all__ = ["nki_op", "wrap_nki"]


@overload
def nki_op(
    name: str, /, *, mutates_args: str | Iterable[str] = (), schema: str | None = None
) -> Callable[[Callable[..., Any]], CustomOpDef]: ...
@overload
def nki_op(
    name: str,
    fn: Callable[..., Any],
    /,
    *,
    mutates_args: str | Iterable[str] = (),
    schema: str | None = None,
) -> CustomOpDef: ...
def nki_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: str | Iterable[str] = (),
    schema: str | None = None,
) -> Any:
    """Register a function that calls kernels as a custom operator: ``@nki_op("lib::name")``.

    The operator runs on the CPU and on neuron devices. Its shape function is the function itself
    on fake tensors: kernels are recorded for shapes, without data. Compiled graphs, plans and
    estimates see the kernels and the operators of PyTorch inside of it, not the operator.

    Args:
        name: "namespace::name".
        fn: the function. Its parameters and result have type hints that `torch.library.custom_op`
            understands: tensors, numbers, strings, lists and optional ones of these.
        mutates_args: names of the tensors that it writes.
        schema: of the operator, if the hints cannot say it.

    Returns:
        The operator as `torch.library.custom_op` makes it, which is called like the function and
        has `register_autograd`, for operators that write nothing.

    Raises:
        NkiError: when called: it writes an argument that `mutates_args` does not name (NKI273).
    """
    if fn is None:
        return functools.partial(nki_op, name, mutates_args=mutates_args, schema=schema)
    if isinstance(fn, Kernel):
        fn = _function_of(fn)
    named = mutates_args if isinstance(mutates_args, str) else tuple(mutates_args)
    checked = _checked(name, fn, named)
    made = torch.library.custom_op(name, checked, mutates_args=named, schema=schema)
    made.register_fake(checked)
    body = fn

    def within_graph(mode: Any, _op: Any, _types: Any, args: Any, kwargs: Any) -> Any:
        with mode:
            return body(*args, **(kwargs or {}))

    made.register_torch_dispatch(FunctionalTensorMode, within_graph)
    BODIES[made._opoverload] = body  # noqa: SLF001 - PyTorch's own name for it
    operator: CustomOpDef = made
    return operator


def wrap_nki(kernel: Callable[..., Any]) -> Kernel:
    """Return a kernel that is called with tensors, which every kernel is: for code that asks."""
    return kernel if isinstance(kernel, Kernel) else jit(kernel)


def _function_of(kernel: Kernel) -> Callable[..., Any]:
    """A kernel as a function, whose hints are then those of the operator."""

    @functools.wraps(kernel.function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return kernel(*args, **kwargs)

    return call


def _checked(name: str, fn: Callable[..., Any], named: str | tuple[str, ...]) -> Callable[..., Any]:
    """The function, with a look at what it writes."""
    signature = _resolved(fn)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if named == "unknown":
            return fn(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        kept = [
            (key, value, value._version)  # noqa: SLF001 - PyTorch's own name for it
            for key, value in given.items()
            if key not in named and isinstance(value, torch.Tensor) and not value.is_inference()
        ]
        result = fn(*args, **kwargs)
        for key, value, version in kept:
            if value._version != version:  # noqa: SLF001
                raise NkiError(
                    "NKI273",
                    f"operator {name} writes its argument {key!r}",
                    f"declare it: mutates_args={{{key!r}}}",
                )
        return result

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _resolved(fn: Callable[..., Any]) -> inspect.Signature:
    """The function's signature, hints that are strings replaced by what they say there."""
    signature = inspect.signature(fn)
    hints = typing.get_type_hints(fn)
    parameters = [
        p.replace(annotation=hints.get(n, p.annotation)) for n, p in signature.parameters.items()
    ]
    returned = hints.get("return", signature.return_annotation)
    if returned is type(None):
        returned = None  # as it was written, and as PyTorch wants it
    return signature.replace(parameters=parameters, return_annotation=returned)
