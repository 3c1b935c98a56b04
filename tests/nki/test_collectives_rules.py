"""What collectives refuse, with the text of every refusal, and the documented signatures."""

# ruff: noqa: E501 (a table of error texts)
from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import nki
import nki.collectives as ncc
import nki.language as nl
from nki import errors
from nki.collectives import ReplicaGroup, spmd
from nki.collectives.rows import ROWS
from nki.errors import NkiError, NkiTypeError
from nki.isa.spec import REQUIRED

# The documented parameters of NKI 0.6 in order, "name" where it is required, "name=" where not;
# those that only an earlier version has are by name alone.
SIGNATURES = """
all_reduce: srcs dsts replica_group op priority= name=
all_gather: srcs dsts replica_group collective_dim priority= name=
all_gather_v: srcs dsts replica_group metadata_tensor recv_counts_known= has_rdispls= priority= name=
reduce_scatter: srcs dsts replica_group collective_dim op priority= name=
all_to_all: srcs dsts replica_group collective_dim priority= name=
all_to_all_v: srcs dsts replica_group metadata_tensor recv_counts_known= has_rdispls= priority= name=
collective_permute: srcs dsts source_target_pairs priority= name=
collective_permute_implicit: srcs_by_channel dsts_by_channel replica_group channel_ids= priority= name=
collective_permute_implicit_reduce: srcs0_by_channel srcs1_by_channel dsts_by_channel replica_group op channel_ids= priority= name=
collective_permute_implicit_current_processing_rank_id: iteration_id replica_group channel_id= name=
rank_id: name=
"""
GROUP = ReplicaGroup([[0, 1]])


pytestmark = pytest.mark.usefixtures("reference_executor")


def test_the_documented_signatures() -> None:
    for line in SIGNATURES.strip().splitlines():
        name, _, parameters = line.partition(":")
        known = inspect.signature(getattr(ncc, name)).parameters.values()
        found = [
            p.name + ("" if p.default is inspect.Parameter.empty else "=")
            for p in known
            if p.kind is not inspect.Parameter.KEYWORD_ONLY
        ]
        assert found == parameters.split()
        assert getattr(ncc, name).__doc__
    assert len(SIGNATURES.strip().splitlines()) == 11


def test_defaults() -> None:
    for row in ROWS.values():
        defaults = {p.name: p.default for p in row.parameters if p.default is not REQUIRED}
        assert defaults.pop("priority") is None
        assert defaults.pop("name") is None
        assert set(defaults.items()) <= {
            ("channel_ids", (0,)),
            ("recv_counts_known", False),
            ("has_rdispls", False),
        }


def t(*shape: int, dtype: Any = nl.float32, buffer: Any = nl.private_hbm) -> Any:
    return nl.zeros(shape, dtype, buffer)


def s(*shape: int) -> Any:
    return t(*shape, buffer=nl.sbuf)


def meta(*shape: int, dtype: Any = nl.uint32) -> Any:
    return t(*shape, dtype=dtype)


def reduce(srcs: Any, dsts: Any, **more: Any) -> None:
    ncc.all_reduce(srcs, dsts, more.pop("group", GROUP), more.pop("op", nl.add), **more)


def ring(srcs: Any, dsts: Any, **more: Any) -> None:
    ncc.collective_permute_implicit(srcs, dsts, GROUP, **more)


