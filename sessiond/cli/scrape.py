"""Samples of a server's metrics, and rates and quantiles between two of them.

Pure. Quantiles are interpolated like Prometheus' `histogram_quantile`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One scrape of a server. `values` has its samples by name and sorted labels."""

    at_s: float
    values: Mapping[tuple[str, Labels], float]
    capacity: Mapping[str, Any]
    sessions: Sequence[Mapping[str, Any]]

    def value(self, name: str, **labels: str) -> float:
        """Return one value, 0 if the scrape lacks it."""
        return self.values.get((name, tuple(sorted(labels.items()))), 0.0)

    def total(self, name: str) -> float:
        """Return the sum over all labels of a name."""
        return sum(value for (found, _), value in self.values.items() if found == name)


def read_values(text: str) -> dict[tuple[str, Labels], float]:
    """Parse a scrape in Prometheus' text format.

    Raises:
        ValueError: the text is not in that format.
    """
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Between:
    """Rates and quantiles between two samples; with one sample, since the server's start."""

    def __init__(self, before: Sample | None, now: Sample) -> None:
        self._before = before
        self._now = now
        self._seconds = 0.0 if before is None else max(now.at_s - before.at_s, 1e-9)

    def rate(self, name: str, **labels: str) -> float:
        """Return a counter's rate per second, by default over all labels; 0 after a restart."""
        if self._before is None:
            return 0.0
        if labels:
            grown = self._now.value(name, **labels) - self._before.value(name, **labels)
        else:
            grown = self._now.total(name) - self._before.total(name)
        return max(0.0, grown) / self._seconds

    def quantile(self, name: str, share: float, **labels: str) -> float | None:
        """Return a quantile of a histogram's observations, None if there were none."""
        grown = self._buckets(name, labels)
        count = grown[-1][1] if grown else 0.0
        if count <= 0:
            return None
        wanted = share * count
        for (low, below), (high, upto) in pairwise([(0.0, 0.0), *grown]):
            if upto >= wanted and upto > below:
                if high == float("inf"):
                    return low
                return low + (high - low) * (wanted - below) / (upto - below)
        return None

    def _buckets(self, name: str, labels: Mapping[str, str]) -> list[tuple[float, float]]:
        """Return (upper bound, cumulative observations) by bound."""
        counts: dict[float, float] = {}
        now = self._now.values
        before_values = {} if self._before is None else self._before.values
        for (found, has), value in now.items():
            at = dict(has)
            bound = at.pop("le", None)
            if found == f"{name}_bucket" and bound is not None and at.items() >= labels.items():
                before = before_values.get((found, has), 0.0)
                key = float(bound)
                counts[key] = counts.get(key, 0.0) + (value - before if value >= before else value)
        return sorted(counts.items())
