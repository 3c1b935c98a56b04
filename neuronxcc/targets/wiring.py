"""How the chips of an instance are connected, and where they sit on its host.

Source: the layout tables of AWS' page on the runtime's performance
(neuron-runtime/explore/runtime-performance-tips.rst). A single Trainium's place is one that users
of a trn1.2xlarge report. Of other instances no places are published, and none are made up.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where a chip sits: its PCI address, its NUMA node (-1: none), and the CPUs near it."""

    bdf: str
    numa_node: int
    cpus: str


def _places(cpus: tuple[str, ...], *chips: str) -> tuple[Place, ...]:
    """Read "bdf@numa" for each chip; `cpus` holds those of each NUMA node."""
    found = [chip.split("@") for chip in chips]
    return tuple(Place(f"0000:{bdf}", int(node), cpus[int(node)]) for bdf, node in found)


_TRN1 = _places(
    ("0-31,64-95", "32-63,96-127"),
    "10:1c.0@0", "10:1d.0@0", "a0:1c.0@1", "a0:1d.0@1", "20:1b.0@0", "20:1c.0@0", "90:1b.0@1",
    "90:1c.0@1", "20:1d.0@0", "20:1e.0@0", "90:1d.0@1", "90:1e.0@1", "10:1e.0@0", "10:1b.0@0",
    "a0:1e.0@1", "a0:1b.0@1",
)  # fmt: skip
_TRN2 = _places(
    ("0-47,96-143", "48-95,144-191"),
    "cc:00.0@1", "b5:00.0@1", "b6:00.0@1", "cb:00.0@1", "6f:00.0@0", "58:00.0@0", "59:00.0@0",
    "6e:00.0@0", "9b:00.0@0", "84:00.0@0", "85:00.0@0", "9a:00.0@0", "f8:00.0@1", "e1:00.0@1",
    "e2:00.0@1", "f7:00.0@1",
)  # fmt: skip
_INF2 = _places(
    ("0-23,96-119", "24-47,120-143", "48-71,144-167", "72-95,168-191"),
    "80:1e.0@2", "90:1e.0@3", "80:1d.0@2", "90:1f.0@3", "80:1f.0@2", "90:1d.0@3", "20:1e.0@1",
    "20:1f.0@1", "10:1e.0@0", "10:1f.0@0", "10:1d.0@0", "20:1d.0@1",
)  # fmt: skip
_PLACES = {
    "trn1.2xlarge": (Place("0000:00:1e.0", -1, "0-7"),),
    "trn1.32xlarge": _TRN1,
    "trn2.48xlarge": _TRN2,
    "inf2.48xlarge": _INF2,
}


def place(instance: str, chip: int) -> Place | None:
    """Return where chip number `chip` of an instance type sits, None if nobody has published it."""
    places = _PLACES.get(instance, ())
    return places[chip] if chip < len(places) else None


def neighbours(topology: str, chips: int, chip: int) -> tuple[int, ...]:
    """Return the chips that chip number `chip` of `chips` is connected to.

    Args:
        topology: As in `Link.topology`. In a torus the order is that of the published tables: the
            chip above in the grid, left, below, right, around its edges.
        chips: How many the machine has.
        chip: The number of one.
    """
    if chips < 2:
        return ()
    if topology.startswith("2D torus") and chips == 16:
        row, column = divmod(chip, 4)
        around = ((row - 1, column), (row, column - 1), (row + 1, column), (row, column + 1))
        return tuple(r % 4 * 4 + c % 4 for r, c in around)
    if topology == "switched all-to-all":
        return tuple(other for other in range(chips) if other != chip)
    return tuple(dict.fromkeys(((chip - 1) % chips, (chip + 1) % chips)))
