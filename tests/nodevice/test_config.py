"""The emulated machine as the environment describes it, and what is said about wrong variables."""

import contextlib
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronxcc.machine import MachineConfigError
from neuronxcc.targets.spec import GIB
from torch_neuronx._config import (
    MAX_DEVICES,
    MachineConfig,
    launcher_device,
    parse_core_list,
    read_machine_config,
)


def read(**variables: str) -> MachineConfig:
    return read_machine_config(variables)


def failure(**variables: str) -> MachineConfigError:
    with pytest.raises(MachineConfigError) as caught:
        read_machine_config(variables)
    return caught.value


def test_default_machine() -> None:
    machine = read()
    assert machine.target.name == "trn2"
    assert machine.lnc == 2
    assert machine.chips == 1
    assert machine.visible_cores == (0, 1, 2, 3)
    assert machine.device_count == 4
    assert machine.hbm_bytes == 24 * GIB


@pytest.mark.parametrize(
    ("target", "lnc", "devices", "gib"),
    [
        ("trn1", "", 2, 16),
        ("trn1n", "1", 2, 16),
        ("inf2", "", 2, 16),
        ("trn2", "1", 8, 12),
        ("trn2", "2", 4, 24),
        ("trn3", "", 4, 36),
        ("gen4", "1", 8, 18),
    ],
)
def test_one_chip_of_each_target(target: str, lnc: str, devices: int, gib: int) -> None:
    machine = read(NEURON_PLATFORM_TARGET_OVERRIDE=target, NEURON_LOGICAL_NC_CONFIG=lnc)
    assert machine.device_count == devices
    assert machine.hbm_bytes == gib * GIB
    assert machine.chips == 1


def test_empty_variables_are_unset() -> None:
    names = (
        "NEURON_PLATFORM_TARGET_OVERRIDE",
        "NEURON_LOGICAL_NC_CONFIG",
        "NEURON_RT_VIRTUAL_CORE_SIZE",
        "NEURON_RT_NUM_CORES",
        "NEURON_RT_VISIBLE_CORES",
    )
    assert read_machine_config(dict.fromkeys(names, "")) == read()


@pytest.mark.parametrize(
    ("number", "devices", "chips"),
    [("0", 4, 1), ("1", 1, 1), ("4", 4, 1), ("5", 5, 2), ("64", 64, 16)],
)
def test_num_cores_grows_the_machine(number: str, devices: int, chips: int) -> None:
    machine = read(NEURON_RT_NUM_CORES=number)
    assert machine.visible_cores == tuple(range(devices))
    assert machine.chips == chips


def test_visible_cores_win_and_restart_at_zero() -> None:
    machine = read(NEURON_RT_VISIBLE_CORES="6-7", NEURON_RT_NUM_CORES="1")
    assert machine.visible_cores == (6, 7)
    assert machine.device_count == 2
    assert machine.chips == 2


def test_either_name_of_lnc() -> None:
    assert read(NEURON_RT_VIRTUAL_CORE_SIZE="1").lnc == 1
    assert read(NEURON_RT_VIRTUAL_CORE_SIZE="1", NEURON_LOGICAL_NC_CONFIG="1").lnc == 1


def test_unknown_target_text() -> None:
    assert str(failure(NEURON_PLATFORM_TARGET_OVERRIDE="h100")) == (
        "NEURON_PLATFORM_TARGET_OVERRIDE='h100' is not valid; allowed: trn1, inf2, trn1n, trn2, "
        "trn3, gen2, gen3, gen4. Unset it for trn2, or name one of these."
    )


def test_lnc_that_the_target_lacks_has_the_documented_code() -> None:
    error = failure(NEURON_PLATFORM_TARGET_OVERRIDE="trn1", NEURON_LOGICAL_NC_CONFIG="2")
    assert error.code == "NCC_EARG001"
    assert str(error) == (
        "[NCC_EARG001] NEURON_LOGICAL_NC_CONFIG='2' is not valid; allowed: 1 on trn1. Unset it for "
        "the default of trn1, 1, or choose a target that groups its cores like that with "
        "NEURON_PLATFORM_TARGET_OVERRIDE."
    )


@pytest.mark.parametrize("value", ["two", "-1", "0", "3", "2.0", "²"])
def test_lnc_that_is_no_lnc(value: str) -> None:
    error = failure(NEURON_RT_VIRTUAL_CORE_SIZE=value)
    assert (error.variable, error.given) == ("NEURON_RT_VIRTUAL_CORE_SIZE", value)
    assert error.allowed == "1, 2 on trn2"


def test_two_names_of_lnc_that_differ() -> None:
    error = failure(NEURON_LOGICAL_NC_CONFIG="1", NEURON_RT_VIRTUAL_CORE_SIZE="2")
    assert str(error) == (
        "[NCC_EARG001] NEURON_RT_VIRTUAL_CORE_SIZE='2' is not valid; allowed: the value of "
        "NEURON_LOGICAL_NC_CONFIG, 1. The two variables are names of one setting; set one of them, "
        "or both alike."
    )


@pytest.mark.parametrize("value", ["many", "-1", "1.5", "٣"])
def test_num_cores_that_is_no_number(value: str) -> None:
    error = failure(NEURON_RT_NUM_CORES=value)
    assert error.code == "NRT_INVALID"
    assert str(error) == (
        f"[NRT_INVALID] NEURON_RT_NUM_CORES={value!r} is not valid; allowed: 0-64, where 0 means "
        "all cores of one chip. Give the number of logical cores."
    )