Case = tuple[Callable[[], Any], str, str]
CASES: list[Case] = [
    # lists
    (lambda: reduce([t(2)], [t(2), t(2)]), "NKI312",
     r"all_reduce has srcs \['float32\[2\]'\], dsts \['float32\[2\]', 'float32\[2\]'\]; .*same length"),
    (lambda: reduce([t(2)], [t(2, dtype=nl.int32)]), "NKI312", "same data types one by one"),
    (lambda: reduce([], []), "NKI102", "all_reduce srcs must be a list of tensors, got list"),
    (lambda: reduce(t(2), [t(2)]), "NKI102", "all_reduce srcs must be a list of tensors, got NkiTensor"),
    (lambda: ncc.collective_permute([t(2), t(2)], [t(2), t(2)], [(0, 1)]), "NKI312",
     "collective_permute srcs has 2 tensors; .*; give one tensor, and call it several times"),
    (lambda: ncc.all_to_all_v([t(2), t(2)], [t(2)], GROUP, meta(3, 2)), "NKI312", "all_to_all_v srcs has 2"),
    (lambda: ring([t(2)], [[t(2)]]), "NKI312",
     r"srcs_by_channel is not one list with one tensor for each channel; .*; write \[\[tensor"),
    (lambda: ring([[t(2)]], [[t(2), t(2)]]), "NKI312", "dsts_by_channel is not one list"),
    # memories
    (lambda: reduce([t(2, 2)], [s(2, 2)]), "NKI313", "all_reduce mixes tensors in HBM and in SBUF; .*dma_copy"),
    (lambda: reduce([s(2, 2), s(2, 2)], [s(2, 2), s(2, 2)]), "NKI313",
     "all_reduce has 2 tensors in SBUF in one list; .*once for each"),
    (lambda: reduce([nl.zeros((2, 2), nl.float32, nl.psum)], [t(2, 2)]), "NKI109", r"all_reduce srcs\[0\] is in psum"),
    (lambda: ncc.all_to_all([s(2, 2)], [s(2, 2)], GROUP, 0), "NKI109", r"all_to_all srcs\[0\] is in sbuf"),
    (lambda: ncc.collective_permute([s(2, 2)], [s(2, 2)], [(0, 1)]), "NKI109", "is in sbuf"),
    (lambda: ncc.all_gather_v([s(2, 2)], [s(4, 2)], GROUP, meta(3, 2)), "NKI109", "is in sbuf"),
    # types
    (lambda: reduce([t(2, dtype=nl.bool_)], [t(2, dtype=nl.bool_)]), "NKI107", "has data type bool_"),
    (lambda: reduce([t(2)], [t(2)], op=nl.multiply), "NKI116", "all_reduce op cannot be multiply; .*use one of nl.add"),
    (lambda: ncc.all_to_all_v([t(2)], [t(2)], GROUP, meta(3, 2, dtype=nl.int32)), "NKI107", "data type int32"),
    # shapes
    (lambda: reduce([t(2, 3)], [t(3, 2)]), "NKI314",
     r"all_reduce srcs\[0\] has shape \(2, 3\) and its destination \(3, 2\); .*same shape"),
    (lambda: ncc.all_gather([t(2, 3)], [t(2, 6)], GROUP, 0), "NKI314", r"destination \(2, 6\).*sources of all ranks"),
    (lambda: ncc.reduce_scatter([t(3, 2)], [t(1, 2)], GROUP, 0, nl.add), "NKI314", "destinations of all ranks"),
    (lambda: ncc.all_to_all([t(3, 2)], [t(3, 2)], GROUP, 0), "NKI314",
     r"all_to_all splits a tensor of shape \(3, 2\) among 2 ranks; .*multiple"),
    (lambda: ring([[t(2)]], [[t(3)]]), "NKI314", r"srcs_by_channel\[0\] has shape \(2,\)"),
    (lambda: ncc.all_gather_v([t(2)], [t(3)], GROUP, meta(3, 2)), "NKI314",
     "all_gather_v divides a destination of 3 elements among 2 ranks"),
    # dimensions
    (lambda: ncc.all_gather([t(2, 3)], [t(2, 6)], GROUP, 1), "NKI315",
     "all_gather collective_dim is 1 for tensors in private_hbm; .*; only 0 is supported there"),
    (lambda: ncc.reduce_scatter([s(2, 4)], [s(2, 2)], GROUP, 1, nl.add), "NKI315", "collective_dim is 1 for tensors in sbuf"),
    (lambda: ncc.all_to_all([t(2, 2)], [t(2, 2)], GROUP, 1), "NKI315", "only 0"),
    (lambda: reduce([s(2, 2, 2)], [s(2, 2, 2)]), "NKI315",
     r"all_reduce has a tensor of shape \(2, 2, 2\) in SBUF; .*one free dimension"),
    # channels
    (lambda: ring([[t(2)], [t(2)]], [[t(2)], [t(2)]]), "NKI316",
     "has 1 channel_ids and tensors for 2 channels; .*at most 4 channels"),
    (lambda: ring([[t(2)]] * 5, [[t(2)]] * 5, channel_ids=range(5)), "NKI316", "has 5 channel_ids"),
    (lambda: ring([[t(2)]], [[t(2)]], channel_ids=[1]), "NKI316", r"channel_ids are \[1\]; .*like \[0, 1\]"),
    (lambda: ncc.collective_permute_implicit_current_processing_rank_id(0, GROUP, 4), "NKI316",
     "channel_id is 4; .*channels are 0 to 3"),
    (lambda: ncc.collective_permute_implicit_current_processing_rank_id(
        0, GROUP, 2, num_channels=2), "NKI316", "channel_id is 2; .*channels are 0 to 1"),
    # groups
    (lambda: reduce([t(2)], [t(2)], group=3), "NKI310", "3 is no list of lists of ranks"),
    (lambda: reduce([t(2)], [t(2)], group=[[0, 2]]), "NKI311",
     r"all_reduce names rank 2, and the kernel runs on 2; .*ranks=3"),
    (lambda: reduce([t(2)], [t(2)], group=[[1]]), "NKI311",
     "all_reduce is called on rank 0, which is in no list of its replica group"),
    (lambda: ncc.collective_permute([t(2)], [t(2)], [(0, 1), (0, 2)]), "NKI317",
     r"source_target_pairs \[\(0, 1\), \(0, 2\)\]; .*at most once"),
    (lambda: ncc.collective_permute([t(2)], [t(2)], 3), "NKI317", "source_target_pairs 3"),
    (lambda: ncc.collective_permute([t(2)], [t(2)], [(0, 7)]), "NKI311", "collective_permute names rank 7"),
    # metadata
    (lambda: ncc.all_gather_v([t(2)], [t(2)], GROUP, meta(2, 2)), "NKI318",
     r"metadata_tensor has shape \(2, 2\), and this call needs \(3, 2\); .*send_count, send_displ"),
    (lambda: ncc.all_to_all_v([t(2)], [t(2)], GROUP, meta(3, 2), has_rdispls=True), "NKI318", r"needs \(4, 2\)"),
    (lambda: ncc.all_to_all_v([t(2)], [t(2)], GROUP, nl.zeros((3, 2), nl.uint32)), "NKI318", r"needs \(1, 3, 2\)"),
    (lambda: ncc.all_gather_v([t(2)], [t(2)], GROUP, meta(4, 2), has_rdispls=True), "NKI321",
     "all_gather_v has_rdispls=True is not supported on NeuronCore-v4; .*leave has_rdispls out"),
    # others
    (lambda: reduce([t(2)], [t(2)], priority=4), "NKI116", "priority must be between 0 and 3"),
    (lambda: reduce([t(2)], [t(2)], speed=4), "NKI101", "all_reduce was given 'speed' which it does not have"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)))
