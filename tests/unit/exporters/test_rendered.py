"""Metrics as text: how often they are made."""

from __future__ import annotations

import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from invented import make_snapshot

from memsampd.exporters.http import MetricsServer
from memsampd.exporters.prometheus import PrometheusExporter
from memsampd.exporters.rendered import RenderedMetrics

OPEN_METRICS = "application/openmetrics-text; version=1.0."


class Counting:
    """Says how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self._lock = threading.Lock()

    def text(self, open_metrics: bool) -> bytes:
        with self._lock:
            self.asked += 1
        return f"asked {self.asked}\n".encode()


def test_they_are_made_once_a_second_whatever_is_asked_for() -> None:
    exporter, now_seconds = PrometheusExporter(), [100.0]
    rendered = RenderedMetrics(exporter.text, lambda: exporter.version, 1.0, lambda: now_seconds[0])
    first, _ = rendered.read("")
    other, _ = rendered.read(OPEN_METRICS + "0")
    exporter.publish(make_snapshot())
    now_seconds[0] += 0.5
    assert rendered.read("text/plain; version=1.0.7; escaping=values")[0] is first
    assert all(rendered.read(f"{OPEN_METRICS}{number}")[0] is other for number in range(9))
    now_seconds[0] += 0.5
    assert b'pid="4242"' in rendered.read("")[0]
    assert rendered.read(OPEN_METRICS)[0].endswith(b"# EOF\n")


def test_they_are_kept_until_something_is_published() -> None:
    exporter = PrometheusExporter()
    rendered = RenderedMetrics(exporter.text, lambda: exporter.version)
    empty, _ = rendered.read("")
    assert rendered.read("")[0] is empty
    snapshot = make_snapshot()
    exporter.publish(snapshot)
    full, _ = rendered.read("")
    assert b'pid="4242"' in full
    assert rendered.read("")[0] is full
    exporter.close()
    assert rendered.read("")[0] == empty


def test_readers_of_the_small_server_cannot_have_it_work() -> None:
    counting, version = Counting(), [1]
    server = MetricsServer(counting.text, "127.0.0.1:0", lambda: version[0])

    def read(_: int) -> bytes:
        with urllib.request.urlopen(server.url) as answer:
            found: bytes = answer.read()
            return found

    try:
        with ThreadPoolExecutor(8) as readers:
            texts = set(readers.map(read, range(50)))
        assert len(texts) == counting.asked == 1
        version[0] += 1
        assert read(0) not in texts
    finally:
        server.close()
