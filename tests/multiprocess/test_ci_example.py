"""examples/ci as a library uses it: files beside its tests, steps of the workflow in bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "ci"
WORKFLOW: dict[str, Any] = yaml.safe_load((EXAMPLE / "neuron.yml").read_text())
STEPS = {step["name"]: step["run"] for step in WORKFLOW["jobs"]["neuron"]["steps"] if "run" in step}


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A folder of tests that knows nothing of this repository."""
    for name in ("conftest.py", "neuron_fixture.py", "test_library.py"):
        shutil.copy(EXAMPLE / name, tmp_path)
    return tmp_path


def bash(step: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a step of the workflow with this environment's Python."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # As if the package were installed: the tests of this repository run from its folder.
    changed = {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TESTS": "."}
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        ["/bin/bash", "-ec", step],
        cwd=folder,
        env=kept | changed | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_the_steps_pass(library: Path) -> None:
    assert list(STEPS) == ["install", "device", "test"]
    device = bash(STEPS["device"], library)
    assert device.returncode == 0, device.stderr
    assert '"a small product": "right"' in device.stdout
    done = bash(STEPS["test"], library)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


NO_DEVICE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


@pytest.mark.slow
def test_without_the_device_the_workflow_fails(library: Path) -> None:
    done = bash(STEPS["test"], library, **NO_DEVICE)
    assert done.returncode == 1
    assert "--require-neuron: torchneuron is not installed" in done.stdout


@pytest.mark.slow
def test_without_the_device_others_skip(library: Path) -> None:
    done = bash("python -m pytest -rs -p no:cacheprovider .", library, **NO_DEVICE)
    assert done.returncode == 0, done.stdout
    assert "4 skipped" in done.stdout
    assert "torchneuron is not installed" in done.stdout


@pytest.mark.slow
def test_a_device_that_cannot_be_set_up(library: Path) -> None:
    broken = {"NEURON_PLATFORM_TARGET_OVERRIDE": "h100"}
    done = bash(STEPS["test"], library, **broken)
    assert done.returncode == 1
    assert "NEURON_PLATFORM_TARGET_OVERRIDE='h100' is not valid" in done.stdout