def test_refusals(number: int) -> None:
    call, code, text = CASES[number]

    @nki.jit
    def kernel() -> None:
        call()

    with pytest.raises(NkiError, match=rf"{text}.*\[{code}\]"):
        spmd(kernel, 2)([()] * 2)


def test_every_code_is_tested() -> None:
    elsewhere = {
        *(f"NKI30{i}" for i in range(6)),  # test_merge.py
        "NKI319", "NKI323",  # below
        "NKI320", "NKI322",  # test_collectives_chunks.py
        "NKI330",  # test_perf_kernels.py
    }  # fmt: skip
    known = {code for code in errors.CODES if code.startswith("NKI3")}
    assert known == elsewhere | {code for _, code, _ in CASES if code.startswith("NKI3")}


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_older_generations(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)

    @nki.jit
    def urgent() -> None:
        reduce([t(2)], [t(2)], priority=0)

    @nki.jit
    def displaced() -> None:
        ncc.all_to_all_v([t(2)], [t(2)], GROUP, meta(4, 2), has_rdispls=True)

    with pytest.raises(NkiError, match=r"priority does not exist on NeuronCore-v\d.*NKI116"):
        spmd(urgent, 2)([()] * 2)
    with pytest.raises(
        NkiError, match=r"has_rdispls=True is not supported.*build for trn3.*NKI321"
    ):
        spmd(displaced, 2)([()] * 2)


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        ([], "has an empty list"),
        ([[0], []], "has an empty list"),
        ([[0, -1]], "has a negative rank"),
        ([[0, 1], [1, 2]], "names a rank twice"),
        ([[0, 1], [2]], "has lists of different lengths"),
        ([0, 1], "is no list of lists of ranks"),
        ([["a"]], "is no list of lists of ranks"),
    ],
)
def test_groups_that_are_none(groups: Any, why: str) -> None:
    with pytest.raises(NkiError, match=rf"{why}; .*ReplicaGroup\(\[\[0, 1\], \[2, 3\]\]\).*NKI310"):
        ReplicaGroup(groups)


