"""The PyTorch that the package asks for: the release that it is built against.

A wheel fits one minor release of PyTorch, so its metadata names the one that is installed where it
is built. scikit-build-core calls these functions; pyproject.toml names this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

# What pyproject.toml has an isolated build install, for a source distribution without any.
_DEFAULT = "2.13.0"


def torch_release() -> str:
    """The PyTorch of this environment, without the "+cpu" of its build."""
    try:
        return version("torch").split("+")[0]
    except PackageNotFoundError:
        return _DEFAULT


def dynamic_metadata(
    settings: Mapping[str, Any], _project: Mapping[str, Any]
) -> dict[str, list[str]]:
    """Return the dependencies: PyTorch, and the others, which the settings name."""
    return {"dependencies": [f"torch=={torch_release()}", *settings["others"]]}


def dynamic_wheel(_settings: Mapping[str, Any]) -> dict[str, bool]:
    """Say that a wheel may ask for another release than the source distribution it is made of."""
    return {"dependencies": True}
