"""StableHLO in the forms that front ends write, and what is said of others."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from neuronxcc.frontends.hlo import HloError, import_hlo
from neuronxcc.frontends.stablehlo import ended, is_stablehlo, to_hlo
from neuronxcc.ir.reference import evaluate

X = np.arange(4, dtype=np.float32)
_jax: Any = import_module("jaxlib._jax")  # which says nothing of its types


def text(body: str, more: str = "", type_: str = "tensor<4xf32>", attributes: str = "") -> bytes:
    """A module of a function that takes %a and returns %0."""
    return (
        f"// a comment\nmodule @m {attributes} {{\n"
        f"func.func public @main(%a: {type_}) -> {type_} {{\n{body}\nreturn %0 : {type_}\n}}\n"
        f"{more}\n}}"
    ).encode()


COMPOSITE = text(
    '%0 = stablehlo.composite "my.twice" %a {decomposition = @twice, version = 1 : i32, '
    "composite_attributes = {k = 3 : i64}} : (tensor<4xf32>) -> tensor<4xf32>",
    "func.func private @twice(%b: tensor<4xf32>) -> tensor<4xf32> {\n"
    "%1 = stablehlo.add %b, %b : tensor<4xf32>\nreturn %1 : tensor<4xf32>\n}",
)
TORCH_XLA = text(
    "%0 = stablehlo.add %a, %a : tensor<4xf32>",
    attributes="attributes {mhlo.cross_program_prefetches = [], mhlo.is_dynamic = false}",
)
SHARDY = text(
    '%1 = sdy.sharding_constraint %a <@mesh, [{"x"}]> : tensor<4xf32>\n'
    "%0 = stablehlo.add %1, %a : tensor<4xf32>",
    'sdy.mesh @mesh = <["x"=2]>',
)


def _portable(old: str) -> bytes:
    module: Any = jax.jit(lambda x: x + x).lower(X).compiler_ir("stablehlo")
    content: bytes = _jax.mlir.serialize_portable_artifact(str(module), old)
    return content


def _exported() -> bytes:
    made = export.export(jax.jit(lambda x: jnp.add(x, x)))(X)
    return bytes(made.mlir_module_serialized)


FORMS: dict[str, bytes] = {
    "a composite is its decomposition": COMPOSITE,
    "torch_xla": TORCH_XLA,
    "Shardy's annotations are passed over": SHARDY,
    "mhlo": text("%0 = mhlo.add %a, %a : tensor<4xf32>"),
    "vhlo of an old version": _portable("1.0.0"),
    "jax.export": _exported(),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    assert is_stablehlo(FORMS[name])
    (got,) = evaluate(import_hlo(to_hlo(FORMS[name])).graph, [X])
    np.testing.assert_array_equal(got, X + X)


def test_sizes_that_nobody_knows() -> None:
    content = text("%0 = stablehlo.add %a, %a : tensor<?xf32>", type_="tensor<?xf32>")
    with pytest.raises(HloError) as caught:
        import_hlo(to_hlo(content))
    assert caught.value.code == "NCC_EMOD025"
    assert "has shape 'f32[?]'" in str(caught.value)


def test_another_dialect_is_named() -> None:
    content = text("%0 = linalg.copy ins(%a) outs(%a) -> tensor<4xf32>")
    with pytest.raises(HloError, match=r"NCC_EHLO001.*StableHLO") as caught:
        to_hlo(content)
    assert "Dialect `linalg' not found" in str(caught.value)


def test_a_parser_that_never_ends_is_stopped() -> None:
    """Fuzzing found bytecode that XLA's reader did not come back from within minutes."""
    program = (
        "import resource; from neuronxcc.frontends.stablehlo_worker import limit\n"
        "limit(resource.RLIMIT_CORE, 0); limit(resource.RLIMIT_CPU, 1)\n"
        "while True: pass"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=100)
    assert done.returncode == -signal.SIGXCPU
    assert ended(done.returncode, 3 << 20) == "no answer within 23 s of processor time"
    assert ended(-signal.SIGKILL, 0) == "killed by signal 9"
    assert ended(1, 0) == "refused"