def test_groups_are_values() -> None:
    assert ReplicaGroup([[0, 1]]) == GROUP
    assert len({ReplicaGroup([(0, 1)]), GROUP}) == 1
    assert ReplicaGroup([[1, 0]]) != GROUP
    assert repr(GROUP) == "ReplicaGroup([[0, 1]])"


# --- ranks that do not agree ---------------------------------------------------------------------


@nki.jit
def disagree(how: str) -> None:
    rank = ncc.rank_id()
    if how == "op":
        reduce([t(2)], [t(2)], op=nl.minimum if rank else nl.add)
    elif how == "shape":
        reduce([t(2 + rank)], [t(2 + rank)])
    elif how == "group":
        reduce([t(2)], [t(2)], group=[[1, 0]] if rank else GROUP)
    elif how == "missing":
        if rank == 0:
            reduce([t(2)], [t(2)])
    elif rank == 0:
        reduce([t(2)], [t(2)])
    else:
        ncc.all_to_all([t(2)], [t(2)], GROUP, 0)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (
            "op",
            r"all_reduce op is minimum on rank 1, and add on rank 0 at .*:\d+; .*pass the same.*NKI319",
        ),
        (
            "shape",
            r"all_reduce srcs is \['float32\[3\]'\] on rank 1, and \['float32\[2\]'\] on rank 0.*NKI319",
        ),
        ("group", r"all_reduce replica_group is \(\(1, 0\),\) on rank 1.*NKI319"),
        (
            "missing",
            r"rank 0 waits at all_reduce, and rank 1 does not come to one; .*same order.*NKI302",
        ),
        ("other", r"rank 0 waits at all_reduce, and rank 1 is at all_to_all at .*:\d+; .*NKI302"),
    ],
)
def test_ranks_disagree(how: str, text: str) -> None:
    with pytest.raises(NkiError, match=text):
        spmd(disagree, 2)([(how,)] * 2)


def test_ranks_outside_of_a_group_go_on() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        if ncc.rank_id() < 2:
            reduce([x], [x])
        return x

    xs = [np.ones((2, 2), np.float32) for _ in range(3)]
    results = spmd(kernel, 3)([(x,) for x in xs])
    assert [float(r[0, 0]) for r in results] == [2, 2, 1]


# --- launches ------------------------------------------------------------------------------------


@nki.jit
def identity(x: Any, *, scale: int = 1) -> tuple[Any, dict[str, Any]]:
    assert scale
    return x, {"rank": None}


def test_launches() -> None:
    xs = [np.full((2, 2), r, np.float32) for r in range(3)]
    results = spmd(identity, 3)([(xs[0],), [xs[1]], {"x": xs[2]}], scale=2)
    assert [x is given for (x, _), given in zip(results, xs, strict=True)] == [True] * 3
    assert results[0][1] == {"rank": None}
    plain = spmd(lambda x: x, ranks=2)([(xs[0],), (xs[1],)])
    assert plain[1] is xs[1]


@pytest.mark.parametrize(
    ("launch", "text"),
    [
        (lambda: spmd(identity, 1), "ranks=1; .*2 to 128 ranks, or call the kernel itself"),
        (lambda: spmd(identity, 129), "ranks=129"),
        (lambda: spmd(identity, bool(1)), "ranks=True"),
        (lambda: spmd(identity, 2)([()]), "identity runs on 2 ranks and was given 1 lists of arguments"),
        (lambda: spmd(identity, 2)(cast("Any", np.zeros(2))), "was given no lists of arguments; .*a tuple of arguments"),
        (lambda: spmd(identity, 2)([np.zeros(2)] * 2), r"arguments of a rank are a ndarray; .*\(x,\) for one"),
    ],
)  # fmt: skip
def test_refusals_of_launches(launch: Callable[[], Any], text: str) -> None:
    with pytest.raises(NkiError, match=rf"{text}.*\[NKI323\]"):
        launch()


def test_missing_arguments() -> None:
    with pytest.raises(NkiTypeError, match=r"missing a required argument: 'x'.*NKI207"):
        spmd(identity, 2)([(), ()])


@pytest.mark.parametrize("call", [ncc.rank_id, lambda: reduce([t(2)], [t(2)])])
def test_outside_of_a_kernel(call: Callable[[], Any]) -> None:
    with pytest.raises(NkiError, match=r"called outside of a kernel.*nki.collectives.spmd.*NKI143"):
        call()
