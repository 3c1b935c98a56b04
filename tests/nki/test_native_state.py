"""What lasts from instruction to instruction, and indices out of bounds, natively."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.errors import NkiError
from nki.isa.rows.reduce import _ARITHMETIC, _CUMULATIVE_DTYPES
from nki.lowering import lower
from nki.reference import run
from tests.nki.lowering_tools import Given, bits, check, dense, kernel_of, layouts, record, tile
from tests.nki.native_tools import natively, run_natively

Array = npt.NDArray[Any]


def random(*shape: int) -> Array:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def agree(kernel: Callable[..., Any], *arrays: Array) -> list[Array]:
    """Run a kernel by the reference and natively; the results must be equal bit for bit."""
    recording = record(nki.jit(kernel), *arrays)
    wanted = run(recording, [np.array(array) for array in arrays])
    found = natively(recording, arrays)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    return found


def out(tensor: Any) -> Any:
    """Return a copy of a tile in HBM."""
    made = nl.ndarray(tensor.shape, tensor.dtype, nl.shared_hbm)
    nisa.dma_copy(dst=made, src=tensor)
    return made


def new(shape: tuple[int, ...], dtype: Any = nl.float32) -> Any:
    return nl.ndarray(shape, dtype)


def loaded(array: Any) -> Any:
    made = new(array.shape, array.dtype)
    nisa.dma_copy(dst=made, src=array)
    return made


# random numbers


def test_streams_go_on_from_instruction_to_instruction() -> None:
    def kernel(x: Any) -> Any:
        a, b, c = new((128, 5), nl.uint32), new((32, 9), nl.uint16), new((128, 3), nl.uint32)
        nisa.rng(a)
        nisa.rng(b[0:32])
        nisa.rng(c)
        whole = new((128, 2), nl.uint32)
        nisa.memset(whole, value=0)
        nisa.rng(whole[64:96], engine=nisa.engine.vector)
        data = loaded(x)
        nisa.dropout(data, data=data, prob=0.5)
        g = new((128, 4), nl.uint32)
        nisa.rng(g, engine=nisa.engine.gpsimd)
        u = new((128, 6))
        nisa.rand2(u, -1.0, 1.0)
        return tuple(map(out, (a, b, c, whole, data, g, u)))

    found = agree(kernel, random(128, 20))
    assert 0.3 < (found[4] == 0).mean() < 0.7
    assert len(np.unique(found[0])) > 600


def test_seeds_and_states() -> None:
    def kernel(seed: Any, words: Any, many: Any) -> Any:
        number = loaded(seed)
        first, second = new((128, 7), nl.uint32), new((128, 7), nl.uint32)
        nisa.set_rng_seed(number)
        nisa.rng(first)
        nisa.set_rng_seed(number)
        nisa.rng(second)
        states = loaded(words)
        nisa.rand_set_state(states)
        drawn = new((32, 3), nl.uint32)
        nisa.rng(drawn, engine=nisa.engine.gpsimd)
        after = new((32, 6), nl.uint32)
        nisa.rand_get_state(after)
        wide = loaded(many)
        nisa.rand_set_state(wide, engine=nisa.engine.vector)
        again = new((64, 24), nl.uint32)
        nisa.rand_get_state(again, engine=nisa.engine.vector)
        return tuple(map(out, (first, second, drawn, after, again)))

    bits = np.random.default_rng(0).integers(0, 1 << 32, (64, 24), np.uint32)
    found = agree(kernel, np.array([[123]], np.int32), bits[:32, :6].copy(), bits)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[4], bits)


def test_a_program_begins_with_the_same_states_every_time() -> None:
    def kernel(x: Any) -> Any:
        t = loaded(x)
        nisa.rng(t)
        return (out(t),)

    recording = record(nki.jit(kernel), np.zeros((16, 4), np.uint32))
    program = lower(recording)
    first, second = (run_natively(program, [np.zeros((16, 4), np.uint32)]) for _ in range(2))
    np.testing.assert_array_equal(first[0], second[0])


def test_random_numbers_in_a_loop_differ() -> None:
    def kernel(x: Any) -> Any:
        t, total = loaded(x), new(x.shape, nl.uint32)
        nisa.memset(total, value=0)
        for _ in nl.dynamic_range(5):
            nisa.rng(t)
            nisa.tensor_tensor(total, total, t, "bitwise_xor")
        return out(t), out(total)

    agree(kernel, np.zeros((128, 6), np.uint32))


# accumulators


_COMMANDS = ("reset_reduce", "reduce", "load_reduce")


@settings(max_examples=8)
@given(data=st.data())
def test_cumulative(data: st.DataObject) -> None:
    partitions, size = data.draw(st.sampled_from([1, 3, 16, 32, 40])), data.draw(st.integers(1, 40))
    kinds = [data.draw(st.sampled_from(sorted(_CUMULATIVE_DTYPES))) for _ in range(2)]
    command = data.draw(st.sampled_from(_COMMANDS))
    exact = [op for op in _ARITHMETIC if op not in ("power", "rsqrt", "reciprocal")]
    operands = {
        "dst": tile(0, data.draw(layouts(partitions, size)), kinds[0]),
        "src": tile(1, data.draw(layouts(partitions, size, broadcast=True)), kinds[1]),
        "imm0": data.draw(st.sampled_from([0.0, 1.5])),
    }
    if data.draw(st.booleans()):
        layout = data.draw(layouts(partitions, (1,), addressed=False))
        operands["imm0"] = tile(2, layout, "float32")
    if command == "load_reduce":
        operands["imm1"] = 0.5
    op0 = data.draw(st.sampled_from(exact))
    if op0 in ("abs", "square", "relu"):
        operands["imm0"] = 0.0
    attributes = {
        "op0": op0,
        "op1": data.draw(st.sampled_from(["add", "subtract", "multiply", "maximum", "minimum"])),
        "reduce_cmd": getattr(nisa.reduce_cmd, command),
    }
    # The smaller of two zeros is either of them.
    check("tensor_scalar_cumulative", operands, attributes, runner=natively, least=1e-45)


def test_cumulative_goes_on_where_the_last_one_ended() -> None:
    def kernel(x: Any) -> Any:
        t = loaded(x)
        whole, parts = new((128, 12)), new((128, 12))
        options = {"op0": "multiply", "op1": "add", "imm0": 2.0}
        nisa.tensor_scalar_cumulative(whole, t, **options)
        nisa.tensor_scalar_cumulative(parts[:, :5], t[:, :5], **options)
        reduce = nisa.reduce_cmd.reduce
        nisa.tensor_scalar_cumulative(parts[:, 5:], t[:, 5:], reduce_cmd=reduce, **options)
        low = new((32, 12))
        nisa.tensor_scalar_cumulative(low, t[64:96], reduce_cmd=reduce, **options)
        return out(whole), out(parts), out(low)

    found = agree(kernel, random(128, 12))
    np.testing.assert_array_equal(found[0], found[1])


def test_both_ways_of_accumulating_share_the_registers() -> None:
    def kernel(x: Any) -> Any:
        t, total = loaded(x), new((32, 1))
        steps, value = new((32, 8)), new((32, 8))
        nisa.tensor_scalar_cumulative(steps, t, op0="add", op1="maximum", imm0=0.0)
        nisa.tensor_scalar_reduce(
            value,
            t,
            op0="multiply",
            operand0=2.0,
            reduce_op="maximum",
            reduce_cmd=nisa.reduce_cmd.reduce,
            reduce_res=total,
        )
        return out(steps), out(value), out(total)

    agree(kernel, random(32, 8))


# errors


def test_an_index_out_of_bounds_names_the_users_line() -> None:
    def kernel(x: Any, indices: Any) -> Any:
        t, index, made = loaded(x), loaded(indices), new((16, 4))
        nisa.nc_n_gather(made, t, index)  # here
        return (out(made),)

    indices = np.zeros((16, 4), np.uint32)
    indices[5, 1] = 8
    lines, start = inspect.getsourcelines(kernel)
    line = start + next(i for i, text in enumerate(lines) if "# here" in text)
    recording = record(nki.jit(kernel), random(16, 8), indices)
    where = rf"index 8 is out of bounds.*below 8; .*test_native_state.py:{line}; .*NKI132"
    with pytest.raises(IndexError, match=where):
        natively(recording, [random(16, 8), indices])
    indices[5, 1] = 7
    natively(recording, [random(16, 8), indices])


def test_local_gather_out_of_bounds() -> None:
    operands = {
        "dst": tile(0, dense(16, 32), "float32"),
        "src_buffer": tile(1, dense(16, 9), "float32"),
        "index": Given(np.full((16, 1), 8, np.uint16), "uint16", dense(16, 1)),
    }
    arrays = [bits(operand.data) for operand in operands.values()]
    recording = record(kernel_of("local_gather", operands, {"num_elem_per_idx": 2}), arrays)
    with pytest.raises(NkiError, match="index holds 9, but there are 9 elements"):
        run(recording, arrays)
    with pytest.raises(IndexError, match=r"index 9 is out of bounds: .* below 9; .*NKI132"):
        natively(recording, arrays)
