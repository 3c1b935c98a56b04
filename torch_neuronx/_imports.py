"""Calls a function when a module has been imported, without importing it.

For registrations with parts of PyTorch that have no entry point and take long to import: Dynamo's
table of device interfaces. Nothing is changed in the module; the function may call what the module
offers for such registrations.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_imported(name: str, call: Callable[[], None]) -> None:
    """Call a function when a module's code has run, at once if it has already.

    Args:
        name: The module's full name.
        call: Takes nothing; what it raises, the import raises.
    """
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Watch(name, call))


class _Watch(MetaPathFinder):
    """Finds one module, once, as the other finders do, and has its loader call the function."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self.name = name
        self.call = call

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the interface's
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenCall(spec.loader, self.call)
        return spec


class _ThenCall(Loader):
    def __init__(self, loader: Loader, call: Callable[[], None]) -> None:
        self.loader = loader
        self.call = call

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module is the loader's own from here on; nothing of ours remains in it.
        module.__loader__ = self.loader
        assert module.__spec__ is not None
        module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.call()
