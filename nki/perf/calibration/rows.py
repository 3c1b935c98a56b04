"""The measurements of the tables here, and what the model says of their kernels."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from importlib.resources import files
from typing import NamedTuple

import numpy as np

from neuronxcc.perf import Parameters, Prediction, Stream
from neuronxcc.perf import predict as predict_stream
from neuronxcc.targets import get_target
from nki.first_generation.launch import jit
from nki.launch import Slot, record
from nki.perf.calibration.kernels import KERNELS, SHAPES
from nki.perf.streams import stream_of

__all__ = ["Row", "predicted", "rows", "spearman", "stream_for", "variants"]


class Row(NamedTuple):
    """One measurement.

    Attributes:
        kernel: name of the function of `kernels`.
        arguments: of its entry in `SHAPES`.
        chip: name of the target.
        latency_us: of the whole call; None if it is not published.
        device_us: by the profiler; likewise.
        hbm_mb: megabytes that HBM gave and took; likewise.
        busy: by engine, the share of the device's time, as far as published.
        source: where it is published.
    """

    kernel: str
    arguments: tuple[int, ...]
    chip: str
    latency_us: float | None
    device_us: float | None
    hbm_mb: float | None
    busy: dict[str, float]
    source: str

    @property
    def name(self) -> str:
        """The kernel with its arguments."""
        return " ".join([self.kernel, *map(str, self.arguments)])

    @property
    def family(self) -> str:
        """What kernels that are alike have in common: those of the tutorial are one family."""
        return "fused_mamba" if self.kernel.startswith("fused_mamba") else self.kernel

    @property
    def measured(self) -> float:
        """Microseconds: of the device where that is published, else of the whole call."""
        found = self.device_us or self.latency_us
        assert found is not None
        return found

    def comparable(self, prediction: Prediction) -> float:
        """Return the predicted time of the same kind as `measured`."""
        return prediction.latency_us if self.device_us is None else prediction.device_us


def rows() -> list[Row]:
    """Return the measurements that the fit is of, in the order of the file."""
    return _read("measurements.csv")


def variants() -> list[Row]:
    """Return the variants of one kernel that have published times; some are among `rows`."""
    tutorial = [row for row in rows() if row.family == "fused_mamba" and row.arguments[0] == 4096]
    return [*tutorial, *_read("variants.csv")]


def spearman(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the rank correlation of pairs of numbers; equal ones share the mean of their ranks.

    >>> round(spearman([(1, 10), (2, 30), (3, 20)]), 6)
    0.5
    """
    ranked = []
    for side in zip(*pairs, strict=True):
        _, of, counts = np.unique(side, return_inverse=True, return_counts=True)
        ranked.append((np.cumsum(counts) - (counts + 1) / 2)[of])
    first, second = ranked
    return float(np.corrcoef(first, second)[0, 1])


def _read(name: str) -> list[Row]:
    text = (files(__package__) / name).read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [
        Row(
            row["kernel"],
            tuple(int(word) for word in row["arguments"].split()),
            row["chip"],
            _number(row["latency_us"]),
            _number(row["device_us"]),
            _number(row["hbm_mb"]),
            {name: float(row[name]) for name in ("scalar", "vector", "gpsimd") if row[name]},
            row["source"],
        )
        for row in csv.DictReader(lines)
    ]


def _number(text: str) -> float | None:
    return float(text) if text else None


def stream_for(row: Row) -> Stream:
    """Return what the kernel of a row asks a core to do."""
    shapes = SHAPES[row.kernel](*row.arguments)
    slots = tuple(Slot(i, f"a{i}", shape, "float32") for i, shape in enumerate(shapes))
    kernel = jit(KERNELS[row.kernel], platform_target=row.chip).today()
    recording = record(kernel.function, [(slots, {})], target=get_target(row.chip), grid=())
    stream = stream_of(recording, compiled=True)
    stream.name = row.name
    return stream


def predicted(row: Row, stream: Stream, parameters: Parameters) -> Prediction:
    """Return what the model says of a row."""
    return predict_stream(stream, get_target(row.chip), parameters=parameters)
