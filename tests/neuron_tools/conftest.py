"""A registry of processes that a test has for itself."""

from pathlib import Path

import pytest

_OTHERS = (
    "NEURON_PLATFORM_TARGET_OVERRIDE", "NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE",
    "NEURON_RT_VISIBLE_CORES", "NEURON_EMULATED_INSTANCE_TYPE", "NEURON_EMULATED_INSTANCE_ID",
    "TORCH_NEURONX_CLOCK", "NEURON_SYSFS_ROOT",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the files, which does not exist yet."""
    place = tmp_path / "registry"
    monkeypatch.setenv("TORCH_NEURONX_REGISTRY_DIR", str(place))
    for name in _OTHERS:
        monkeypatch.delenv(name, raising=False)
    return place
