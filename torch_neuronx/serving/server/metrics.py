"""Counters for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from torch_neuronx.serving.engine import Engine

__all__ = ["Metrics"]

_PREFIX = "torch_neuronx_serving_"
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


class _OfEngine(Collector):
    """The engine's own counters, read when somebody asks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Iterate over the metrics."""
        engine, counted = self._engine, self._engine.statistics
        for name, text, value in (
            ("steps", "calls of the model", counted.steps),
            ("computed_tokens", "tokens whose keys and values were computed", counted.computed),
            ("prefix_tokens", "tokens that the cache had already", counted.shared),
            ("generated_tokens", "tokens generated", counted.generated),
            ("preemptions", "requests whose blocks were taken away", counted.preemptions),
            ("evictions", "cached blocks that were needed for others", engine.blocks.evictions),
        ):
            yield CounterMetricFamily(_PREFIX + name, text, value=value)
        finished = CounterMetricFamily(
            _PREFIX + "finished", "requests by their end", labels=["end"]
        )
        for end, count in list(counted.finished.items()):
            finished.add_metric([end], count)
        yield finished
        for name, text, number in (
            ("running", "requests that run", engine.running),
            ("waiting", "requests that wait", engine.waiting),
            ("blocks", "blocks of the cache", engine.blocks.count),
            ("blocks_used", "blocks that requests own", engine.blocks.used),
            ("blocks_kept", "blocks that nobody owns and that can be found", engine.blocks.kept),
        ):
            yield GaugeMetricFamily(_PREFIX + name, text, value=number)


class Metrics:
    """What the server counts.

    Attributes:
        answers: By path and status.
        first_token: Seconds from a request's arrival to its first token.
        next_token: Seconds between two tokens, the mean of a request.
    """

    def __init__(self, engine: Engine) -> None:
        """Make a registry of its own, so that several servers of a process don't mix."""
        self._registry = CollectorRegistry()
        self._registry.register(_OfEngine(engine))
        self.answers = Counter(
            _PREFIX + "answers", "answers", ["path", "status"], registry=self._registry
        )
        self.first_token = Histogram(
            _PREFIX + "time_to_first_token_seconds", "from arrival to the first token",
            buckets=_SECONDS, registry=self._registry,
        )  # fmt: skip
        self.next_token = Histogram(
            _PREFIX + "time_per_output_token_seconds", "between two tokens, mean of a request",
            buckets=_SECONDS, registry=self._registry,
        )  # fmt: skip

    def text(self) -> bytes:
        """Return all of them in Prometheus' text format."""
        return generate_latest(self._registry)
