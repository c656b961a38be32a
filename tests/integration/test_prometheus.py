"""A real Prometheus scrapes the exporter."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from commands import free_port
from invented import make_snapshot
from monitored import tool
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


def query(port: int, expression: str) -> list[tuple[dict[str, str], float]]:
    quoted = urllib.parse.quote(expression)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={quoted}") as answer:
        result = json.load(answer)["data"]["result"]
    return [(row["metric"], float(row["value"][1])) for row in result]


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
    port = free_port()
    prometheus = subprocess.Popen(
        [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(port, "memsampd_target_up", 1)
        curve = snapshot.estimate.curves["lru"]
        for size_bytes, miss_ratio in zip(curve.sizes_bytes, curve.miss_ratio, strict=True):
            ((labels, value),) = query(
                port, f'memsampd_phase_miss_ratio{{phase="0",size_bytes="{size_bytes}"}}'
            )
            assert value == pytest.approx(miss_ratio)
            assert (labels["pid"], labels["command"]) == ("4242", "sqlite3")
        ((_, bandwidth),) = query(port, 'memsampd_phase_fill_bytes_per_cpu_second{level="L1d"}')
        ((_, product),) = query(
            port,
            "memsampd_phase_accesses_per_cpu_second"
            ' * on (pid) memsampd_miss_ratio{size_bytes="32768"}',
        )
        assert bandwidth == pytest.approx(64 * product)
        assert (
            query(port, 'memsampd_capture_errors_total{reason="target is not running"}')[0][1] == 2
        )
        exporter.publish(replace(snapshot, alive=False))
        wait_for(port, "memsampd_target_up", 0)
    finally:
        prometheus.kill()
        prometheus.wait()
        server.close()


def wait_for(port: int, expression: str, series: int) -> None:
    for _ in range(1800):
        try:
            if len(query(port, expression)) == series:
                return
        except OSError:  # not up yet
            pass
        time.sleep(0.1)
    pytest.fail(f"{expression} never had {series} series")
