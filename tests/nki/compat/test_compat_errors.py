"""What kernels of the first generation are refused for: every text, with the line of the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import neuronxcc.nki as nki
import neuronxcc.nki.compiler as ncc
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from nki.errors import NkiError, NkiIndexError, NkiTypeError
from tests.nki.compat.compat_tools import random


def sbuf(*shape: int, dtype: Any = np.float32) -> Any:
    return nl.zeros(shape, dtype=dtype)


def blocks() -> Any:
    return nl.zeros((2, nl.par_dim(8), 4), dtype=np.float32)


P = nl.arange(8)[:, None]
F = nl.arange(4)[None, :]
GENERAL = F <= P

CASES: list[tuple[str, str, Any]] = [
    # index expressions
    ("NKI260", r"an index expression of shape \(8, 1\) was indexed with 3", lambda a: P[3]),
    ("NKI260", r"shapes \(8, 1\) and \(5, 1\) do not broadcast",
     lambda a: P + nl.arange(5)[:, None]),
    ("NKI260", r"arange\(3, 3\) has no elements", lambda a: nl.arange(3, 3)),
    ("NKI260", r"indexed with 'x' of type str beside index expressions", lambda a: a[P, "x"]),
    ("NKI260", r"Index\[8, 4\]\(integers\) of a tensor of shape \(8, 4\) is not affine",
     lambda a: nl.load(a[(P * 3 + F) % 5, F])),
    ("NKI260", r"mixes partitions and free dimensions", lambda a: nl.exp(sbuf(8, 16)[P, P + F])),
    ("NKI260", r"partition 2 of a tensor of shape \(8, 4\) was indexed as 8 partitions",
     lambda a: nl.exp(sbuf(8, 4)[2 + 0 * P, F])),
    ("NKI260", r"a slice beside index expressions has no axis",
     lambda a: nl.load(a)[nl.arange(8), 0:2]),
    ("NKI260", r"iota was given 5.5", lambda a: nisa.iota(5.5, np.int32)),
    ("NKI260", r"iota was given Index\[8, 1\]\(integers\), which is not affine",
     lambda a: nisa.iota(P % 3, np.int32)),
    # conditions
    ("NKI261", r"a tile was used as a condition", lambda a: 1 if nl.load(a) else 2),
    ("NKI261", r"a mask was used as a condition", lambda a: 1 if P < 3 else 2),
    ("NKI261", r"an index expression was used as a condition", lambda a: 1 if P else 2),
    # masks
    ("NKI262", r"a mask of shape \(5, 1\) was given for a tile of shape \(8, 4\)",
     lambda a: nl.exp(nl.load(a), mask=nl.arange(5)[:, None] < 3)),
    ("NKI262", r"a mask was given as int", lambda a: nl.exp(nl.load(a), mask=3)),
    ("NKI262", r"a mask that cuts no box out of a tile of shape \(8, 4\) was used as its index",
     lambda a: nl.load(a)[GENERAL]),
    ("NKI262", r"max8 was given a mask that cuts no box",
     lambda a: nisa.max8(src=sbuf(8, 16), mask=nl.arange(16)[None, :] <= P)),
    ("NKI262", r"activation was given a mask that cuts no box",
     lambda a: nisa.activation(np.exp, nl.load(a), reduce_res=sbuf(8, 1), mask=GENERAL)),
    ("NKI262", r"select_reduce was given a mask that cuts no box",
     lambda a: nisa.select_reduce(
         dst=sbuf(8, 4), predicate=sbuf(8, 4, dtype=np.uint8), on_true=nl.load(a), on_false=0.0,
         reduce_cmd=nisa.reduce_cmd.reset_reduce, mask=GENERAL)),
    ("NKI262", r"tensor_reduce by bitwise_and was given a mask that cuts no box",
     lambda a: nisa.tensor_reduce(nl.bitwise_and, sbuf(8, 4, dtype=np.int32), [1], mask=GENERAL)),
    ("NKI262", r"a mean was given a mask that cuts no box",
     lambda a: nl.mean(nl.load(a), [1], mask=GENERAL)),
    ("NKI262", r"nc_matmul was given a mask .* for 4 and 4 columns",
     lambda a: nisa.nc_matmul(nl.load(a), nl.load(a), mask=nl.arange(5)[None, :] < 2)),
    ("NKI262", r"nc_matmul was given a mask .* for no box; ",
     lambda a: nisa.nc_matmul(nl.load(a), nl.load(a), mask=nl.mgrid[0:8, 0:4, 0:4].p % 2 == 0)),
    ("NKI262", r"nc_matmul was given a mask .* for no box of the result",
     lambda a: nisa.nc_matmul(nl.load(a), nl.load(a), mask=nl.mgrid[0:4, 0:4].p % 2 == 0)),
    ("NKI262", r"nc_transpose was given a mask for a tile of shape \(8, 2, 2\)",
     lambda a: nisa.nc_transpose(sbuf(8, 2, 2), mask=nl.arange(8)[:, None, None] < 3)),
    ("NKI262", r"affine_select was given the predicate",
     lambda a: nisa.affine_select((P < 3) & (F < 2), nl.load(a), 0.0)),
    ("NKI262", r"dma_copy from \(8, 4\) to \(4, 8\) was given a mask",
     lambda a: nisa.dma_copy(dst=sbuf(4, 8), src=a, mask=P < 3)),
    # block dimensions
    ("NKI264", r"with block dimensions \(2,\) was given to an instruction",
     lambda a: nl.exp(blocks())),
    ("NKI264", r"a part of several blocks of a tensor of shape \(2, 8, 4\)",
     lambda a: blocks()[0:2, 0:4]),
    ("NKI264", r"a block dimension of size 2 was indexed with Index\[8, 1\]",
     lambda a: blocks()[P]),
    ("NKI264", r"has 2 partition dimensions",
     lambda a: nl.ndarray((nl.par_dim(2), nl.par_dim(8)), dtype=np.float32)),
    # index tiles
    ("NKI265", r"two dimensions of a tensor of shape \(8, 4\) are indexed by tiles",
     lambda a: a[sbuf(8, 1, dtype=np.int32), sbuf(8, 1, dtype=np.int32)]),
    ("NKI265", r"8 index values were given beside expressions of shape \(4, 1\)",
     lambda a: a[sbuf(8, 1, dtype=np.int32), nl.arange(4)[:, None]]),
    ("NKI265", r"an index tile and an expression both depend on the first axis",
     lambda a: nl.load(a[sbuf(4, 1, dtype=np.int32), nl.arange(4)[:, None]])),
    ("NKI265", r"an on-chip tensor is indexed by a tile of shape \(8, 1\) in dimension 1",
     lambda a: nl.copy(sbuf(8, 4)[P, sbuf(8, 1, dtype=np.int32)])),
    ("NKI265", r"combined by multiply", lambda a: sbuf(8, 1, dtype=np.int32) * F),
    ("NKI265", r"moves a view that one moves already, or backwards",
     lambda a: nl.load(a[sbuf(8, 1, dtype=np.int32) + (F - 9), 0])),
    # tiles
    ("NKI266", r"a tile of shape \(8, 4\) does not broadcast to \(8, 3\)",
     lambda a: nl.broadcast_to(nl.load(a), shape=(8, 3))),
    ("NKI266", r"does not broadcast to \(8, 4\)", lambda a: nl.add(nl.load(a), sbuf(8, 3))),
    ("NKI266", r"expected to have \(4, 8\)", lambda a: a.assert_shape((4, 8))),
    ("NKI266", r"a str was assigned to a tile of shape \(8, 4\)",
     lambda a: sbuf(8, 4).__setitem__(slice(None), "x")),
    ("NKI266", r"activation data is a float", lambda a: nl.exp(2.0)),
    ("NKI266", r"nl.load was given a int", lambda a: nl.load(3)),
    ("NKI266", r"a tile of shape \(8, 4\) was stored to a tensor of shape \(4, 4\)",
     lambda a: nl.store(nl.ndarray((4, 4), np.float32, buffer=nl.hbm), nl.load(a))),
    ("NKI266", r"tensor_reduce over the axes 0 of a tile of shape \(8, 4\)",
     lambda a: nl.sum(nl.load(a), axis=0)),
    # writes
    ("NKI267", r"a tensor of shape \(8, 4\) in HBM was assigned to",
     lambda a: a.__setitem__(slice(None), 0.0)),
    ("NKI267", r"nl.store was given <float32\[8, 4\] in sbuf> as its destination",
     lambda a: nl.store(sbuf(8, 4), nl.load(a))),
    ("NKI267", r"partitions of a tensor in PSUM from one where no engine starts are copied",
     lambda a: nl.store(a[0:3], nisa.nc_matmul(sbuf(8, 8), nl.load(a))[1:4])),
    # arguments
    ("NKI268", r"nisa.activation of the first generation was given colour, size",
     lambda a: nisa.activation(np.exp, nl.load(a), size=1, colour=2)),
    ("NKI268", r"nl.add was given float and int", lambda a: nl.add(2.0, 1)),
    ("NKI268", r"perf_mode='quick'",
     lambda a: nisa.nc_matmul(nl.load(a), nl.load(a), perf_mode="quick")),
    ("NKI268", r"dst_rmw_op=multiply",
     lambda a: nisa.dma_copy(dst=a, src=nl.load(a), dst_rmw_op=np.multiply)),
    ("NKI268", r"nc_stream_shuffle was given dtype int8 for a tile of float32",
     lambda a: nisa.nc_stream_shuffle(sbuf(8, 4), sbuf(8, 4), [0] * 32, dtype=np.int8)),
    ("NKI268", r"nl.loop_reduce was called where its destination cannot be found",
     lambda a: nl.loop_reduce(nl.load(a), np.add, [0])),
    # grids
    ("NKI269", r"axis 1 of a launch grid of 0 axes was asked for", lambda a: nl.program_id(1)),
    ("NKI269", r"nl.all_reduce combines tiles of several programs",
     lambda a: nl.all_reduce(a, np.add, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("code", "text", "use"), CASES, ids=[f"{c}-{t[:30]}" for c, t, _ in CASES])
def test_refusals_say_what_where_and_what_to_do(code: str, text: str, use: Any) -> None:
    @nki.jit
    def kernel(a: Any) -> None:
        use(a)

    with pytest.raises(NkiError, match=rf"(?s){text}.*{__file__}:\d+; .*\[{code}\]$") as caught:
        kernel(random(8, 4))
    assert caught.value.code == code


def test_functions_need_a_kernel() -> None:
    with pytest.raises(NkiError, match=r"outside of a kernel of the first generation.*NKI263"):
        nl.zeros((8, 4), dtype=np.float32)


@pytest.mark.parametrize("grid", [0, (2, -1), "two", (None,)])
def test_grids_have_programs(grid: Any) -> None:
    with pytest.raises(NkiError, match=r"kernel\[.*give a number of at least 1.*NKI269"):
        nki.jit(kernel)[grid]


def kernel(a: Any) -> Any:
    return nl.load(a)


def test_results_of_a_grid_are_shared() -> None:
    with pytest.raises(NkiError, match=r"returns a tensor of shape \(8, 4\) in sbuf.*NKI269"):
        nki.jit(kernel)[2](random(8, 4))

    @nki.jit
    def differs(a: Any) -> Any:
        return nl.ndarray((1 + nl.program_id(0), 4), np.float32, buffer=nl.shared_hbm)

    with pytest.raises(NkiError, match=r"program \(1,\) creates a shared tensor float32\[2, 4\]"):
        differs[2](random(8, 4))


def test_options_of_decorators() -> None:
    with pytest.raises(NkiError, match=r"mode='fast'.*use one of auto, simulation.*NKI268"):
        nki.jit(kernel, mode="fast")
    with pytest.raises(ValueError, match="trn9"):
        nki.jit(kernel, platform_target="trn9")
    measured = nki.benchmark(kernel, warmup=0, iters=1)
    measured(random(8, 4))
    with pytest.raises(NkiError, match=r"percentile 101 was asked for.*NKI268"):
        measured.benchmark_result.nc_latency.get_latency_percentile(101)


def test_classes_of_errors() -> None:
    with pytest.raises(NkiTypeError):
        nl.arange(4)[0]
    with pytest.raises(NkiIndexError):
        nl.arange(0)


def test_out_of_bounds_is_found_where_it_is_used() -> None:
    @nki.jit
    def reads(a: Any) -> None:
        part = a[P + 3, F]
        nl.load(part, mask=P < 5)
        nl.load(part)

    with pytest.raises(
        IndexError, match=r"from 3 to 10 is out of bounds for dimension 0 of size 8"
    ):
        reads(random(8, 4))


def test_instructions_are_checked_as_today() -> None:
    @nki.jit
    def wide(a: Any) -> None:
        nisa.bn_stats(nl.zeros((8, 513), dtype=np.float32))[0, 0] + 1

    with pytest.raises(NkiError, match=r"at most 512.*NKI104") as caught:
        wide(random(8, 4))
    assert caught.value.where[0] == __file__
    assert ncc.multi_buffer().region is nl.sbuf
