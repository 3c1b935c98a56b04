"""`compile_kernel`: a kernel that writes to output arguments, built for given arrays.

The public language guide shows the call and no more; what a compiled kernel can do is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nki.kernel import Kernel, simulate
from nki.launch import Launch

__all__ = ["CompiledKernel", "compile_kernel"]


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel that has been recorded and lowered for some shapes and types.

    Attributes:
        kernel: what runs.
        launch: the specialisation: its recording, its program, its findings.
        hyper: values of compile-time parameters.
    """

    kernel: Kernel
    launch: Launch
    hyper: Mapping[str, Any]

    def __call__(self, **arrays: Any) -> Any:
        """Run on arrays by name: inputs, and outputs that are written in place.

        Returns:
            What the kernel's function returns.
        """
        return self.kernel(**arrays, **self.hyper)


def compile_kernel(
    fn: Callable[..., Any],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    compile_opts: Any = None,
    **hyper: Any,
) -> CompiledKernel:
    """Build a kernel for the shapes and types of arrays.

    Args:
        fn: the kernel, decorated with `nki.jit` or a plain function.
        inputs: arrays by parameter name; their contents do not matter.
        outputs: arrays that the kernel writes to, likewise.
        compile_opts: accepted; the program is built by our own compiler, which takes its options
            from NEURON_CC_FLAGS.
        hyper: values of the other parameters.

    Raises:
        NkiError: the kernel breaks a rule.
    """
    del compile_opts
    kernel = simulate(fn)
    launch = kernel.prepared([((), {**inputs, **outputs, **hyper})])[0]
    launch.program  # noqa: B018 - lowers it
    return CompiledKernel(kernel, launch, dict(hyper))
