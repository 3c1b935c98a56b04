"""Translates one StableHLO module: standard input to standard output. See `stablehlo`."""

from __future__ import annotations

import resource
import sys
from importlib import import_module
from typing import Any

# Of address space: a module can ask for constants of any size. XLA itself needs about 2 GiB, and
# a file's literals are several times as large as text, parsed and translated.
_MOST_BYTES, _MOST_RATIO = 8 << 30, 16


def processor_seconds(size: int) -> int:
    """How long a file of so many bytes may take: damaged bytecode can keep XLA's reader forever."""
    return 20 + (size >> 20)


def limit(what: int, most: int) -> None:
    """Limit a resource of this process, unless it is limited further already."""
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def main() -> int:
    """Translate; returns the exit code."""
    content = sys.stdin.buffer.read()
    limit(resource.RLIMIT_AS, _MOST_BYTES + _MOST_RATIO * len(content))
    limit(resource.RLIMIT_CPU, processor_seconds(len(content)))
    limit(resource.RLIMIT_CORE, 0)  # beyond either the process ends, without a file of its memory
    _jax: Any = import_module("jaxlib._jax")  # after the limit; it has no types

    try:
        text: str | bytes = content if content.startswith(b"ML\xefR") else content.decode()
        computation = _jax.mlir.mlir_module_to_xla_computation(
            text, use_tuple_args=False, return_tuple=False
        )
    except (_jax.JaxRuntimeError, RuntimeError, ValueError) as error:
        sys.stderr.write(str(error))
        return 1
    sys.stdout.buffer.write(computation.as_serialized_hlo_module_proto())
    return 0


if __name__ == "__main__":
    sys.exit(main())
