"""A real Prometheus scrapes the exporter."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import free_port
from invented import make_snapshot
from monitored import Monitoring, prometheus, scraping, tool
from msgspec.structs import replace

from memsampd.exporters.http import MetricsServer
from memsampd.exporters.prometheus import PrometheusExporter
from memsampd.exporters.protocols import Exporter
from memsampd.web.process import WebProcess

SNAPSHOT = make_snapshot(1)


@contextmanager
def stored(where: str, directory: Path) -> Iterator[tuple[Exporter, Monitoring]]:
    """A Prometheus stores what the exporter publishes, or will soon."""
    exporter: Exporter
    server: MetricsServer | WebProcess
    if where == "in a thread":
        exporter = PrometheusExporter()
        server = MetricsServer(exporter.text, "127.0.0.1:0")
    else:
        exporter = server = WebProcess("127.0.0.1:0")
    exporter.publish(SNAPSHOT)
    (directory / "prometheus.yml").write_text(scraping(server.port))
    monitoring = Monitoring(free_port(), server.port)
    with closing(server), prometheus(directory, monitoring.prometheus):
        yield exporter, monitoring


Stores = dict[str, tuple[Exporter, Monitoring]]


@pytest.fixture(scope="module", autouse=True)
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    """One each: they take their time to begin, all at once."""
    with ExitStack() as stack:
        yield {
            where: stack.enter_context(stored(where, tmp_path_factory.mktemp("prometheus")))
            for where in ("in a thread", "in a process")
        }


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
def test_prometheus_stores_what_was_published(where: str, stores: Stores) -> None:
    exporter, monitoring = stores[where]
    monitoring.wait_for("memsampd_target_up")
    curve = SNAPSHOT.estimate.curves["lru"]
    for size_bytes, miss_ratio in zip(curve.sizes_bytes, curve.miss_ratio, strict=True):
        (row,) = monitoring.query(
            f'memsampd_phase_miss_ratio{{phase="0",size_bytes="{size_bytes}"}}'
        )
        assert value(row) == pytest.approx(miss_ratio)
        assert (row["metric"]["pid"], row["metric"]["command"]) == ("4242", "sqlite3")
    (bandwidth,) = monitoring.query('memsampd_phase_fill_bytes_per_cpu_second{level="L1d"}')
    (product,) = monitoring.query(
        'memsampd_phase_accesses_per_cpu_second * on (pid) memsampd_miss_ratio{size_bytes="32768"}',
    )
    assert value(bandwidth) == pytest.approx(64 * value(product))
    (refused,) = monitoring.query('memsampd_capture_errors_total{reason="target is not running"}')
    assert value(refused) == 2
    exporter.publish(replace(SNAPSHOT, alive=False))
    monitoring.wait_for("absent(memsampd_target_up)")
