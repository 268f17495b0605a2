"""Families of samples as the Prometheus client writes them. Pure."""

from collections.abc import Mapping
from itertools import accumulate

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from engine.system.histogram import Buckets

Labels = Mapping[str, str]
"""Values by name."""


def gauge(name: str, text: str, value: float, labels: Labels | None = None) -> Metric:
    """A gauge."""
    labels = labels or {}
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """A gauge with one label."""
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def counter(name: str, text: str, value: float, labels: Labels | None = None) -> Metric:
    """A counter; `name` without `_total`."""
    labels = labels or {}
    family = CounterMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """A counter with one label."""
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def histogram(name: str, text: str, buckets: Buckets, labels: Labels | None = None) -> Metric:
    """A histogram."""
    labels = labels or {}
    family = HistogramMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), cumulated(buckets), buckets.total)
    return family


def histograms(name: str, text: str, label: str, values: Mapping[str, Buckets]) -> Metric:
    """A histogram with one label."""
    family = HistogramMetricFamily(name, text, labels=[label])
    for key, buckets in values.items():
        family.add_metric([key], cumulated(buckets), buckets.total)
    return family


def cumulated(buckets: Buckets) -> list[tuple[str, float]]:
    """Cumulative bucket counts by upper bound, as Prometheus expects them."""
    bounds = [*map(str, buckets.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(buckets.counts)), strict=True))
