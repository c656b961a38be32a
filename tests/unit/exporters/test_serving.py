"""The plain server of /metrics, asked by those who do not behave."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tracees import go_on, running
from waiting import PATIENCE_SECONDS, wait_for

from memsampd.exporters import serving
from memsampd.exporters.http import MetricsServer


def text(open_metrics: bool) -> bytes:
    return b"some_metric 1\n"


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    with contextlib.closing(MetricsServer(text, "127.0.0.1:0")) as server:
        yield server


@pytest.fixture
def connect(server: MetricsServer) -> Iterator[Callable[[], socket.socket]]:
    with contextlib.ExitStack() as stack:

        def connected() -> socket.socket:
            made = socket.create_connection((server.host, server.port), timeout=PATIENCE_SECONDS)
            return stack.enter_context(made)

        yield connected


def answered(server: MetricsServer, host: str = "localhost") -> int:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_SECONDS)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics", headers={"Host": host})
        return connection.getresponse().status


def test_foreign_names_are_refused(server: MetricsServer) -> None:
    assert answered(server, f"127.0.0.1:{server.port}") == 200
    assert answered(server, "rebound.example") == 421


def test_it_may_be_called_as_its_user_called_it_and_not_otherwise() -> None:
    """By whatever name a loopback address has; this one is understood everywhere."""
    with contextlib.closing(MetricsServer(text, "127.1:0")) as server:
        assert answered(server, f"127.1:{server.port}") == 200
        assert answered(server, "localhost") == 200
        assert answered(server, "rebound.example") == 421


def test_of_too_many_connections_the_oldest_is_closed(
    server: MetricsServer, connect: Callable[[], socket.socket]
) -> None:
    waiting = [connect() for _ in range(serving._MOST_CONNECTIONS + 8)]
    assert answered(server) == 200
    assert [each.recv(100) for each in waiting[:8]] == [b""] * 8


def test_who_asks_byte_by_byte_is_hung_up_on(
    server: MetricsServer, connect: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_LONGEST_SECONDS", 0.0)
    slow = connect()
    slow.sendall(b"GET /met")
    assert answered(server) == 200
    assert slow.recv(100) == b""


def test_closing_does_not_wait_for_who_never_asks(
    connect: Callable[[], socket.socket],
    server: MetricsServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "_STUCK_SECONDS", 0.01)
    monkeypatch.setattr(serving._SilentHandler, "timeout", None)  # as if a byte came now and then
    waiting = connect()
    assert answered(server) == 200  # it has been accepted, too
    server.close()
    assert waiting.recv(100) == b""


# Says its port and the id of the thread that serves; then it has no descriptor, and one, by turns.
FULL = """
import os, resource, threading
from memsampd.exporters import http
from memsampd.exporters.deferred import DeferredPrometheus

http._PAUSE_SECONDS = 0.5  # no other call waits for so long
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
server, held = http.MetricsServer(DeferredPrometheus().text, "127.0.0.1:0"), []
(thread,) = (each for each in threading.enumerate() if each.name == "metrics")
print(server.port, thread.native_id)
while True:
    input()
    for each in threading.enumerate():
        if each not in (thread, threading.current_thread()):
            each.join()  # it has given its answer, and its descriptor is to be back
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        print("full", flush=True)
    input()
    os.close(held.pop())
"""
POLL, PAUSE_MS = "7", hex(500)


def rests(pid: int, tid: int) -> bool:
    """Whether a thread is in a poll(2) of the program's pause."""
    call = Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()
    return call[:1] + call[3:4] == [POLL, PAUSE_MS]


@pytest.mark.parametrize("has_answered", [False, True])
def test_without_a_descriptor_who_asks_waits_and_no_cpu_time_is_used(has_answered: bool) -> None:
    with running(sys.executable, "-u", "-c", FULL, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        port, tid = map(int, process.stdout.readline().split())
        url = f"http://127.0.0.1:{port}/metrics"
        if has_answered:
            with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
                assert answer.status == 200
        for _ in range(2):  # it is said each time
            go_on(process)
            assert process.stdout.readline() == "full\n"
            with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as asking:
                asking.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
                assert select.select([process.stderr], [], [], PATIENCE_SECONDS)[0]
                assert "not served until there is room" in process.stderr.readline()
                wait_for(lambda: rests(process.pid, tid))
                go_on(process)
                assert b"memsampd_build_info" in asking.makefile("rb").read()
        process.kill()
        assert process.stderr.read() == ""


def test_nothing_is_said_of_those_who_go(
    server: MetricsServer,
    connect: Callable[[], socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(serving._SilentHandler, "timeout", 0.01)
    idle, reset = connect(), connect()
    reset.sendall(b"GET /metrics HTTP/1.0\r\n")
    reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    reset.close()
    assert idle.recv(100) == b""
    server.close()
    assert capfd.readouterr() == ("", "")