def test_more_cores_than_the_largest_machine_has() -> None:
    text = "The largest trn2 machine has 16 chips with 4 logical cores each at LNC=2."
    for error in (
        failure(NEURON_RT_NUM_CORES="65"),
        failure(NEURON_RT_VISIBLE_CORES="64"),
    ):
        assert error.code == "NRT_LOAD_NOT_ENOUGH_NC"
        assert text in str(error)
    assert failure(NEURON_RT_VISIBLE_CORES="0-5000").code == "NRT_LOAD_NOT_ENOUGH_NC"


def test_more_cores_than_a_process_can_have() -> None:
    error = failure(NEURON_LOGICAL_NC_CONFIG="1", NEURON_RT_NUM_CORES="65")
    assert error.code == "NRT_RESOURCE"
    assert str(error) == (
        "[NRT_RESOURCE] NEURON_RT_NUM_CORES='65' is not valid; allowed: at most 64 cores in one "
        "process. Divide the cores between processes with NEURON_RT_VISIBLE_CORES, or use LNC=2."
    )
    machine = read(NEURON_LOGICAL_NC_CONFIG="1", NEURON_RT_VISIBLE_CORES="64-127")
    assert machine.device_count == MAX_DEVICES
    assert machine.chips == 16


def core_lists() -> st.SearchStrategy[tuple[str, tuple[int, ...]]]:
    """Core lists as users write them, with what they mean."""

    def build(first: int, lengths: list[int], spaced: bool) -> tuple[str, tuple[int, ...]]:
        items, core = [], first
        for length in lengths:
            last = core + length - 1
            items.append(str(core) if length == 1 else f"{core}-{last}")
            core = last + 1
        return (" , " if spaced else ",").join(items), tuple(range(first, core))

    return st.builds(
        build,
        st.integers(0, 100),
        st.lists(st.integers(1, 6), min_size=1, max_size=6),
        st.booleans(),
    )


@given(core_lists())
def test_core_lists_mean_what_they_say(case: tuple[str, tuple[int, ...]]) -> None:
    text, cores = case
    assert parse_core_list(text) == cores


@given(st.text(alphabet="0123456789,- x", max_size=12))
def test_any_text_is_a_contiguous_range_or_an_error(text: str) -> None:
    cores: tuple[int, ...] = ()
    with contextlib.suppress(MachineConfigError):
        cores = parse_core_list(text)
    if cores:
        assert cores == tuple(range(cores[0], cores[-1] + 1))
    else:
        with pytest.raises(MachineConfigError, match=re.escape(repr(text))) as caught:
            parse_core_list(text)
        assert caught.value.variable == "NEURON_RT_VISIBLE_CORES"


@given(st.lists(st.integers(0, 20), min_size=2, max_size=6))
def test_gaps_and_disorder_are_refused(cores: list[int]) -> None:
    text = ",".join(map(str, cores))
    if all(second == first + 1 for first, second in pairwise(cores)):
        assert parse_core_list(text) == tuple(cores)
    else:
        with pytest.raises(MachineConfigError, match="contiguous and increasing"):
            parse_core_list(text)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("0,2", "Found '2' where core 1 was expected."),
        ("1,0", "Found '0' where core 2 was expected."),
        ("3-1", "Found '3-1' where an increasing range was expected."),
        ("0-1,3-2", "Found '3-2' where an increasing range was expected."),
        ("a", "'a' is neither a core number nor a range; write e.g. 0-3 or 4."),
        ("0,,1", "'' is neither a core number nor a range; write e.g. 0-3 or 4."),
        ("-1", "'-1' is neither a core number nor a range; write e.g. 0-3 or 4."),
    ],
)
def test_core_list_texts(text: str, remedy: str) -> None:
    with pytest.raises(MachineConfigError, match=re.escape(remedy)) as caught:
        parse_core_list(text)
    assert caught.value.code == "NRT_INVALID"


@pytest.mark.parametrize(
    ("rank", "devices", "device"),
    [("", 4, 0), ("0", 4, 0), ("3", 4, 3), ("4", 4, 0), ("3", 1, 0), ("x", 4, 0), ("-1", 4, 0)],
)
def test_launcher_device(rank: str, devices: int, device: int) -> None:
    assert launcher_device(devices, {"LOCAL_RANK": rank}) == device


@pytest.mark.parametrize(
    ("environment", "cores", "chips"),
    [
        ({"LOCAL_WORLD_SIZE": "4"}, 4, 1),
        ({"LOCAL_WORLD_SIZE": "5"}, 8, 2),
        ({"LOCAL_WORLD_SIZE": "64"}, 64, 16),
        ({"LOCAL_WORLD_SIZE": "1000"}, 64, 16),
        ({"LOCAL_WORLD_SIZE": "100", "NEURON_LOGICAL_NC_CONFIG": "1"}, 64, 8),
        ({"LOCAL_WORLD_SIZE": "64", "NEURON_PLATFORM_TARGET_OVERRIDE": "inf2"}, 24, 12),
        ({"LOCAL_WORLD_SIZE": "64", "NEURON_RT_NUM_CORES": "2"}, 2, 1),
        ({"LOCAL_WORLD_SIZE": "64", "NEURON_RT_VISIBLE_CORES": "5"}, 1, 2),
        ({"LOCAL_WORLD_SIZE": "0"}, 4, 1),
        ({"LOCAL_WORLD_SIZE": "many"}, 4, 1),
    ],
)
def test_a_launcher_asks_for_a_core_per_process(
    environment: dict[str, str], cores: int, chips: int
) -> None:
    machine = read(**environment)
    assert (machine.device_count, machine.chips) == (cores, chips)
