"""torchvision where PyTorch is the CPU's.

PyPI has torchvision's CUDA build alone: beside PyTorch's CPU build its library can't be loaded, and
then its Python can't be imported, because that describes two operators of the library for fake
tensors. `make test-clients` therefore keeps it in a folder of its own, so that nobody finds it who
only looks whether it is there. Here the two are declared, and everything of torchvision that is
Python works: models and transforms. Its own operators (nms and others) stay missing.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

_LIBRARY: list[Any] = []


def torchvision() -> Any:
    """The module, or a skip."""
    folder = Path(sys.prefix) / "vision"
    if importlib.util.find_spec("torchvision") is None and folder.is_dir():
        sys.path.append(str(folder))
    try:
        return importlib.import_module("torchvision")
    except ModuleNotFoundError:
        pytest.skip("torchvision is not installed; the extra `clients` has it")
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _LIBRARY.append(library)
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    return importlib.import_module("torchvision")
