"""The web process: its API, what it must not be able to do, and what becomes of it."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace
from schemathesis import Case, GenerationMode
from serving import ask, document, lasting_node_status, now_snapshot, serving, until_known
from tracees import descriptors, running
from waiting import PATIENCE_SECONDS, wait_for

from memsampd.errors import CapabilityError
from memsampd.names import HELPER_PREFIX
from memsampd.web import process as web_process
from memsampd.web.openapi import openapi_document
from memsampd.web.process import WebProcess
from memsampd.web.state import KEPT_EVENTS

TARGET = "/api/v1/targets/4242-99"


@pytest.fixture(scope="module")
def web() -> Iterator[WebProcess]:
    with serving(now_snapshot(), now_snapshot(5, pid=77)) as process:
        process.publish(now_snapshot(phase=2))
        process.publish_node(lasting_node_status())
        wait_for(lambda: document(process, "/api/v1/targets")["node"], "the node")
        yield process


@pytest.fixture(scope="module", autouse=True)
def idlers(web: WebProcess) -> Iterator[list[socket.socket]]:
    """Connections without a whole request: they wait for their end while other tests run."""
    with contextlib.ExitStack() as stack:
        connections = []
        for sent in (b"", b"GET / HTT", b"GET /healthz HTTP/1.1\r\nHost: localhost"):
            connection = socket.create_connection((web.host, web.port), timeout=PATIENCE_SECONDS)
            connections.append(stack.enter_context(connection))
            connection.sendall(sent)
        yield connections


# --- the API


DESCRIBED = openapi_document()["paths"]


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        (path, mode)
        for path, described in DESCRIBED.items()
        for mode in GenerationMode
        if path != "/api/v1/events"
        # Where there are no parameters, nothing can be asked wrongly.
        and (mode is GenerationMode.POSITIVE or described["get"]["parameters"])
    ],
)
def test_the_api_is_as_described_for_whatever_is_asked(
    web: WebProcess, path: str, mode: GenerationMode
) -> None:
    operation = schemathesis.openapi.from_url(f"{web.url}api/v1/openapi.json")[path]["GET"]

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Case[Any]) -> None:
        if path.endswith("/windows") and mode is GenerationMode.POSITIVE:
            case.path_parameters = {"id": "4242-99"}
        case.call_and_validate(timeout=PATIENCE_SECONDS)

    check()


@pytest.mark.parametrize("part", ["", "/phases", "/curves", "/windows"])
def test_every_document_of_a_target_is_as_described(web: WebProcess, part: str) -> None:
    described = schemathesis.openapi.from_url(f"{web.url}api/v1/openapi.json")
    case = described["/api/v1/targets/{id}" + part]["GET"].Case(path_parameters={"id": "77-99"})
    answer = case.call_and_validate(timeout=PATIENCE_SECONDS)
    assert answer.status_code == 200
    assert answer.json()["target"] == "77-99"


@pytest.mark.parametrize(
    ("path", "status", "cause"),
    [
        (f"{TARGET}/windows?points=0", 400, "points='0' is no number from 1 to 2000"),
        (f"{TARGET}/windows?points=1.5", 400, "points=1.5 is not a whole number"),
        (f"{TARGET}/windows?points=nan", 400, "points='nan' is no number from 1 to 2000"),
        (f"{TARGET}/windows?since=yesterday", 400, "since='yesterday' is no number from 0"),
        (f"{TARGET}/windows?since=1&since=2", 400, "since is given more than once"),
        (f"{TARGET}/windows?sinse=1", 400, "there is no parameter 'sinse' here, there are"),
        (f"{TARGET}/phases?x=1", 400, "there is no parameter 'x' here"),
        ("/api/v1/targets/1-1", 404, "no target '1-1' is known"),
        ("/api/v2/targets", 404, "there is nothing at /api/v2/targets"),
        ("/../../etc/passwd", 404, "there is nothing at"),
        ("/vendor/README.md", 404, "there is nothing at"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_cause(
    web: WebProcess, path: str, status: int, cause: str
) -> None:
    got, _, body = ask(web.url, path)
    assert got == status
    assert body["version"] == 1
    assert body["cause"].startswith(cause)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/", "/metrics", TARGET, "/api/v1/events"])
def test_it_is_read_only(web: WebProcess, method: str, path: str) -> None:
    status, headers, body = ask(web.url, path, method)
    assert status == 405
    assert "GET" in headers["allow"]
    assert body["cause"] == f"{method} is not served here"


def test_it_may_be_called_as_its_user_called_it_and_not_otherwise() -> None:
    """By whatever name a loopback address has; this one is understood everywhere."""
    with contextlib.closing(WebProcess("127.1:0")) as web:
        assert ask(web.url, "/api/v1/targets")[0] == 200
        assert ask(web.url, "/api/v1/targets", Host="localhost")[0] == 200
        assert ask(web.url, "/api/v1/targets", Host="evil.example")[0] == 421


@pytest.mark.parametrize("path", ["/", "/metrics", TARGET, "/nothing", "/main.js"])
def test_every_answer_confines_the_page_and_lets_no_stranger_read_it(
    web: WebProcess, path: str
) -> None:
    _, headers, _ = ask(web.url, path, Origin="http://evil.example")
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["access-control-allow-origin"] is None


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.1.2.3", ""])
def test_another_name_for_this_machine_is_refused(web: WebProcess, host: str) -> None:
    status, _, body = ask(web.url, "/api/v1/targets", Host=host)
    assert status == 421
    assert body["cause"] == f"this server is not called {host!r}"
    assert ask(web.url, "/api/v1/targets", Host="localhost:80")[0] == 200


@pytest.mark.parametrize(
    "nonsense",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /" + b"a" * 100_000,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_is_answered_with_4xx_or_nothing(web: WebProcess, nonsense: bytes) -> None:
    pid = web.pid
    with socket.create_connection((web.host, web.port), timeout=PATIENCE_SECONDS) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(nonsense)
            with contextlib.suppress(OSError):  # it may have hung up by now
                connection.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = connection.recv(100)
    assert answer[:10] in (b"", b"HTTP/1.1 4")
    assert document(web, "/healthz")["status"] == "ok"
    assert web.pid == pid


def test_windows_tell_what_ran_between_two_snapshots(web: WebProcess) -> None:
    found = document(web, f"{TARGET}/windows?points=5")
    columns = len(found["start_unix_seconds"])
    assert 1 <= columns <= 5
    for name in ("cpu_seconds", "unknown_cpu_seconds", "miss_ratio", "low", "high"):
        assert len(found[name]) == columns
    assert abs(found["until_unix_seconds"] - time.time()) < 600
    assert document(web, f"{TARGET}/windows?since=9999999999")["target"] == "4242-99"


def test_metrics_are_those_of_all_targets(web: WebProcess) -> None:
    _, headers, body = ask(web.url, "/metrics")
    assert headers["content-type"].startswith("text/plain")
    for pid in (4242, 77):
        assert f'memsampd_target_up{{command="sqlite3",pid="{pid}"}} 1.0'.encode() in body
    _, headers, body = ask(web.url, "/metrics", Accept="application/openmetrics-text")
    assert headers["content-type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


# --- events


class Listener:
    """A client of /api/v1/events."""

    def __init__(self, web: WebProcess, receive_bytes: int = 1 << 16, **headers: str) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE_SECONDS)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.connect((web.host, web.port))
        lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
        request = "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n" + "".join(lines) + "\r\n"
        self.socket.sendall(request.encode())
        self._file = self.socket.makefile("r", encoding="utf-8", newline="\n")
        while self._file.readline().strip() != "retry: 2000":
            pass

    def next_kind(self) -> str:
        self.id = ""
        while not (line := self._file.readline()).startswith("event: "):
            assert line, "the stream has ended"
            if line.startswith("id: "):
                self.id = line.removeprefix("id: ").strip()
        return line.removeprefix("event: ").strip()

    def close(self) -> None:
        self._file.close()
        self.socket.close()


def test_events_come_as_they_happen_and_go_on_where_a_client_was() -> None:
    with serving(now_snapshot(phase=0)) as web:
        listener = Listener(web)
        web.publish(now_snapshot(phase=2))
        assert listener.next_kind() == "phase"
        web.publish(now_snapshot(pid=77))
        assert [listener.next_kind() for _ in range(2)] == ["target", "phase"]
        web.publish(now_snapshot(pid=77, alive=False))
        assert listener.next_kind() == "end"
        start, _, number = listener.id.partition("-")
        assert number == "6"
        listener.close()
        again = Listener(web, Last_Event_ID=f"{start}-2")
        assert [again.next_kind() for _ in range(4)] == ["phase", "target", "phase", "end"]
        again.close()
        for wrong in ("x", "2", f"{start}-", f"{start}-x"):
            assert ask(web.url, "/api/v1/events", **{"Last-Event-ID": wrong})[0] == 400


def test_a_reader_that_does_not_read_delays_nobody_and_too_many_are_refused() -> None:
    with serving(now_snapshot(phase=0)) as web:
        sleepers = [Listener(web, 2048) for _ in range(32)]
        assert ask(web.url, "/api/v1/events")[0] == 503
        for number in range(KEPT_EVENTS + 100):  # more than wait for anybody
            web.publish(now_snapshot(phase=number % 2))
            if number % 100 == 0:
                assert document(web, "/healthz")["targets"] == 1
        for sleeper in sleepers:
            sleeper.close()
        wait_for(lambda: _listens(web), "room for a listener")


def _listens(web: WebProcess) -> bool:
    """Whether there is room for one more."""
    with socket.create_connection((web.host, web.port), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return connection.recv(12).endswith(b"200")


# --- what it may do


def test_it_has_no_rights(web: WebProcess) -> None:
    status = dict(
        line.split(":", 1)
        for line in Path(f"/proc/{web.pid}/status").read_text(encoding="utf-8").splitlines()
    )
    for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[kind], 16) == 0, kind
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Threads"].strip() == "1"
    if os.geteuid() == 0:
        (user,) = set(status["Uid"].split())
        assert user in ("2061133858", "65534")
        assert int(status["CapBnd"], 16) == 0
        assert status["Groups"].split() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into it")
def test_it_holds_no_descriptor_of_ours(web: WebProcess) -> None:
    links = [os.readlink(link) for link in Path(f"/proc/{web.pid}/fd").iterdir()]
    strangers = [
        link
        for link in links
        if not link.startswith(("socket:", "pipe:", "anon_inode:[event", "/memfd:memsampd-web"))
    ]
    assert set(strangers) <= {"/dev/null"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hand out capabilities")
def test_a_user_with_ambient_capabilities_has_none_left() -> None:
    """As under systemd with ``User=`` and ``AmbientCapabilities=``."""
    script = (
        "import ctypes, os\n"
        "from memsampd.web.confine import confine\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.prctl(8, 1, 0, 0, 0)\n"  # PR_SET_KEEPCAPS
        "os.setresuid(12345, 12345, 12345)\n"
        "header = (ctypes.c_uint32 * 2)(0x20080522, 0)\n"
        "assert libc.capset(header, (ctypes.c_uint32 * 6)(*[1 << 13] * 3)) == 0\n"
        "assert libc.prctl(47, 2, 13, 0, 0) == 0\n"  # CAP_NET_RAW becomes ambient
        "status = open('/proc/self/status').read()\n"
        "assert 'CapAmb:\\t0000000000002000' in status\n"
        "confine(os.getppid())\n"
        "print(open('/proc/self/status').read())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    status = dict(line.split(":", 1) for line in done.stdout.splitlines() if line)
    for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[kind], 16) == 0, kind


def test_it_is_named_as_a_process_of_ours(web: WebProcess) -> None:
    assert Path(f"/proc/{web.pid}/comm").read_text() == f"{HELPER_PREFIX}web\n"


def test_an_address_in_use_is_refused(web: WebProcess) -> None:
    with pytest.raises(CapabilityError, match="is in use; choose another address"):
        WebProcess(f"127.0.0.1:{web.port}")
    other = WebProcess(f"127.0.0.1:{web.port}", any_port=True)
    assert other.port not in (0, web.port)
    other.close()


# --- its life


def children() -> set[str]:
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.update((task / "children").read_text().split())
    return found


def test_it_is_closed_at_once_and_leaves_nothing() -> None:
    before, threads = children(), set(threading.enumerate())
    with serving(now_snapshot()) as web:
        port = web.port
        listener = Listener(web)
        assert len(children() - before) == 1
    listener.close()
    assert children() == before
    assert set(threading.enumerate()) <= threads
    web.publish(now_snapshot())
    web.close()
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_killed_it_comes_back_with_all_live_targets(caplog: pytest.LogCaptureFixture) -> None:
    with serving(now_snapshot(), now_snapshot(pid=77)) as web:
        web.publish(now_snapshot(pid=77, alive=False))
        web.publish_node(lasting_node_status())
        until_known(web, 1)
        first = web.pid
        assert first is not None
        with caplog.at_level(logging.WARNING, "memsampd"):
            os.kill(first, signal.SIGKILL)
            wait_for(lambda: web.pid not in (None, first), "another web process")
        assert [target["pid"] for target in until_known(web, 1)] == [4242]
        wait_for(lambda: document(web, "/api/v1/targets")["node"], "the node")
        assert "the web process ended (SIGKILL): it starts again in 0.5 s" in caplog.text


def test_a_listener_learns_that_another_one_took_its_place() -> None:
    """Numbers of events begin anew: what happened meanwhile is not told, and that is."""
    with serving(now_snapshot(phase=0)) as web:
        listener = Listener(web)
        web.publish(now_snapshot(phase=1))
        assert listener.next_kind() == "phase"
        first, before = web.pid, listener.id
        assert first is not None
        os.kill(first, signal.SIGKILL)
        listener.close()
        wait_for(lambda: web.pid not in (None, first), "another web process")
        until_known(web, 1)
        again = Listener(web, Last_Event_ID=before)
        assert [again.next_kind() for _ in range(3)] == ["gap", "target", "phase"]
        assert again.id != before
        again.close()


def test_one_that_hangs_costs_nothing_and_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_process, "_STALLED_SECONDS", 1.0)
    with serving(now_snapshot()) as web:
        first = web.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        until = time.monotonic() + 120
        sent = 0
        while web.pid in (None, first) and time.monotonic() < until:
            web.publish(now_snapshot(16))
            sent += 1
            time.sleep(0.005)
        assert web.pid != first
        monkeypatch.undo()  # the next one may take its time
        web.publish(now_snapshot(phase=1, pid=77))
        assert {target["pid"] for target in until_known(web, 2)} == {4242, 77}


def test_one_that_cannot_start_is_tried_again_and_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with caplog.at_level(logging.WARNING, "memsampd"):
        web = WebProcess("127.0.0.1:0")
        try:
            web.publish(now_snapshot())
            wait_for(lambda: "in 1 s" in caplog.text, "a second try")
        finally:
            web.close()
    assert "the web process ended (exit status 1): it starts again in 0.5 s" in caplog.text


def test_a_failed_start_leaves_nothing_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = children()
    with monkeypatch.context() as without, caplog.at_level(logging.WARNING, "memsampd"):
        without.setattr(os, "pidfd_open", refused)
        web = WebProcess("127.0.0.1:0")
        web.publish(now_snapshot())
        wait_for(lambda: "in 0.5 s" in caplog.text, "a first try")
        opened = descriptors()
        wait_for(lambda: "in 1 s" in caplog.text, "a second try")
        # One that is under way may have some.
        wait_for(lambda: children() == before and descriptors() <= opened, "nothing left")
    try:
        until_known(web, 1)
    finally:
        web.close()


def test_what_cannot_be_sent_ends_neither_thread_nor_http(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(now_snapshot()) as web:
        with caplog.at_level(logging.WARNING, "memsampd"):
            web.publish(now_snapshot(pid=77, trouble=threading.Lock()))
            wait_for(lambda: "an error of ours" in caplog.text, "a message in the log")
        web.publish(now_snapshot(pid=77))
        assert {target["pid"] for target in until_known(web, 2)} == {4242, 77}


def test_nothing_of_the_configuration_is_told_to_every_reader(web: WebProcess) -> None:
    web.publish_node(replace(lasting_node_status(), reload_trouble="line 3: password = 'secret'"))

    def trouble() -> str:
        node = document(web, "/api/v1/targets")["node"]
        return str(node["reload_trouble"])

    told = wait_for(trouble, "the trouble")
    assert told == "the configuration could not be read again: the daemon's log says why"


def test_it_ends_with_its_parent() -> None:
    script = (
        "import sys, time\n"
        "from memsampd.web.process import WebProcess\n"
        "web = WebProcess('127.0.0.1:0')\n"
        "while web.pid is None: time.sleep(0.01)\n"
        "print(web.pid, web.url, flush=True)\n"
        "time.sleep(1e6)\n"
    )
    with running(sys.executable, "-c", script) as it:
        assert it.stdout is not None
        pid, url = it.stdout.readline().split()
        wait_for(lambda: ask(url, "/healthz")[0] == 200, "an answer")
    wait_for(lambda: is_gone(pid), "the end of the web process")


def is_gone(pid: str) -> bool:
    """Whether a process has ended; who inherited it may not have asked for its status yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


# --- idlers, who have waited all the while


def test_a_connection_without_a_request_is_closed(idlers: list[socket.socket]) -> None:
    assert [each.recv(100) for each in idlers] == [b""] * 3
