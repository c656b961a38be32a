"""A real Prometheus scrapes the exporter."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import free_port
from invented import make_snapshot
from monitored import Monitoring, prometheus, scraping
from msgspec.structs import replace
from needed import tool

from memsampd.exporters.http import MetricsServer
from memsampd.exporters.prometheus import PrometheusExporter
from memsampd.exporters.protocols import Exporter
from memsampd.web.process import WebProcess

SNAPSHOT = make_snapshot(1)


@dataclass(frozen=True, slots=True)
class Scraped:
    """What publishes, and where Prometheus finds it."""

    exporter: Exporter
    port: int

    @property
    def instance(self) -> str:
        """How Prometheus tells it from others."""
        return f'instance="127.0.0.1:{self.port}"'


@pytest.fixture
def served() -> Iterator[list[Scraped]]:
    """Both ways to serve: in a thread, and in a process of its own."""
    exporter = PrometheusExporter()
    with (
        closing(MetricsServer(exporter.text, "127.0.0.1:0")) as thread,
        closing(WebProcess("127.0.0.1:0")) as process,
    ):
        yield [Scraped(exporter, thread.port), Scraped(process, process.port)]


@pytest.fixture
def monitoring(served: list[Scraped], tmp_path: Path) -> Iterator[Monitoring]:
    """A Prometheus that stores what both publish, or will soon."""
    port = free_port()
    (tmp_path / "prometheus.yml").write_text(scraping(*(each.port for each in served)))
    with prometheus(tmp_path, port):
        yield Monitoring(port, 0)


def value(row: dict[str, Any]) -> float:
    return float(row["value"][1])


def test_promtool_has_nothing_to_say() -> None:
    exporter = PrometheusExporter()
    exporter.publish(SNAPSHOT)
    done = subprocess.run(
        [tool("promtool", "prometheus"), "check", "metrics"],
        input=exporter.text(open_metrics=False),
        check=False,
        capture_output=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_prometheus_stores_what_was_published(
    served: list[Scraped], monitoring: Monitoring
) -> None:
    for each in served:
        each.exporter.publish(SNAPSHOT)
    for each in served:
        monitoring.wait_for(f"memsampd_target_up{{{each.instance}}}")
        check_what_is_stored(monitoring, each.instance)
    for each in served:
        each.exporter.publish(replace(SNAPSHOT, alive=False))
    for each in served:
        monitoring.wait_for(f"absent(memsampd_target_up{{{each.instance}}})")


def check_what_is_stored(monitoring: Monitoring, here: str) -> None:
    curve = SNAPSHOT.estimate.curves["lru"]
    for size_bytes, miss_ratio in zip(curve.sizes_bytes, curve.miss_ratio, strict=True):
        (row,) = monitoring.query(
            f'memsampd_phase_miss_ratio{{{here},phase="0",size_bytes="{size_bytes}"}}'
        )
        assert value(row) == pytest.approx(miss_ratio)
        assert (row["metric"]["pid"], row["metric"]["command"]) == ("4242", "sqlite3")
    (bandwidth,) = monitoring.query(
        f'memsampd_phase_fill_bytes_per_cpu_second{{{here},level="L1d"}}'
    )
    (product,) = monitoring.query(
        f"memsampd_phase_accesses_per_cpu_second{{{here}}} * on (pid) "
        f'memsampd_miss_ratio{{{here},size_bytes="32768"}}',
    )
    assert value(bandwidth) == pytest.approx(64 * value(product))
    (refused,) = monitoring.query(
        f'memsampd_capture_errors_total{{{here},reason="target is not running"}}'
    )
    assert value(refused) == 2
