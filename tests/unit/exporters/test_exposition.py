"""Metrics as text: as the client library makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from invented import make_node_status, make_snapshot
from msgspec.structs import replace
from prometheus_client import generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from prometheus_client.registry import Collector

from memsampd.exporters.exposition import families_of
from memsampd.exporters.prometheus import PrometheusExporter
from memsampd.exporters.snapshot import Snapshot, TargetInfo

ENCODERS: dict[bool, Callable[[Collector], bytes]] = {
    False: generate_latest,
    True: generate_open_metrics,
}


def of_target(pid: int, command: str, snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, target=TargetInfo(pid, 1, command, "/bin/x"))


class Families(Collector):
    """What an exporter shows, for the library's encoders."""

    def __init__(self, exporter: PrometheusExporter) -> None:
        self._exporter = exporter

    def collect(self) -> Iterable[Family]:
        return families_of(self._exporter.samples())


def is_as_the_library_says(exporter: PrometheusExporter) -> bool:
    return all(
        exporter.text(is_open) == encode(Families(exporter)) for is_open, encode in ENCODERS.items()
    )


@pytest.mark.parametrize("phases", [0, 3, 40])
def test_texts_are_those_of_the_client_library_whatever_comes_and_goes(phases: int) -> None:
    exporter = PrometheusExporter()
    assert is_as_the_library_says(exporter)
    one = of_target(7, "one", make_snapshot(phases))
    other = of_target(8, "other", make_snapshot(2))
    for shown in (one, other, replace(one, samples=10**9, lost=3)):
        exporter.publish(shown)
        assert is_as_the_library_says(exporter)
    exporter.publish(replace(other, alive=False))
    exporter.text(False)  # which shows it for the last time
    assert is_as_the_library_says(exporter)
    exporter.publish_node(make_node_status())
    assert is_as_the_library_says(exporter)
    exporter.close()
    assert is_as_the_library_says(exporter)


@pytest.mark.parametrize(
    "name", ['quo"te', "back\\slash", "new\nline", "blank and } brace", "\udcff", ""]
)
def test_strange_names_are_written_as_the_library_writes_them(name: str) -> None:
    exporter = PrometheusExporter()
    exporter.publish(replace(of_target(7, name, make_snapshot()), trouble=f"{name} # {name} 1"))
    assert is_as_the_library_says(exporter)
    assert is_as_the_library_says(exporter)  # from what was kept


def test_what_was_kept_of_a_target_goes_with_it() -> None:
    exporter = PrometheusExporter()
    exporter.publish(of_target(7, "before", make_snapshot()))
    assert b'command="before"' in exporter.text(False)
    exporter.publish(of_target(7, "after", make_snapshot()))  # an exec
    text = exporter.text(False)
    assert b'command="after"' in text
    assert b'command="before"' not in text
