"""The table of targets: what can be looked up, and that its numbers agree with each other."""

import argparse
from dataclasses import FrozenInstanceError

import pytest

from neuronxcc import targets
from neuronxcc.machine import MachineConfigError, named_target
from neuronxcc.options import OptionError, parse
from neuronxcc.targets import Target, UnknownTargetError, get_target, target_argument
from neuronxcc.targets.spec import GIB, MIB

ALL = pytest.mark.parametrize("target", targets.TARGETS, ids=lambda target: target.name)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("trn1", "trn1"),
        ("trn1n", "trn1n"),
        ("inf2", "inf2"),
        ("trn2", "trn2"),
        ("trn3", "trn3"),
        ("gen2", "trn1"),
        ("gen3", "trn2"),
        ("gen4", "trn3"),
        (" TRN2 ", "trn2"),
    ],
)
def test_documented_spellings(spelling: str, name: str) -> None:
    assert get_target(spelling).name == name


@pytest.mark.parametrize("name", ["", "trn4", "cuda", "trn9.48xlarge"])
def test_unknown_target_lists_what_is_allowed(name: str) -> None:
    with pytest.raises(UnknownTargetError) as caught:
        get_target(name)
    assert str(caught.value) == (
        f"unknown target {name!r}; allowed: trn1, inf2, trn1n, trn2, trn3, gen2, gen3, gen4"
    )
    assert caught.value.given == name
    assert isinstance(caught.value, ValueError)


INSTANCES = [
    (instance.name, target.name) for target in targets.TARGETS for instance in target.instances
]
INF1 = (
    "Inf1 has NeuronCore-v1, for which another compiler, neuron-cc, is made; it is not emulated. "
    "The oldest core here is NeuronCore-v2: name inf2."
)
INSTEAD = [
    *((name, f"{name} is an instance of {of}: name {of}.") for name, of in INSTANCES),
    ("inf1", INF1),
    ("Inf1.24xlarge", INF1),
]


@pytest.mark.parametrize(("name", "remedy"), INSTEAD)
def test_every_door_says_what_to_name_instead(name: str, remedy: str) -> None:
    with pytest.raises(UnknownTargetError) as caught:
        get_target(name)
    assert caught.value.remedy == remedy
    assert str(caught.value).endswith(f", gen4. {remedy}")
    with pytest.raises(MachineConfigError) as machine:
        named_target({"NEURON_PLATFORM_TARGET_OVERRIDE": name})
    assert str(machine.value).endswith(f", gen4. {remedy}")
    with pytest.raises(OptionError) as option:
        parse({"target": name})
    assert str(option.value).endswith(f", gen4. {remedy}")
    with pytest.raises(argparse.ArgumentTypeError) as argument:
        target_argument(name)
    assert str(argument.value) == str(caught.value)


def test_default_is_a_target() -> None:
    assert get_target(targets.DEFAULT_TARGET).name == "trn2"


def test_targets_cannot_be_changed() -> None:
    target = get_target("trn2")
    with pytest.raises(FrozenInstanceError):
        target.hbm_bytes = 0  # type: ignore[misc]
    with pytest.raises(TypeError):
        target.peak_tflops["bfloat16"] = 1e9  # type: ignore[index]


def test_the_emulated_default_machine() -> None:
    trn2 = get_target("trn2")
    assert trn2.default_lnc == 2
    assert trn2.logical_cores_per_chip(2) == 4
    assert trn2.hbm_bytes_per_logical_core(2) == 24 * GIB
    assert trn2.logical_cores_per_chip(1) == 8
    assert trn2.logical_cores_per_chip(2) * trn2.max_chips == 64


@pytest.mark.parametrize(
    ("name", "sbuf_mib", "hbm_gib", "cores"),
    [("trn1", 24, 32, 2), ("inf2", 24, 32, 2), ("trn2", 28, 96, 8), ("trn3", 32, 144, 8)],
)
def test_published_sizes(name: str, sbuf_mib: int, hbm_gib: int, cores: int) -> None:
    target = get_target(name)
    assert target.core.sbuf.total_bytes == sbuf_mib * MIB
    assert target.core.psum.total_bytes == 2 * MIB
    assert target.hbm_gib == hbm_gib
    assert target.cores_per_chip == cores


@ALL
def test_lnc_divides_the_cores(target: Target) -> None:
    assert target.default_lnc in target.supported_lnc
    for lnc in target.supported_lnc:
        assert target.cores_per_chip % lnc == 0
        total = target.hbm_bytes_per_logical_core(lnc) * target.logical_cores_per_chip(lnc)
        assert total == target.hbm_bytes
    with pytest.raises(ValueError, match=rf"{target.name} supports LNC \(.*\), got 3"):
        target.logical_cores_per_chip(3)


@ALL
def test_rates_follow_from_clock_and_width(target: Target) -> None:
    """A bfloat16 multiply-add per cell of the 128 x 128 array is the published rate."""
    tensor = target.core.tensor
    computed = 2 * 128 * 128 * tensor.clock_ghz / 1e3
    assert computed == pytest.approx(tensor.peak_tflops["bfloat16"], rel=0.01)
    chip = target.peak_tflops["bfloat16"]
    # The chip's figure is rounded up from its cores by at most seven per cent.
    assert 1.0 <= chip / (tensor.peak_tflops["bfloat16"] * target.cores_per_chip) < 1.07


@ALL
def test_instances(target: Target) -> None:
    assert max(instance.chips for instance in target.instances) == target.max_chips
    assert target.name.rstrip("n") in target.instances[-1].name


@ALL
def test_engines_know_the_width_of_every_dtype(target: Target) -> None:
    for engine in target.core.engines:
        assert all(engine.width(dtype) >= 128 for dtype in target.dtypes)
    assert target.core.tensor.width("bfloat16") == 256


def test_fp8_kinds_follow_the_error_pages() -> None:
    for name in ("trn1", "trn1n", "inf2", "trn2"):
        assert "float8_e4m3fn" not in get_target(name).dtypes  # NCC_EVRF051
        assert get_target(name).float8_e4m3_max == 240
    assert {"float8_e4m3fn", "float8_e4m3"} <= get_target("trn3").dtypes
    assert get_target("trn3").float8_e4m3_max == 448


def test_int64_is_native_from_trn2_on() -> None:
    assert [t.name for t in targets.TARGETS if t.native_int64] == ["trn2", "trn3"]
    assert [t.name for t in targets.TARGETS if "int64" in t.dtypes] == ["trn2", "trn3"]
    assert not any("float64" in t.dtypes for t in targets.TARGETS)
