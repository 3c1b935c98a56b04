"""Right calls of every operator, with arguments made from its schema, on the device as on the CPU.

`python -m tests.fuzz.operator_values 1 20` makes 20 calls of each. PyTorch's table of samples has
no sample of several hundred overloads (windows, factories, scalars on the left, ...); a schema says
what any takes. Most invented calls are refused by the CPU; where it accepts one, type, shape,
strides and values are compared, of results and of what was written to. Some of the CPU's kernels
trust their caller and end the process: calls are made in children (`operators.run`).
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.fuzz.operators import (
    Call,
    Finding,
    invent,
    materialise,
    operator,
    placed,
    registered,
    run,
)

_MOST = 100_000  # elements of a result
_DIFFERENT = 3  # how a child ends that found something

#: Parts of names of operators that are not called, and why.
NOT_CALLED = {
    "empty": "nothing is written", "_efficientzerotensor": "it has no memory",
    "_make_dep_token": "nothing is written",
    "resize": "what it adds is not written", "_new_": "of tensors that functorch made",
    "set_": "it takes storages", "set.": "it takes storages", "storage": "it takes storages",
    "_nested": "it makes no plain tensor", "sparse": "it makes no plain tensor",
    "_coalesce": "it takes sparse tensors", "mkldnn": "its layout is the CPU's",
    "fbgemm": "its layout is the CPU's", "_dyn_quant": "its layout is the CPU's",
    "_cpu": "its name says so", "cuda": "its name says so",
    "cudnn": "its name says so", "miopen": "its name says so", "mps": "its name says so",
    "from_file": "it opens a file", "_print": "it prints", "record_stream": "it takes a stream",
    "_test_": "it is PyTorch's own test", "_autocast_to": "it asks for the device",
    "get_device": "it asks for the device", "_shape_as_tensor": "it is on the CPU by its promise",
    "choose_qparams": "it is on the CPU by its promise", "is_pinned": "it asks for the device",
    "_philox": "it takes a state of the CPU's",
    "fused_moving_avg": "it writes to observers that tests of theirs make",
    "_fw_primal": "it takes a tangent", "_make_dual": "it takes a tangent",
    "sobol": "its state is a table of integers that only its module makes",
    "as_strided": "it shows memory, of which nothing was written",
    "pin_memory": "it takes memory of the host", "_add_batch_dim": "it is vmap's own",
    "_neg_view": "it is a mark, which not every type has",
    "randint_like.Tensor": "its limit is on the host, as for CUDA",
    "_packed_sequence": "its lengths are on the host, as for CUDA",
    "_pack_padded": "its lengths are on the host, as for CUDA",
    "_foreach_addcmul.Tensor": "its scalars are on the host, as for CUDA",
    "_foreach_addcmul_.Tensor": "its scalars are on the host, as for CUDA",
    "_foreach_addcdiv.Tensor": "its scalars are on the host, as for CUDA",
    "_foreach_addcdiv_.Tensor": "its scalars are on the host, as for CUDA",
    "_fused_sgd": "the CPU's kernel does not compare sizes",
    "embedding_bag": "what it keeps for the gradient has the shapes of PyTorch's fake kernels",
    "_pad_circular": "it leaves unwritten what it pads on one side and cuts on the other",
    "block_diag.out": "of no tensors it is on the CPU",
}  # fmt: skip
#: Operators whose values are not compared, only types and shapes, and why.
NOT_COMPARED = {
    "_euclidean_dist": "it is the difference of nearly equal products",
    "lstsq": "a matrix without full rank has many solutions",
    "geqrf": "signs are LAPACK's choice", "svd": "signs are LAPACK's choice",
    "qr": "signs are LAPACK's choice", "eig": "signs are LAPACK's choice",
    "_ctc_loss": "nothing is written behind the end of an example",
    "native_layer_norm": "its statistics are float32, as CUDA's",
}  # fmt: skip
#: Operators whose types are not compared either, and why.
OTHER_TYPES = {"native_layer_norm": "its statistics are float32, as CUDA's"}
#: Beside private operators and gradients: operators that the CPU calls with whatever it is given,
#: and the device after a check (docs/dispatch.md).
CHECKED = (
    "batch_norm_update_stats", "native_batch_norm", "grid_sampler", "rrelu_with_noise",
)  # fmt: skip
#: Operators whose strides are not compared, and why.
OTHER_STRIDES = {"nonzero": "they are CUDA's", "svd": "they are those of PyTorch's rule"}


def targets() -> list[str]:
    """The overloads that are called, "aten::name.overload"."""
    return [target for target in registered("aten") if not _named(NOT_CALLED, target)]


def _named(table: dict[str, str], target: str) -> bool:
    return any(part in target.removeprefix("aten::") for part in table)


def calls(seed: int, per: int, only: str = "") -> Iterator[Call]:
    """`per` calls of each operator, the same for a seed."""
    for target in targets():
        if only in target:
            rng = random.Random(f"{target} {seed}")  # noqa: S311 - no secret
            for _ in range(per):
                yield invent(target, rng)


def _distinct(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1 + count)
    return torch.randn(count, generator=generator, dtype=torch.float64)


def _placed(value: Any, device: str) -> Any:
    made = materialise(value, lambda spec: placed(spec, device, _distinct))
    return torch.device(device) if isinstance(made, torch.device) else made


def _call(call: Call, device: str) -> tuple[Any, Any]:
    """Results, and the arguments afterwards."""
    args = [_placed(a, device) for a in call.args]
    kwargs = {name: _placed(value, device) for name, value in call.kwargs}
    if kwargs.get("pin_memory"):
        kwargs["pin_memory"] = False  # of the host's memory alone
    torch.manual_seed(0)
    return operator(call.target)(*args, **kwargs), (args, kwargs)


def difference(call: Call, expected: Any, got: Any) -> str:
    """What is different, "" if nothing is."""
    pairs = [pytree.tree_leaves(x) for x in (expected, got)]
    if len(pairs[0]) != len(pairs[1]):
        return f"{len(pairs[1])} results for {len(pairs[0])}"
    words = [_different(call, x, y) for x, y in zip(*pairs, strict=True)]
    return next(filter(None, words), "")


def _different(call: Call, x: Any, y: Any) -> str:
    drawn = torch.Tag.nondeterministic_seeded in operator(call.target).tags  # type: ignore[attr-defined]
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        same = type(x) is type(y) and (isinstance(x, torch.device) or x == y)
        return "" if same or drawn or isinstance(x, float) else f"{y!r} for {x!r}"
    if x.layout is not torch.strided or x.is_quantized:
        return ""
    types = x.dtype != y.dtype and not _named(OTHER_TYPES, call.target)
    if types or x.shape != y.shape:
        return f"{y.dtype}{list(y.shape)} for {x.dtype}{list(x.shape)}"
    steps = [[s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] for t in (x, y)]
    if x.numel() and steps[0] != steps[1] and not _named(OTHER_STRIDES, call.target):
        return f"strides {steps[1]} for {steps[0]}"
    bits = x.dtype.is_floating_point and x.itemsize == 1  # nothing compares these
    if drawn or bits or _named(NOT_COMPARED, call.target) or _close(x, y.cpu()):
        return ""
    return f"{y} for {x}"


def _close(x: Tensor, y: Tensor) -> bool:
    """Within some hundred roundings of the largest element: invented matrices are no easy ones."""
    if not x.numel():
        return True
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        return torch.equal(x, y)
    wide = torch.complex128 if x.dtype.is_complex else torch.float64
    x, y, eps = x.to(wide), y.to(wide), torch.finfo(x.dtype).eps
    finite = x.abs()[x.isfinite()]
    most = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(y, x, rtol=0.0, atol=256 * eps * most, equal_nan=True)


def compare(call: Call, compared: Tensor) -> None:
    """Call it on the CPU and then on the device; ends the process where they differ.

    Args:
        call: the call
        compared: shared, how many calls were compared
    """
    expected = _call(call, "cpu")
    if any(isinstance(x, Tensor) and x.numel() > _MOST for x in pytree.tree_leaves(expected)):
        return
    try:
        said = difference(call, expected, _call(call, "neuron"))
    except Exception as error:  # noqa: BLE001 - whatever the device raises where the CPU does not
        if _is_checked(call, error):
            return
        said = f"{type(error).__name__}: {error}"
    if said:
        print(f"{call}: {said}"[:700].replace("\n", " "), flush=True)
        os._exit(_DIFFERENT)
    compared[0] += 1


def _is_checked(call: Call, error: Exception) -> bool:
    """Whether the device refuses arguments that the CPU's kernel does not compare."""
    name = call.target.removeprefix("aten::").partition(".")[0]
    trusts = name.startswith(("_", *CHECKED)) or name.endswith("_backward")
    words = (
        "aten::", name, "must be like its result", "setStorage", "Negative strides",
        "is out of bounds",
    )  # fmt: skip
    ours = any(word in str(error) for word in words)
    return (trusts and ours) or "negative dimension" in str(error)


def search(seed: int, per: int, only: str = "") -> tuple[list[Finding], int]:
    """What was found in `per` calls of each operator, and how many calls were compared."""
    compared = torch.zeros(1, dtype=torch.int64).share_memory_()
    made = list(calls(seed, per, only))
    ended = run(made, lambda call: compare(call, compared), {})
    # What ends otherwise says nothing: a kernel of the CPU's may have written anywhere before.
    return [f for f in ended if f.how == f"exit {_DIFFERENT}"], int(compared[0])


def main() -> int:
    """Parse the command line and search."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.operator_values")
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("per", type=int, nargs="?", default=100)
    parser.add_argument("--only", default="", help="part of the operators' names")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found, compared = search(given.seed, given.per, given.only)
    print(f"{compared} calls compared, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
