"""How packages are installed that only some of what is here needs."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

_NEEDED = re.compile(r"""(?P<package>[^;]+?)\s*;\s*extra\s*==\s*["'](?P<extra>[^"']+)["']""")


def install_command(extra: str) -> str:
    """The command that installs an extra's packages, in the versions that are tested.

    TorchNeuron itself is on no index, so pip would not find it by its name.
    """
    try:
        lines = requires("torchneuron") or []
    except PackageNotFoundError:  # it is imported from where it lies
        return f"pip install '.[{extra}]', in TorchNeuron's folder"
    found = [match for line in lines if (match := _NEEDED.fullmatch(line))]
    packages = [match["package"] for match in found if match["extra"] == extra]
    assert packages, extra
    return "pip install " + " ".join(f"'{package}'" for package in packages)
