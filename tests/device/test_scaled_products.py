"""Products of 8-bit and 4-bit floats with scales, one and in groups, against float32."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.nn.functional import ScalingType, SwizzleType

Tensor = torch.Tensor
# PyTorch's stubs have not caught up with them.
scaled_mm: Any = functional.scaled_mm
scaled_grouped_mm: Any = vars(functional)["scaled_grouped_mm"]
FLOAT8, FLOAT4, E8M0 = torch.float8_e4m3fn, torch.float4_e2m1fn_x2, torch.float8_e8m0fnu
SWIZZLE = SwizzleType.SWIZZLE_32_4_4
_FLOAT4_VALUES = [0.0, 0.5, 1, 1.5, 2, 3, 4, 6]


def ceil_to(size: int, block: int) -> int:
    return -(-size // block) * block


def swizzled(scale: Tensor) -> Tensor:
    """The order of tiles of 128 x 4, one element at a time."""
    rows, columns = scale.shape
    across = ceil_to(columns, 4) // 4
    out = torch.zeros(ceil_to(rows, 128) * across * 4)
    for r in range(rows):
        for c in range(columns):
            tile = (r // 128) * across + c // 4
            out[tile * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = scale[r, c]
    return out


@dataclass
class Factor:
    """[rows, K] of one product: what is multiplied, and what describes it to the operator."""

    exact: Tensor  # float32, scaled
    values: Tensor  # [rows, K], or [rows, K / 2] with two values in a byte
    scales: list[Tensor]


def random_values(rows: int, k: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    """Values in float32, and as the dtype has them."""
    generator = torch.Generator().manual_seed(seed)
    if dtype != FLOAT4:
        values = torch.randn(rows, k, generator=generator).to(dtype)
        return values.float(), values
    codes = torch.randint(0, 16, (rows, k), generator=generator)
    exact = torch.tensor(_FLOAT4_VALUES)[codes % 8] * torch.where(codes < 8, 1.0, -1.0)
    return exact, (codes[:, ::2] + 16 * codes[:, 1::2]).to(torch.uint8).view(FLOAT4)


def scale_of(rows: int, columns: int, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 100)
    if dtype == E8M0:
        return torch.exp2(torch.randint(-3, 4, (rows, columns), generator=generator).float())
    return (torch.rand(rows, columns, generator=generator) + 0.5).to(dtype).float()


def spread(scale: Tensor, rows: int, k: int, block_rows: int, block: int) -> Tensor:
    return scale.repeat_interleave(block_rows, 0)[:rows].repeat_interleave(block, 1)[:, :k]


def tensorwise(rows: int, k: int, seed: int, dtype: torch.dtype = FLOAT8) -> Factor:
    exact, values = random_values(rows, k, dtype, seed)
    scale = scale_of(1, 1, torch.float32, seed)
    return Factor(exact * scale, values, [scale.reshape(())])


def rowwise(rows: int, k: int, seed: int, dtype: torch.dtype = FLOAT8) -> Factor:
    exact, values = random_values(rows, k, dtype, seed)
    scale = scale_of(rows, 1, torch.float32, seed)
    return Factor(exact * scale, values, [scale])


def by_128(rows: int, k: int, seed: int) -> Factor:
    exact, values = random_values(rows, k, FLOAT8, seed)
    scale = scale_of(rows, ceil_to(k, 128) // 128, torch.float32, seed)
    stored = scale.t().contiguous().t()  # columns lie one after the other
    return Factor(exact * spread(scale, rows, k, 1, 128), values, [stored])


def by_128_128(rows: int, k: int, seed: int) -> Factor:
    exact, values = random_values(rows, k, FLOAT8, seed)
    along = ceil_to(k, 128) // 128
    scale = scale_of(ceil_to(rows, 128) // 128, along, torch.float32, seed)
    padded = torch.zeros(scale.shape[0], ceil_to(along, 4))
    padded[:, :along] = scale
    return Factor(exact * spread(scale, rows, k, 128, 128), values, [padded.t()])


def mxfp8(rows: int, k: int, seed: int) -> Factor:
    exact, values = random_values(rows, k, FLOAT8, seed)
    scale = scale_of(rows, ceil_to(k, 32) // 32, E8M0, seed)
    return Factor(exact * spread(scale, rows, k, 1, 32), values, [swizzled(scale).to(E8M0)])


def nvfp4(rows: int, k: int, seed: int, levels: int = 2) -> Factor:
    exact, values = random_values(rows, k, FLOAT4, seed)
    scale = scale_of(rows, ceil_to(k, 16) // 16, FLOAT8, seed)
    exact = exact * spread(scale, rows, k, 1, 16)
    scales = [swizzled(scale).to(FLOAT8)]
    if levels == 2:
        scales.append(scale_of(1, 1, torch.float32, seed + 1).reshape(()))
        exact = exact * scales[1]
    return Factor(exact, values, scales)


def nvfp4_single(rows: int, k: int, seed: int) -> Factor:
    return nvfp4(rows, k, seed, levels=1)


Make = Callable[[int, int, int], Factor]
S = ScalingType
#: Form -> how its factors are made, their recipes, whether scales are swizzled.
FORMS: dict[str, tuple[Make, list[ScalingType], bool]] = {
    "tensorwise": (tensorwise, [S.TensorWise], False),
    "rowwise": (rowwise, [S.RowWise], False),
    "1x128": (by_128, [S.BlockWise1x128], False),
    "128x128": (by_128_128, [S.BlockWise128x128], False),
    "mxfp8": (mxfp8, [S.BlockWise1x32], True),
    "nvfp4": (nvfp4, [S.BlockWise1x16, S.TensorWise], True),
    "nvfp4, one level": (nvfp4_single, [S.BlockWise1x16], True),
}
PAIRS = [*((form, form) for form in FORMS if form != "128x128"), ("1x128", "128x128")]
PAIRS.append(("128x128", "1x128"))


def on(device: str, tensors: list[Tensor]) -> list[Tensor]:
    return [t.to(device) for t in tensors]


def close(got: Tensor, expected: Tensor, terms: Tensor) -> None:
    """Sums of float32 in any order, then one rounding; `terms` sums their magnitudes."""
    got = got.cpu()
    step = torch.finfo(got.dtype).eps
    bound = terms * 2.0**-20 + expected.abs() * step
    assert got.shape == expected.shape
    assert bool(((got.float() - expected).abs() <= bound + 1e-6).all())


def check_one(a: Factor, b: Factor, got: Tensor) -> None:
    close(got, a.exact @ b.exact.t(), a.exact.abs() @ b.exact.abs().t())


@pytest.mark.parametrize(("m", "n", "k"), [(128, 128, 256), (48, 160, 128), (16, 272, 512)])
@pytest.mark.parametrize(("left", "right"), PAIRS, ids="-".join)
def test_one_product(left: str, right: str, m: int, n: int, k: int) -> None:
    make_a, recipe_a, swizzle = FORMS[left]
    make_b, recipe_b, _ = FORMS[right]
    a, b = make_a(m, k, 0), make_b(n, k, 1)
    if right == "rowwise":
        b.scales = [b.scales[0].t()]
    order = SWIZZLE if swizzle else None
    arguments: list[Any] = [
        a.values.to("neuron:1"), b.values.to("neuron:1").t(), on("neuron:1", a.scales), recipe_a,
        on("neuron:1", b.scales), recipe_b, order, order,
    ]  # fmt: skip
    for dtype in (torch.bfloat16, torch.float32):
        got = scaled_mm(*arguments, output_dtype=dtype)
        assert (got.dtype, got.device) == (dtype, torch.device("neuron:1"))
        check_one(a, b, got)
    bias = torch.arange(n, dtype=torch.float32)
    if left not in {"tensorwise", "rowwise"}:  # those are PyTorch's own, with its types of bias
        got = scaled_mm(*arguments, bias=bias.to("neuron:1"), output_dtype=torch.float32)
        close(got, a.exact @ b.exact.t() + bias, a.exact.abs() @ b.exact.abs().t() + bias)


@pytest.mark.every(3, "slow")
@pytest.mark.parametrize(("left", "right"), PAIRS, ids="-".join)
def test_the_older_operator(left: str, right: str) -> None:
    """It has no recipes: sizes and types of the scales say what they are."""
    if "nvfp4" in (left, right):
        pytest.skip("the older operator has one level of scales")
    m, n, k = 144, 272, 384
    a, b = FORMS[left][0](m, k, 2), FORMS[right][0](n, k, 3)
    scale_a, scale_b = a.scales[0], b.scales[0]
    if left == "128x128":
        scale_a = scale_a[: k // 128].t()
    if right == "128x128":
        scale_b = scale_b[: k // 128]
    elif right in {"rowwise", "1x128"}:
        scale_b = scale_b.t()
    x, y, scale_a, scale_b = on("neuron", [a.values, b.values, scale_a, scale_b])
    check_one(a, b, torch._scaled_mm(x, y.t(), scale_a, scale_b, out_dtype=torch.float32))
    out = torch.empty(0, device="neuron")
    torch._scaled_mm(x, y.t(), scale_a, scale_b, out_dtype=torch.float32, out=out)
    check_one(a, b, out)


# ---- groups -------------------------------------------------------------------------------------

GROUPED = ("tensorwise", "rowwise", "1x128", "128x128", "mxfp8", "nvfp4")
ENDS = [32, 32, 160]


def stack(parts: list[Factor], form: str) -> tuple[Tensor, list[Tensor]]:
    """[groups, rows, K] and its scales."""
    # 4-bit values have no copy kernel; their bytes do.
    values = torch.stack([p.values.view(torch.uint8) for p in parts]).view(parts[0].values.dtype)
    levels = [
        torch.stack([_bytes(p.scales[i]) for p in parts]) for i in range(len(parts[0].scales))
    ]
    scales = [v.view(s.dtype) for v, s in zip(levels, parts[0].scales, strict=True)]
    return values, [s.squeeze(-1) if form == "rowwise" else s for s in scales]


def _bytes(t: Tensor) -> Tensor:
    return t.view(torch.uint8) if t.element_size() == 1 else t


def join(parts: list[Factor], form: str, dim: int) -> tuple[Tensor, list[Tensor]]:
    """[rows, K] of groups one after the other along `dim`, and their scales."""
    dtype = parts[0].values.dtype
    values = torch.cat([p.values.view(torch.uint8) for p in parts], dim).view(dtype)
    scales = []
    for level in range(len(parts[0].scales)):
        group = [p.scales[level] for p in parts]
        kind = group[0].dtype
        if form == "128x128":
            raise AssertionError("squares of 128 rows reach over groups")
        if form == "tensorwise" or level == 1:
            scales.append(torch.stack(group))
        elif form == "1x128":
            scales.append(torch.cat(group, dim))
        else:
            scales.append(torch.cat([_bytes(g).reshape(-1) for g in group]).view(kind))
    return values, scales


def make_parts(form: str, sizes: list[tuple[int, int]], seed: int) -> list[Factor]:
    return [FORMS[form][0](rows, k, seed + i) for i, (rows, k) in enumerate(sizes)]


def grouped(
    left: tuple[Tensor, list[Tensor]], right: tuple[Tensor, list[Tensor]], form: str, other: str,
    ends: list[int] | None,
) -> Tensor:  # fmt: skip
    device = "neuron:1"
    swizzle = SWIZZLE if FORMS[form][2] else None
    offsets = None if ends is None else torch.tensor(ends, dtype=torch.int32, device=device)
    result: Tensor = scaled_grouped_mm(
        left[0].to(device), right[0].to(device).transpose(-2, -1),
        on(device, left[1]), FORMS[form][1], on(device, right[1]), FORMS[other][1],
        swizzle, swizzle, offs=offsets, output_dtype=torch.bfloat16,
    )  # fmt: skip
    return result


def sizes_of(ends: list[int]) -> list[int]:
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def check_parts(a: list[Factor], b: list[Factor], got: list[Tensor]) -> None:
    for x, y, part in zip(a, b, got, strict=True):
        check_one(x, y, part)


@pytest.mark.parametrize("form", [f for f in GROUPED if f != "128x128"])
def test_groups_of_rows(form: str) -> None:
    n, k = 160, 256
    other = "128x128" if form == "1x128" else form
    a = make_parts(form, [(rows, k) for rows in sizes_of(ENDS)], 0)
    b = make_parts(other, [(n, k)] * len(ENDS), 10)
    got = grouped(join(a, form, 0), stack(b, other), form, other, ENDS)
    check_parts(a, b, list(got.split(sizes_of(ENDS))))


@pytest.mark.parametrize("form", [f for f in GROUPED if f != "128x128"])
def test_groups_of_columns(form: str) -> None:
    m, k = 48, 128
    other = "128x128" if form == "1x128" else form
    a = make_parts(other, [(m, k)] * len(ENDS), 20)
    b = make_parts(form, [(columns, k) for columns in sizes_of(ENDS)], 30)
    got = grouped(stack(a, other), join(b, form, 0), other, form, ENDS)
    check_parts(a, b, list(got.split(sizes_of(ENDS), 1)))


@pytest.mark.parametrize("form", ["tensorwise", "rowwise", "1x128", "mxfp8"])
def test_groups_of_the_contracted_dimension(form: str) -> None:
    ends = [128, 128, 384] if form == "1x128" else [32, 32, 96]
    a = make_parts(form, [(48, k) for k in sizes_of(ends)], 40)
    b = make_parts(form, [(80, k) for k in sizes_of(ends)], 50)
    got = grouped(join(a, form, 1), join(b, form, 1), form, form, ends)
    check_parts(a, b, list(got))


@pytest.mark.parametrize("form", GROUPED)
def test_a_plain_batch(form: str) -> None:
    a, b = make_parts(form, [(48, 256)] * 3, 60), make_parts(form, [(160, 256)] * 3, 70)
    check_parts(a, b, list(grouped(stack(a, form), stack(b, form), form, form, None)))


@pytest.mark.parametrize("form", ["rowwise", "mxfp8"])
def test_the_older_operator_in_groups(form: str) -> None:
    n, k = 160, 256
    a = make_parts(form, [(rows, k) for rows in sizes_of(ENDS)], 0)
    b = make_parts(form, [(n, k)] * len(ENDS), 10)
    x, y = join(a, form, 0), stack(b, form)
    offsets = torch.tensor(ENDS, dtype=torch.int32, device="neuron")
    scale_a = x[1][0] if form == "rowwise" else x[1][0].view(-1, k // 32)
    got = torch._scaled_grouped_mm(
        x[0].to("neuron"), y[0].to("neuron").transpose(-2, -1), scale_a.to("neuron"),
        y[1][0].to("neuron"), offs=offsets,
    )  # fmt: skip
    assert got.dtype == torch.bfloat16
    check_parts(a, b, list(got.split(sizes_of(ENDS))))


def test_rows_of_no_group_are_zero() -> None:
    a = make_parts("rowwise", [(rows, 32) for rows in sizes_of(ENDS)], 0)
    b = make_parts("rowwise", [(16, 32)] * 2, 1)
    got = grouped(join(a, "rowwise", 0), stack(b, "rowwise"), "rowwise", "rowwise", ENDS[:2])
    assert got.shape == (160, 16)
    assert not got[32:].any()


def bad_calls() -> dict[str, tuple[dict[str, Any], str]]:
    """What is changed in a call that works, and the error."""
    f32 = torch.float32
    return {
        "too few scales": (
            {"scale_a": [torch.ones(3)]},
            r"scale_a for RowWise scaling must be float32 \[64\], got Float \[3\]",
        ),
        "scales of another type": (
            {"scale_b": [torch.ones(2, 48, dtype=torch.float64)]},
            r"scale_b for RowWise scaling must be float32 \[2, 48\], got Double \[2, 48\]",
        ),
        "no recipe": ({"scale_recipe_a": []}, "scale_a must have a recipe for each of its scales"),
        "an order that the recipe has not": (
            {"scale_recipe_a": [S.BlockWise1x32]},
            "scale_a for BlockWise1x32 scaling must be in the order SWIZZLE_32_4_4",
        ),
        "no offsets": ({"offs": None}, "Offsets tensor not provided, but is needed for 2D/3D"),
        "offsets of another type": (
            {"offs": torch.tensor([16, 64])},
            "Offsets tensor must be 1D and int32, got 1D Long",
        ),
        "an offset beyond the rows": (
            {"offs": torch.tensor([16, 65], dtype=torch.int32)},
            "Offsets must rise from 0 to at most 64, got 65 after 16",
        ),
        "offsets that fall": (
            {"offs": torch.tensor([32, 16], dtype=torch.int32)},
            "Offsets must rise from 0 to at most 64, got 16 after 32",
        ),
        "too many offsets": (
            {"offs": torch.tensor([8, 16, 64], dtype=torch.int32)},
            "matrix batch sizes have to match: 2 matrices and 3 offsets",
        ),
        "another width": (
            {"mat_a": torch.ones(64, 48).to(FLOAT8)},
            r"mat_a and mat_b shapes cannot be multiplied \(\[64, 48\] and \[2, 32, 48\]\)",
        ),
        "wide values": (
            {"mat_a": torch.ones(64, 32)},
            "mat_a and mat_b must both be float8_e4m3fn or float8_e5m2",
        ),
        "a bias": ({"bias": torch.ones(48)}, "bias is not supported by groups of scaled products"),
        "a type of integers": (
            {"output_dtype": torch.int32},
            "out_dtype must be bfloat16, float16 or float32, got Int",
        ),
        "contraction over rows": (
            {"contraction_dim": [0, 0]},
            r"contraction_dim must be empty or \(-1, -2\), got \[0, 0\]",
        ),
        "another core": (
            {"scale_a": [torch.ones(64, dtype=f32, device="neuron:2")]},
            "Expected all tensors to be on the same device",
        ),
    }


@pytest.mark.parametrize("case", bad_calls())
def test_what_is_refused(case: str) -> None:
    changed, text = bad_calls()[case]
    arguments: dict[str, Any] = {
        "mat_a": torch.ones(64, 32).to(FLOAT8),
        "mat_b": torch.ones(2, 48, 32).to(FLOAT8),
        "scale_a": [torch.ones(64)],
        "scale_recipe_a": [S.RowWise],
        "scale_b": [torch.ones(2, 48)],
        "scale_recipe_b": [S.RowWise],
        "offs": torch.tensor([16, 64], dtype=torch.int32),
        **changed,
    }

    def move(value: Any) -> Any:
        if isinstance(value, list):
            return [move(v) for v in value]
        here = isinstance(value, torch.Tensor) and value.device.type == "cpu"
        return value.to("neuron:1") if here else value

    moved = {name: move(value) for name, value in arguments.items()}
    moved["mat_b"] = moved["mat_b"].transpose(-2, -1)
    with pytest.raises((ValueError, RuntimeError), match=text):
        scaled_grouped_mm(**moved)
