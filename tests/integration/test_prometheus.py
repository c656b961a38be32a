"""A real Prometheus scrapes the exporter."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
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


@pytest.fixture(scope="module")
def served() -> Iterator[dict[str, Scraped]]:
    """Both ways to serve."""
    exporter = PrometheusExporter()
    with (
        closing(MetricsServer(exporter.text, "127.0.0.1:0")) as thread,
        closing(WebProcess("127.0.0.1:0")) as process,
    ):
        yield {
            "in a thread": Scraped(exporter, thread.port),
            "in a process": Scraped(process, process.port),
        }


@pytest.fixture(scope="module")
def monitoring(
    served: dict[str, Scraped], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Monitoring]:
    """A Prometheus that stores what both publish, or will soon."""
    directory, port = tmp_path_factory.mktemp("prometheus"), free_port()
    ports = [each.port for each in served.values()]
    (directory / "prometheus.yml").write_text(scraping(*ports))
    with prometheus(directory, port):
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


@pytest.mark.parametrize("where", ["in a thread", "in a process"])
def test_prometheus_stores_what_was_published(
    where: str, served: dict[str, Scraped], monitoring: Monitoring
) -> None:
    exporter, here = served[where].exporter, f'instance="127.0.0.1:{served[where].port}"'
    exporter.publish(SNAPSHOT)
    monitoring.wait_for(f"memsampd_target_up{{{here}}}")
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
    exporter.publish(replace(SNAPSHOT, alive=False))
    monitoring.wait_for(f"absent(memsampd_target_up{{{here}}})")
