"""Modules written as HLO text, for XLA's own parser, and what XLA on the CPU makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import jax
import ml_dtypes
import numpy as np
import torch
from jaxlib import xla_client

from neuronxcc.compiler import compile_graph
from neuronxcc.frontends.hlo import Imported
from neuronxcc.options import parse
from torch_neuronx.program.executable import Executable

# jaxlib says nothing of the types of these.
_hlo: Any = import_module("jaxlib._hlo")
_jax: Any = import_module("jaxlib._jax")
_NAMES = {
    np.dtype(np.float32): "f32", np.dtype(np.int32): "s32", np.dtype(np.uint32): "u32",
    np.dtype(np.bool_): "pred", np.dtype(np.complex64): "c64", np.dtype(np.int64): "s64",
    np.dtype(np.uint64): "u64", np.dtype(np.int16): "s16", np.dtype(np.uint8): "u8",
    np.dtype(np.int8): "s8", np.dtype(np.float16): "f16", np.dtype(ml_dtypes.bfloat16): "bf16",
    np.dtype(ml_dtypes.float8_e5m2): "f8e5m2", np.dtype(ml_dtypes.float8_e4m3fn): "f8e4m3fn",
}  # fmt: skip

#: Computations that bodies may call.
CALLED = """
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
max { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] maximum(a, b) }
ge { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=GE }
lt { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT }
double { a = f32[3,4] parameter(0)
  ROOT c = f32[3,4] add(a, a) }
halve { a = f32[3,4] parameter(0)
  h = f32[] constant(0.5)
  w = f32[3,4] broadcast(h), dimensions={}
  ROOT c = f32[3,4] multiply(a, w) }
few { s = (s32[], f32[3,4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT }
step { s = (s32[], f32[3,4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[3,4] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[3,4] sine(x)
  ROOT t = (s32[], f32[3,4]) tuple(j, y) }
"""


def type_text(array: np.ndarray) -> str:
    """The type of an array as HLO has it."""
    return f"{_NAMES[array.dtype]}[{','.join(map(str, array.shape))}]"


def text_of(body: str, args: Sequence[np.ndarray], called: str = CALLED) -> str:
    """A module of a body, whose last line is the root; the arguments are p0, p1, ..."""
    lines = [f"  p{i} = {type_text(a)} parameter({i})" for i, a in enumerate(args)]
    *rest, last = [line.strip() for line in body.strip().splitlines()]
    lines += [f"  {line}" for line in rest] + [f"  ROOT {last}"]
    return "HloModule test\n" + called + "ENTRY main {\n" + "\n".join(lines) + "\n}\n"


def proto_of(text: str) -> bytes:
    """A module in protobuf's form, as XLA writes it."""
    content: bytes = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    return content


def by_xla(content: bytes, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results that XLA computes on the CPU."""
    device: Any = jax.devices("cpu")[0]
    module = _jax.mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(content))
    devices = xla_client.DeviceList((device,))
    loaded = device.client.compile_and_load(module, devices, xla_client.CompileOptions())
    with jax.enable_x64(new_val=True):
        results = loaded.execute_sharded([jax.device_put(a, device) for a in args])
    return [np.asarray(part[0]) for part in results.disassemble_into_single_device_arrays()]


def natively(imported: Imported, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of the compiled program."""
    program = compile_graph(imported.graph, parse("", environ={}))
    results = Executable(program, "cpu")([to_torch(np.array(a)) for a in args])
    return [to_numpy(r, t.dtype.numpy) for r, t in zip(results, _types(imported), strict=True)]


def _types(imported: Imported) -> list[Any]:
    return [node.type for node in imported.graph.results]


_BITS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_TORCH = {"bfloat16": torch.bfloat16, "float8_e5m2": torch.float8_e5m2,
          "float8_e4m3fn": torch.float8_e4m3fn}  # fmt: skip


def to_torch(array: np.ndarray) -> torch.Tensor:
    """A tensor of the same elements."""
    if array.dtype.name in _TORCH:
        bits = array.view(_BITS[array.dtype.itemsize])
        return torch.from_numpy(bits).view(_TORCH[array.dtype.name])
    return torch.from_numpy(array)


def to_numpy(tensor: torch.Tensor, dtype: np.dtype[Any]) -> np.ndarray:
    """An array of the same elements."""
    if dtype.name in _TORCH:
        bits = tensor.view(getattr(torch, np.dtype(_BITS[dtype.itemsize]).name))
        return bits.numpy().view(dtype)
    return tensor.numpy()
