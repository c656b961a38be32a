"""Samples as Prometheus's text: the beginning of a line is made once, its value each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from memsampd.exporters.catalogue import CATALOGUE
from memsampd.exporters.metric import Metric

# One sample: the metric, the values of all its labels, the value.
Sample: TypeAlias = tuple[Metric, tuple[str, ...], float]
_Key: TypeAlias = tuple[str, tuple[str, ...]]

_told: Callable[[float], str] = floatToGoString
_END = "# EOF\n"


def family_of(metric: Metric) -> GaugeMetricFamily | CounterMetricFamily:
    """Return a metric as the client library has it, without samples."""
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(metric.name, metric.help, labels=metric.all_labels)


def families_of(samples: Iterable[Sample]) -> Iterator[Family]:
    """Yield every family that has samples, in the catalogue's order."""
    families = {metric.name: family_of(metric) for metric in CATALOGUE}
    for metric, labels, value in samples:
        families[metric.name].add_metric(labels, value)
    yield from (family for family in families.values() if family.samples)


class Exposition:
    """Makes texts of samples, as the client library makes them, in a fifth of the time.

    The library writes heads of families and, once for each series, its name and labels. These are
    kept as long as the series is there.
    """

    def __init__(self) -> None:
        self._begun: dict[_Key, str] = {}
        self._heads = {
            is_open: {metric.name: _head(metric, encode) for metric in CATALOGUE}
            for is_open, encode in ((False, generate_latest), (True, generate_open_metrics))
        }

    def text(self, samples: Iterable[Sample], *, open_metrics: bool) -> bytes:
        """Return the text of samples.

        Args:
            samples: a series has one at most.
            open_metrics: the format is OpenMetrics 1.0.0; else the older one, 0.0.4.
        """
        told = list(samples)
        begun = self._begun
        new = [each for each in told if (each[0].name, each[1]) not in begun]
        if new:
            begun = {**begun, **_beginnings(new)}
        kept: dict[_Key, str] = {}
        lines: dict[str, list[str]] = {}
        for metric, labels, value in told:
            key = metric.name, labels
            kept[key] = beginning = begun[key]
            lines.setdefault(metric.name, []).append(f"{beginning}{_told(value)}\n")
        self._begun = kept
        parts = [
            part
            for name, head in self._heads[open_metrics].items()
            if name in lines
            for part in (head, *lines[name])
        ]
        return "".join([*parts, _END] if open_metrics else parts).encode()


class _Families(Collector):
    """What the library's encoders take."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def _head(metric: Metric, encode: Callable[[Collector], bytes]) -> str:
    """Return the lines that a family begins with."""
    return encode(_Families([family_of(metric)])).decode().removesuffix(_END)


def _beginnings(samples: list[Sample]) -> dict[_Key, str]:
    """Return lines up to their values, by metric and labels."""
    order = {metric.name: place for place, metric in enumerate(CATALOGUE)}
    ordered = sorted(samples, key=lambda sample: order[sample[0].name])
    text = generate_latest(_Families(families_of(ordered))).decode()
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    return {
        (metric.name, labels): line[: line.rindex(" ") + 1]
        for (metric, labels, _), line in zip(ordered, lines, strict=True)
    }
