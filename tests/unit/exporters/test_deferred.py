"""Metrics that are loaded by the first reader."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field

import pytest
from invented import make_node_status, make_snapshot

from memsampd.exporters.deferred import DeferredPrometheus
from memsampd.exporters.http import MetricsServer
from memsampd.exporters.prometheus import PrometheusExporter
from memsampd.exporters.protocols import AskedExporter


@dataclass
class Both:
    """The exporter, and one that has been there all the time."""

    deferred: DeferredPrometheus = field(default_factory=DeferredPrometheus)
    prompt: PrometheusExporter = field(default_factory=PrometheusExporter)

    def publish(self, pid: int, *, alive: bool = True) -> None:
        for each in (self.deferred, self.prompt):
            each.publish(make_snapshot(pid=pid, alive=alive))

    def are_same(self) -> bool:
        return all(
            self.deferred.text(is_open) == self.prompt.text(is_open) for is_open in (False, True)
        )


@pytest.mark.parametrize("reads_early", [False, True])
def test_it_shows_what_one_shows_that_is_there_from_the_start(reads_early: bool) -> None:
    both = Both()
    if reads_early:
        assert both.are_same()
    for pid in (11, 22, 33):
        both.publish(pid)
    both.publish(22, alive=False)
    for each in (both.deferred, both.prompt):
        each.publish_node(make_node_status())
    text = both.deferred.text(False)
    assert text == both.prompt.text(False)
    assert b'pid="11"' in text
    assert b'memsampd_target_up{command="sqlite3",pid="22"} 0' in text
    assert b'pid="22"' not in both.deferred.text(False)
    assert b'pid="22"' not in both.prompt.text(False)
    assert both.are_same()
    assert b"memsampd_node_targets" in text
    both.publish(44)
    both.publish(11, alive=False)
    assert both.deferred.text(True) == both.prompt.text(True)
    assert both.are_same()


@pytest.mark.parametrize("reads_early", [False, True])
def test_nothing_of_targets_is_shown_once_it_is_closed(reads_early: bool) -> None:
    deferred = DeferredPrometheus()
    deferred.publish(make_snapshot())
    if reads_early:
        assert b'pid="4242"' in deferred.text(False)
    before = deferred.version
    deferred.close()
    deferred.close()
    assert deferred.version > before
    assert b"pid=" not in deferred.text(False)


@pytest.mark.parametrize("reads_early", [False, True])
def test_what_ended_is_kept_for_as_long_as_is_said(reads_early: bool) -> None:
    for kept_seconds, is_kept in ((3600.0, True), (-1.0, False)):
        deferred = DeferredPrometheus(kept_seconds)
        if reads_early:
            assert b"pid=" not in deferred.text(False)
        deferred.publish(make_snapshot(alive=False))
        assert (b"pid=" in deferred.text(False)) is is_kept


def test_who_reads_it_is_shown_the_present_state() -> None:
    deferred = DeferredPrometheus()
    assert isinstance(deferred, AskedExporter)
    pids = iter([11, 22])
    deferred.ask = lambda: deferred.publish(make_snapshot(pid=next(pids)))
    server = MetricsServer(deferred.text, "127.0.0.1:0", deferred.present_version)
    try:
        for pid in (11, 22):
            with urllib.request.urlopen(server.url) as answer:
                assert f'pid="{pid}"'.encode() in answer.read()
    finally:
        server.close()
    assert not deferred.is_unread


def test_a_server_is_there_at_once_and_answers_again_and_again() -> None:
    deferred = DeferredPrometheus()
    server = MetricsServer(deferred.text, "127.0.0.1:0", lambda: deferred.version)
    try:
        for pid in (1, 2):
            deferred.publish(make_snapshot(pid=pid))
            with urllib.request.urlopen(server.url) as answer:
                assert f'pid="{pid}"'.encode() in answer.read()
    finally:
        server.close()
        server.close()


def test_a_session_begins_without_what_it_may_never_need() -> None:
    code = (
        "import sys, memsampd.cli.main, memsampd.cli.attach, memsampd.daemon.attach;"
        "from contextlib import ExitStack;"
        "from memsampd.daemon.outputs import served;"
        "stack = ExitStack();"
        "served('127.0.0.1:0', stack);"
        "stack.close();"
        "print(*sorted({'prometheus_client', 'http.server', 'zstandard', 'sqlite3', 'tomllib',"
        "'memsampd.sampler.walk.source', 'memsampd.sampler.pmu.trial'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "\n"
