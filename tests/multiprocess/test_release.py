"""A native core that was built for another release of PyTorch is refused before it is loaded."""

from pathlib import Path

import pytest
import torch

from tests.multiprocess.test_autoload import python
from torch_neuronx.compat.release import ReleaseError, built_for, check, minor


def test_this_one_fits() -> None:
    assert minor(built_for()) == minor(torch.__version__)
    check()


@pytest.mark.parametrize("present", ["2.13.0", "2.13.0+cpu", "2.13.1", "2.13.0a0+git1234"])
def test_same_minor_release(present: str, tmp_path: Path) -> None:
    file = tmp_path / "_C.release"
    file.write_text("2.13.0\n")
    check(present, file)


@pytest.mark.parametrize("present", ["2.14.1", "2.1.3", "3.13.0", "2.130.0"])
def test_another_release(present: str, tmp_path: Path) -> None:
    file = tmp_path / "_C.release"
    file.write_text("2.13.0\n")
    with pytest.raises(ReleaseError) as caught:
        check(present, file)
    assert str(caught.value) == (
        f"torch_neuronx was built for PyTorch 2.13.0, and this is {present}: install "
        f"torch==2.13.0, or a torchneuron that was built for PyTorch {minor(present)}"
    )


def test_no_core(tmp_path: Path) -> None:
    check("2.15.0", tmp_path / "nothing")


@pytest.mark.slow
def test_import_says_it_in_one_line() -> None:
    code = "import torch; torch.__version__ = '2.99.0'; import torch_neuronx"
    done = python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    last = done.stderr.strip().splitlines()[-1]
    assert "NeuronUnavailableError: the neuron device cannot be set up: ReleaseError: " in last
    assert f"built for PyTorch {built_for()}, and this is 2.99.0" in last
