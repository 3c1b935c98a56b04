"""StableHLO, as text or as bytecode, to HLO.

The translation is XLA's own, from the package jaxlib, in a process of its own: that parser is C++
and takes files from anywhere, so whatever happens to it, the compiler goes on with an error.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from typing import Final

from neuronxcc.extras import install_command
from neuronxcc.frontends.hlo.errors import NOT_A_MODULE, HloError
from neuronxcc.frontends.stablehlo_worker import processor_seconds

BYTECODE: Final = b"ML\xefR"
#: How a module's text begins, comments and blank lines left out.
_TEXT_STARTS: Final = (b"module", b"builtin.module", b"func.func", b"#", b"!", b'"builtin.module"')
PATIENCE_SECONDS: Final = 600.0
_MOST_TEXT: Final = 2000  # characters of the parser's own message


def is_stablehlo(content: bytes) -> bool:
    """Return whether bytes look like MLIR: its bytecode, or text that begins as a module does."""
    if content.startswith(BYTECODE):
        return True
    for line in content[:65536].splitlines():
        text = line.strip()
        if text and not text.startswith(b"//"):
            return text.startswith(_TEXT_STARTS)
    return False


def to_hlo(content: bytes) -> bytes:
    """Translate a module.

    Args:
        content: Text, bytecode, or a portable artifact (`jax.export`, torch_xla).

    Returns:
        A serialised `HloModuleProto`.

    Raises:
        HloError: jaxlib is not installed, or it does not take the module.
    """
    if importlib.util.find_spec("jaxlib") is None:
        raise HloError(
            NOT_A_MODULE,
            "StableHLO is translated by XLA's own parser, in the package jaxlib, which is not "
            "installed",
            f"{install_command('stablehlo')}, or give an HloModuleProto",
        )
    try:
        done = subprocess.run(
            [sys.executable, "-m", "neuronxcc.frontends.stablehlo_worker"],
            input=content,
            capture_output=True,
            timeout=PATIENCE_SECONDS,
            check=False,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
    except subprocess.TimeoutExpired:
        raise _refused(f"no answer within {PATIENCE_SECONDS:.0f} s") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()[-_MOST_TEXT:]
        how = ended(done.returncode, len(content))
        raise _refused(f"{how}: {said}" if said else how)
    return done.stdout


def ended(code: int, size: int) -> str:
    """How the parser's process ended."""
    if code == -signal.SIGXCPU:
        return f"no answer within {processor_seconds(size)} s of processor time"
    return f"killed by signal {-code}" if code < 0 else "refused"


def _refused(text: str) -> HloError:
    return HloError(
        NOT_A_MODULE,
        f"the input is no StableHLO module that XLA's parser takes ({text})",
        "write it again with jax.export or torch_xla, for StableHLO 1.17 or older",
    )
