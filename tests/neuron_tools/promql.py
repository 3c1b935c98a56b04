"""As much of Prometheus' query language as the dashboard of the vendor uses."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Key = tuple[tuple[str, str], ...]
Vector = dict[Key, float]
_TOKEN = re.compile(r'\s*("(?:[^"]*)"|[a-zA-Z_]\w*|\d+(?:\.\d+)?|!=|=~|[(){}\[\],=/*>]|\d*\w+)')
_SUMS: dict[str, Callable[[list[float]], float]] = {
    "sum": sum, "count": len, "avg": lambda values: sum(values) / len(values),
}  # fmt: skip


def samples(exposition: str) -> dict[str, Vector]:
    """The samples of a scrape, by metric and labels."""
    found: dict[str, Vector] = defaultdict(dict)
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            found[sample.name][tuple(sorted(sample.labels.items()))] = sample.value
    return found


@dataclass
class Query:
    """Evaluates expressions on two scrapes, so many seconds apart."""

    before: dict[str, Vector]
    now: dict[str, Vector]
    seconds: float

    def __call__(self, expression: str) -> Vector:
        self.tokens = _TOKEN.findall(expression)
        value = self._binary()
        assert not self.tokens, self.tokens
        return value

    def _take(self, token: str = "") -> str:
        found = self.tokens.pop(0)
        assert not token or found == token, (found, token, self.tokens)
        return str(found)

    def _next(self, *tokens: str) -> bool:
        return bool(self.tokens) and self.tokens[0] in tokens

    def _binary(self) -> Vector:
        left = self._factor()
        while self._next("/", ">"):
            operator, right = self._take(), self._factor()
            if operator == ">":
                (limit,) = right.values()
                left = {key: value for key, value in left.items() if value > limit}
            else:
                left = {key: left[key] / right[key] for key in left.keys() & right.keys()}
        return left

    def _factor(self) -> Vector:
        if self._next("("):
            self._take()
            value = self._binary()
            self._take(")")
            return value
        word = self._take()
        if word[0].isdigit():
            return {(): float(word)}
        if word in _SUMS:
            return self._aggregate(word)
        if word in {"rate", "increase", "irate"}:
            self._take("(")
            name, matches = self._take(), self._matches()
            while not self._next("]"):
                self._take()
            self._take("]")
            self._take(")")
            then = self._select(self.before, name, matches)
            divisor = self.seconds if word != "increase" else 1.0
            return {
                key: (value - then.get(key, 0.0)) / divisor
                for key, value in self._select(self.now, name, matches).items()
            }
        return self._select(self.now, word, self._matches())

    def _labels(self) -> list[str]:
        self._take("by")
        self._take("(")
        labels = [self._take()]
        while self._next(","):
            self._take()
            labels.append(self._take())
        self._take(")")
        return labels

    def _aggregate(self, word: str) -> Vector:
        labels = self._labels() if self._next("by") else []
        self._take("(")
        inner = self._binary()
        self._take(")")
        if self._next("by"):
            labels = self._labels()
        groups: dict[Key, list[float]] = defaultdict(list)
        for key, value in inner.items():
            groups[tuple((k, v) for k, v in key if k in labels)].append(value)
        return {key: float(_SUMS[word](values)) for key, values in groups.items()}

    def _matches(self) -> list[tuple[str, str, str]]:
        found = []
        if self._next("{"):
            self._take()
            while not self._next("}"):
                found.append((self._take(), self._take(), self._take().strip('"')))
                if self._next(","):
                    self._take()
            self._take("}")
        return found

    @staticmethod
    def _select(
        scrape: dict[str, Vector], name: str, matches: list[tuple[str, str, str]]
    ) -> Vector:
        def fits(key: Key) -> bool:
            labels = dict(key)
            return all(
                (labels.get(label, "") == value) == (operator == "=")
                for label, operator, value in matches
            )

        assert name in scrape, f"there is no metric {name}"
        return {key: value for key, value in scrape[name].items() if fits(key)}
