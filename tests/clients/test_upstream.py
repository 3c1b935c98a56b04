"""docs/upstream: without its patches the clients refuse, with them they work."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients import upstream_programs
from tests.clients.patched import files_of
from tests.clients.upstream_programs import PROGRAMS

ROOT = Path(__file__).parents[2]
PATCHES = ROOT / "docs" / "upstream"
NEEDS = {
    "lightning_one_device": "lightning",
    "accelerate_fp16": "accelerate",
    "accelerate_device_map": "accelerate",
    "randn_tensor": "diffusers",
    "safetensors_device": "safetensors",
}


def there(name: str) -> bool:
    return importlib.util.find_spec(NEEDS.get(name, "torch")) is not None


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated")  # Lightning's
@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.parametrize("name", PROGRAMS)
def test_refused_as_published(name: str) -> None:
    """If this fails, the client no longer needs the patch."""
    if not there(name):
        pytest.skip(f"{NEEDS[name]} is not installed")
    kind, text = PROGRAMS[name]
    with pytest.raises(kind, match=text):
        getattr(upstream_programs, name)()


@pytest.mark.slow
def test_the_patches_suffice() -> None:
    names = [name for name in PROGRAMS if there(name)]
    command = [sys.executable, "-m", "tests.clients.patched", str(PATCHES)]
    command += ["tests.clients.upstream_programs", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [name for name in names if f"{name}: done" not in lines] == []


def test_every_patch_is_small_and_explained() -> None:
    patches = sorted(PATCHES.glob("*.patch"))
    assert len(patches) == 6
    page = (ROOT / "docs" / "clients.md").read_text()
    for patch in patches:
        assert files_of(patch)
        about, _, changes = patch.read_text().partition("\n\n--- a/")
        assert len(about) > 80
        added = [line for line in changes.splitlines() if line.startswith("+")]
        assert len(added) < 30
        assert f"upstream/{patch.name}" in page
