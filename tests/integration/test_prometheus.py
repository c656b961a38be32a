"""A real Prometheus scrapes the exporter."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from commands import free_port
from invented import make_snapshot
from monitored import Monitoring, tool
from msgspec.structs import replace
from prometheus_client import generate_latest

from memsampd.exporters.http import MetricsServer
from memsampd.exporters.prometheus import PrometheusExporter
from memsampd.exporters.protocols import Exporter
from memsampd.exporters.snapshot import Snapshot
from memsampd.web.process import WebProcess


@pytest.fixture
def snapshot() -> Snapshot:
    return make_snapshot(1)


def value(row: dict[str, Any]) -> float:
    return float(row["value"][1])


def test_promtool_has_nothing_to_say(snapshot: Snapshot) -> None:
    exporter = PrometheusExporter()
    exporter.publish(snapshot)
    done = subprocess.run(
        [tool("promtool", "prometheus"), "check", "metrics"],
        input=generate_latest(exporter.registry),
        check=False,
        capture_output=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("where", ["in a thread", "in a process"])
def test_prometheus_stores_what_was_published(
    where: str, snapshot: Snapshot, tmp_path: Path
) -> None:
    program = tool("prometheus", "prometheus")
    exporter: Exporter
    server: MetricsServer | WebProcess
    if where == "in a thread":
        exporter = PrometheusExporter()
        server = MetricsServer(exporter.text, "127.0.0.1:0")
    else:
        exporter = server = WebProcess("127.0.0.1:0")
    exporter.publish(snapshot)
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "scrape_configs:\n- job_name: memsampd\n  scrape_interval: 1s\n"
        f"  static_configs:\n  - targets: ['127.0.0.1:{server.port}']\n"
    )
    monitoring = Monitoring(free_port(), alertmanager=0)
    prometheus = subprocess.Popen(
        [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{monitoring.prometheus}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        monitoring.wait_for("memsampd_target_up")
        curve = snapshot.estimate.curves["lru"]
        for size_bytes, miss_ratio in zip(curve.sizes_bytes, curve.miss_ratio, strict=True):
            (row,) = monitoring.query(
                f'memsampd_phase_miss_ratio{{phase="0",size_bytes="{size_bytes}"}}'
            )
            assert value(row) == pytest.approx(miss_ratio)
            assert (row["metric"]["pid"], row["metric"]["command"]) == ("4242", "sqlite3")
        (bandwidth,) = monitoring.query('memsampd_phase_fill_bytes_per_cpu_second{level="L1d"}')
        (product,) = monitoring.query(
            "memsampd_phase_accesses_per_cpu_second"
            ' * on (pid) memsampd_miss_ratio{size_bytes="32768"}',
        )
        assert value(bandwidth) == pytest.approx(64 * value(product))
        (refused,) = monitoring.query(
            'memsampd_capture_errors_total{reason="target is not running"}'
        )
        assert value(refused) == 2
        exporter.publish(replace(snapshot, alive=False))
        monitoring.wait_for("absent(memsampd_target_up)")
    finally:
        prometheus.kill()
        prometheus.wait()
        server.close()
