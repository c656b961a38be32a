"""Prometheus metrics that are worked out, and their library loaded, once somebody reads them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from memsampd.exporters.shown import KEPT_SECONDS, ShownSnapshots
from memsampd.exporters.snapshot import NodeStatus, Snapshot

if TYPE_CHECKING:
    from memsampd.exporters.prometheus import PrometheusExporter


class DeferredPrometheus:
    """A :class:`~memsampd.exporters.prometheus.PrometheusExporter` from the first reader on.

    Until then it only remembers what it would show.

    Args:
        kept_seconds: for so long the last state of a target that ended waits for a reader.

    Attributes:
        ask: has the state brought up to date; nothing by default.
    """

    def __init__(self, kept_seconds: float = KEPT_SECONDS) -> None:
        self.ask: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._exporter: PrometheusExporter | None = None
        self._kept_seconds = kept_seconds
        self._shown = ShownSnapshots(kept_seconds=kept_seconds)  # until there is an exporter
        self._node: NodeStatus | None = None
        self._version = 0

    @property
    def version(self) -> int:
        """Another number whenever something else is to be shown."""
        return self._version + (self._exporter.version if self._exporter is not None else 0)

    def present_version(self) -> int:
        """Return the version, once what is shown has been brought up to date: for who reads it."""
        self.ask()
        return self.version

    @property
    def is_unread(self) -> bool:
        """Whether a state of a target was published that nobody has read."""
        return (self._shown if self._exporter is None else self._exporter).is_unread

    def publish(self, snapshot: Snapshot) -> None:
        """Show this state of its target; that of a dead one until it has been read once."""
        with self._lock:
            self._version += 1
            if self._exporter is not None:
                self._exporter.publish(snapshot)
            else:
                self._shown.show(snapshot)

    def publish_node(self, status: NodeStatus) -> None:
        """Show this state of the daemon from now on."""
        with self._lock:
            self._version += 1
            self._node = status
            if self._exporter is not None:
                self._exporter.publish_node(status)

    def close(self) -> None:
        """Show no target any more."""
        with self._lock:
            self._version += 1
            self._shown.clear()
            self._node = None
            if self._exporter is not None:
                self._exporter.close()

    def text(self, open_metrics: bool) -> bytes:
        """Return all samples as text; for one thread at a time.

        Args:
            open_metrics: the format is OpenMetrics; else the older one.
        """
        from memsampd.exporters.prometheus import PrometheusExporter

        with self._lock:
            exporter = self._exporter or self._begin(
                PrometheusExporter(kept_seconds=self._kept_seconds)
            )
        return exporter.text(open_metrics)

    def _begin(self, exporter: PrometheusExporter) -> PrometheusExporter:
        """Show by it what was published so far, and what comes."""
        self._exporter = exporter
        for snapshot in self._shown.read():
            exporter.publish(snapshot)
        if self._node is not None:
            exporter.publish_node(self._node)
        return exporter
