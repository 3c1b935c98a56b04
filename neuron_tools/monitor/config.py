"""Configuration files of neuron-monitor: which groups of metrics, how often, of which processes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from neuron_tools.machine import ToolError

RUNTIME_GROUPS: Final = (
    "neuroncore_counters", "execution_stats", "memory_used", "neuron_runtime_vcpu_usage",
)  # fmt: skip
SYSTEM_GROUPS: Final = ("neuron_hw_counters", "vcpu_usage", "memory_info")
DEFAULT_PERIOD: Final = 5.0
_SHORTEST = 0.1
_DURATION = re.compile(r"(?:(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h))+", re.ASCII)
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h)", re.ASCII)
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class ConfigError(ToolError):
    """A configuration file that says nothing, or what is not possible."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A group of metrics, and how often it is wanted, in seconds."""

    type: str
    period: float


@dataclass(frozen=True, slots=True)
class Runtimes:
    """Which groups are wanted of processes whose tag the expression matches."""

    tags: re.Pattern[str]
    metrics: tuple[Metric, ...]


@dataclass(frozen=True, slots=True)
class Config:
    """What is wanted."""

    runtimes: tuple[Runtimes, ...]
    system: tuple[Metric, ...]

    @property
    def metrics(self) -> list[Metric]:
        """All of it."""
        return [*self.system, *(metric for part in self.runtimes for metric in part.metrics)]


def _period(value: Any, where: str, outer: float) -> float:
    if value is None:
        return outer
    if not isinstance(value, str) or _DURATION.fullmatch(value) is None:
        raise ConfigError(
            f'{where}: "period" must be a duration such as "5s" or "500ms", not {value!r}'
        )
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(value))
    if seconds < _SHORTEST:
        raise ConfigError(f'{where}: "period" must be at least "100ms", not {value!r}')
    return seconds


def _object(value: Any, where: str, allowed: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be an object, not {value!r}")
    unknown = sorted(set(value) - set(allowed))
    if unknown:
        raise ConfigError(f"{where}: {unknown[0]!r} is not known; allowed: {', '.join(allowed)}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{where} must be an array, not {value!r}")
    return value


def _metrics(value: Any, where: str, types: Sequence[str], outer: float) -> tuple[Metric, ...]:
    found = {}
    for number, item in enumerate(_list(value, where)):
        place = f"{where}[{number}]"
        said = _object(item, place, ("type", "period"))
        kind = said.get("type")
        if not isinstance(kind, str) or kind not in types:
            raise ConfigError(f'{place}: "type" must be one of {", ".join(types)}, not {kind!r}')
        found[kind] = Metric(kind, _period(said.get("period"), place, outer))
    return tuple(found.values())


def _tags(value: Any, where: str) -> re.Pattern[str]:
    if not isinstance(value, str):
        raise ConfigError(f'{where}: "tag_filter" must be a regular expression, not {value!r}')
    try:
        return re.compile(value)
    except re.error as error:
        raise ConfigError(
            f'{where}: "tag_filter" {value!r} is no regular expression: {error}'
        ) from error


def default() -> Config:
    """Return what is wanted if nothing is said: everything, every five seconds."""
    period = DEFAULT_PERIOD
    runtimes = Runtimes(re.compile(""), tuple(Metric(kind, period) for kind in RUNTIME_GROUPS))
    return Config((runtimes,), tuple(Metric(kind, period) for kind in SYSTEM_GROUPS))


def parse(text: str) -> Config:
    """Read a configuration.

    Raises:
        ConfigError: It is no JSON, or asks for what there is not; the message says where.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"it is not JSON: {error}") from error
    root = _object(document, "it", ("period", "neuron_runtimes", "system_metrics", "k8s_info"))
    if root.get("k8s_info"):
        raise ConfigError('"k8s_info" is not possible: an emulated machine is no node of a cluster')
    period = _period(root.get("period"), "it", DEFAULT_PERIOD)
    runtimes = []
    for number, item in enumerate(_list(root.get("neuron_runtimes", []), '"neuron_runtimes"')):
        where = f'"neuron_runtimes"[{number}]'
        said = _object(item, where, ("tag_filter", "metrics", "period"))
        inner = _period(said.get("period"), where, period)
        metrics = _metrics(said.get("metrics", []), f'{where}."metrics"', RUNTIME_GROUPS, inner)
        runtimes.append(Runtimes(_tags(said.get("tag_filter", ""), where), metrics))
    system = _metrics(root.get("system_metrics", []), '"system_metrics"', SYSTEM_GROUPS, period)
    if not system and not any(part.metrics for part in runtimes):
        raise ConfigError(
            'it asks for nothing: name groups in "neuron_runtimes" or "system_metrics"'
        )
    return Config(tuple(runtimes), system)


def load(path: Path) -> Config:
    """Read a configuration file.

    Raises:
        ConfigError: It cannot be read, or is wrong.
    """
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"it cannot be read: {error}") from error
