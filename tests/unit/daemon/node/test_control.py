"""The control socket: whatever clients send, the daemon answers the others."""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracees import running

from memsampd.daemon.node.control import ControlServer
from memsampd.daemon.node.control_client import ControlClient
from memsampd.daemon.node.peers import Peer
from memsampd.daemon.node.protocol import Document, Request
from memsampd.errors import CapabilityError, TargetError
from memsampd.sampler.process.identity import read_stat

NOBODY = 65534
STATUS = b'{"version":1,"command":"status"}\n'


class Served:
    """A server whose owner turns when a test says so, and whose clock it tells."""

    def __init__(self, path: Path) -> None:
        self.now = 0.0
        self.asked: list[tuple[Request, Peer]] = []
        self.answer: Document = {"status": {}}
        self.server = ControlServer(path, self.handle, lambda: self.now)

    def handle(self, request: Request, peer: Peer) -> Document:
        self.asked.append((request, peer))
        if request.pid == 1:
            raise TargetError("it is gone", "choose another")
        if request.pid == 2:
            raise ZeroDivisionError("a mistake of ours")
        if request.pid == 3:
            raise TargetError("\udcff is gone", "choose another")
        return self.answer

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(self.server.path))
        client.setblocking(False)
        return client

    def told(self, client: socket.socket, sent: bytes, turns: int = 3) -> list[dict[str, Any]]:
        """What is answered within some turns."""
        received = b""
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            client.sendall(sent)
        for _ in range(turns):
            self.server.serve()
            with suppress(BlockingIOError, ConnectionResetError):
                received += client.recv(1 << 20)
        return [json.loads(line) for line in received.splitlines()]


@contextmanager
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory() as name:
        running = Served(Path(name) / "s")
        try:
            yield running
        finally:
            running.server.close()


def test_a_request_is_answered() -> None:
    with served() as running, running.connect() as client:
        assert running.told(client, STATUS) == [{"ok": True, "version": 1, "status": {}}]
        ((request, peer),) = running.asked
        assert (request.command, request.pid) == ("status", None)
        assert (peer.uid, peer.is_privileged) == (os.geteuid(), True)


def test_failures_are_told_with_cause_and_remedy_and_the_next_request_is_answered() -> None:
    with served() as running, running.connect() as client:
        (told,) = running.told(client, b'{"version":1,"command":"attach","pid":1}\n')
        assert told == {
            "ok": False,
            "version": 1,
            "cause": "it is gone",
            "remedy": "choose another",
        }
        (told,) = running.told(client, b'{"version":1,"command":"attach","pid":2}\n')
        assert "a mistake of ours" in told["cause"]
        assert running.told(client, STATUS)[0]["ok"]


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"\n", "no request"),
        (b"{}\n", "no request"),
        (b'{"version":1,"command":"format"}\n', "no request"),
        (b'{"version":1,"command":"list","why":1}\n', "no request"),
        (b'{"version":1,"command":"attach","pid":"4"}\n', "no request"),
        (b'{"version":1,"command":"attach","pid":1e99}\n', "no request"),
        (b"\xff\xfe\n", "no request"),
        (b"[" * 16000 + b"\n", "no request"),
        (b'{"version":7,"command":"list"}\n', "version 7 of the protocol is not known"),
        (b"x" * 20_000, "16384 bytes at most"),
    ],
)
def test_what_is_no_request_is_said_to_be_none(sent: bytes, words: str) -> None:
    with served() as running, running.connect() as client, running.connect() as other:
        (told,) = running.told(client, sent)
        assert (told["ok"], running.asked) == (False, [])
        assert words in told["cause"]
        assert told["remedy"]
        assert running.told(other, STATUS)[0]["ok"]


def test_an_answer_that_cannot_be_written_is_an_error_of_ours_and_the_next_one_comes() -> None:
    with served() as running, running.connect() as client:
        running.answer = {"name": "\udcff"}
        (told,) = running.told(client, STATUS)
        assert "internal error" in told["cause"]
        running.answer = {}
        assert running.told(client, STATUS)[0]["ok"]


def test_a_client_whose_answer_cannot_even_be_made_is_hung_up_on_alone() -> None:
    with served() as running, running.connect() as client, running.connect() as other:
        assert running.told(client, b'{"version":1,"command":"attach","pid":3}\n') == []
        assert client.recv(1) == b""
        assert running.told(other, STATUS)[0]["ok"]


def test_a_request_may_come_in_parts_and_several_at_once() -> None:
    with served() as running, running.connect() as client:
        for part in (STATUS[:3], STATUS[3:9]):
            assert running.told(client, part) == []
        assert len(running.told(client, STATUS[9:] + STATUS + STATUS)) == 3


def test_who_is_slow_is_hung_up_on() -> None:
    with served() as running, running.connect() as client:
        assert running.told(client, STATUS[:5]) == []
        running.now += 11
        running.server.serve()
        assert client.recv(10) == b""


def test_who_does_not_read_is_hung_up_on_and_nobody_waits_for_it() -> None:
    with served() as running, running.connect() as client, running.connect() as other:
        running.answer = {"text": "x" * (4 << 20)}
        running.told(client, b"", 1)
        client.send(STATUS)
        running.server.serve()
        running.server.serve()
        running.answer = {"status": {}}
        assert running.told(other, STATUS)[0]["ok"]
        running.now += 11
        running.server.serve()
        while client.recv(1 << 20):
            pass


def test_connections_are_bounded_in_number() -> None:
    with served() as running:
        clients = [running.connect() for _ in range(60)]
        for _ in range(60):
            running.server.serve()
        clients += [running.connect() for _ in range(60)]
        for _ in range(60):
            running.server.serve()
        assert "too many connections" in clients[-1].recv(1000).decode()
        for client in clients:
            client.close()
        running.server.serve()
        with running.connect() as client:
            assert running.told(client, STATUS)[0]["ok"]


def test_a_user_may_not_ask_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from memsampd.daemon.node import control

    monkeypatch.setattr(control, "peer_at", lambda to: Peer(4242, 4242, is_privileged=False))
    with served() as running, running.connect() as client:
        told = running.told(client, STATUS * 100, turns=10)
        assert [each["ok"] for each in told] == [True] * 40 + [False]
        assert "too many requests" in told[-1]["cause"]
        with running.connect() as again:
            running.now += 1
            assert len(running.told(again, STATUS * 5)) == 5


@given(st.lists(st.binary(max_size=300), max_size=8), st.booleans())
def test_garbage_hurts_nobody(parts: list[bytes], newline: bool) -> None:
    with served() as running, running.connect() as client, running.connect() as other:
        for part in parts:
            for told in running.told(client, part + b"\n" * newline):
                assert not told["ok"] or running.asked
        assert running.told(other, STATUS)[0]["ok"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.sampled_from(["list", "attach", "detach", "nothing"]),
)
def test_any_json_is_answered(value: object, command: str) -> None:
    request = {"version": 1, "command": command, "pid": value}
    with served() as running, running.connect() as client:
        for sent in (value, request):
            told = running.told(client, json.dumps(sent).encode() + b"\n")
            assert len(told) == 1
        for asked, _ in running.asked:
            assert asked.pid is None or isinstance(asked.pid, int)


def test_a_lock_keeps_a_second_server_away_and_a_dead_ones_socket_is_replaced() -> None:
    with served() as running:
        path = running.server.path
        with pytest.raises(CapabilityError, match=f"process {os.getpid()}"):
            Served(path)
        assert path.exists()
    with tempfile.TemporaryDirectory() as name:
        left = socket.socket(socket.AF_UNIX)
        left.bind(f"{name}/s")
        left.close()
        running = Served(Path(name) / "s")
        with running.connect() as client:
            assert running.told(client, STATUS)[0]["ok"]
        running.server.close()
        running.server.close()
        assert not Path(name, "s").exists()


def test_a_socket_in_somebody_elses_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CapabilityError):
        Served(tmp_path / "file" / "s")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(CapabilityError, match="written to by others"):
        Served(tmp_path / "open" / "s")
    if os.geteuid() == 0:
        (tmp_path / "theirs").mkdir()
        os.chown(tmp_path / "theirs", 65534, 65534)
        with pytest.raises(CapabilityError, match="no directory of yours"):
            Served(tmp_path / "theirs" / "s")


def test_a_client_says_what_is_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(CapabilityError, match="no daemon serves"):
        ControlClient(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / "s"))
        deaf.listen()
        with (
            ControlClient(tmp_path / "s", timeout_seconds=0.05) as client,
            pytest.raises(CapabilityError, match="does not answer"),
        ):
            client.ask("list")


def test_without_descriptors_the_owner_does_not_turn_in_vain() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with served() as running, running.connect() as client:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
            running.server.serve()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert not select.select([running.server], [], [], 0)[0]
        assert running.told(client, STATUS) == []
        running.now += 1.0
        assert running.told(client, STATUS)[0]["ok"]


def test_what_is_no_socket_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("dear")
    with pytest.raises(CapabilityError, match="no socket"):
        ControlServer(tmp_path / "s", lambda request, peer: {})
    assert (tmp_path / "s").read_text() == "dear"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_a_daemon_of_another_user_is_told_nothing(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as false:
        false.bind(str(tmp_path / "s"))
        os.seteuid(NOBODY)
        try:
            false.listen()  # the kernel notes who listens
        finally:
            os.seteuid(0)
        with pytest.raises(CapabilityError, match="another user"):
            ControlClient(tmp_path / "s")


def test_users_own_what_all_ids_say(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    mine = folder.stat().st_uid
    status = folder / "status"
    group = mine + 7
    gids = f"Gid:\t{group}\t{group}\t{group}\t{group}\n"
    status.write_text(f"Name:\tx\nUid:\t{mine}\t{mine}\t{mine}\t{mine}\n{gids}")
    assert Peer(mine, group, False).owns(7, proc=tmp_path)
    assert not Peer(mine + 1, group, False).owns(7, proc=tmp_path)
    assert not Peer(mine, group, False).owns(8, proc=tmp_path)
    assert not Peer(mine, group + 1, False).owns(7, proc=tmp_path)
    status.write_text(f"Uid:\t{mine}\t{mine + 1}\t{mine}\t{mine}\n{gids}")  # a setuid program
    assert not Peer(mine, group, False).owns(7, proc=tmp_path)
    others = gids.replace(str(group), str(group + 1), 1)
    status.write_text(f"Uid:\t{mine}\t{mine}\t{mine}\t{mine}\n{others}")
    assert not Peer(mine, group, False).owns(7, proc=tmp_path)


@contextmanager
def acting(code: str) -> Iterator[int]:
    """The pid of a process that does something with the C library, and waits."""
    whole = f"import ctypes,os,sys\nlibc = ctypes.CDLL(None)\n{code}\nprint(flush=True)\ninput()"
    with running(sys.executable, "-c", whole) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child.pid


def test_users_do_not_own_what_may_not_be_dumped() -> None:
    peer = Peer(os.geteuid() or NOBODY, os.getegid() or NOBODY, False)
    became = f"os.setgid({peer.gid}); os.setuid({peer.uid}); libc.prctl(4, 1)"
    with acting(became) as pid:
        start_ticks = read_stat(pid).start_ticks
        assert peer.owns(pid)
        assert peer.owns(pid, start_ticks)
        assert not peer.owns(pid, start_ticks - 1)
    with acting(f"{became}; libc.prctl(4, 0)") as pid:
        assert Path(f"/proc/{pid}").stat().st_uid == peer.uid
        assert not peer.owns(pid)


@pytest.mark.parametrize("space", ["\\x0b", "\\r", "\\n", "\\x1c", "\\xc2\\x85", "\\x0c"])
def test_a_name_makes_nobody_the_owner(space: str) -> None:
    """It comes before the ids, and may be anything that fits in 15 bytes."""
    name = f"libc.prctl(15, b'x{space}Uid:\\t{NOBODY}')"
    with acting(name) as pid:
        assert not Peer(NOBODY, os.getegid(), False).owns(pid)
        assert Peer(os.geteuid(), os.getegid(), False).owns(pid)
    if os.geteuid() == 0:  # all that it takes to look like that user's
        also = f"os.setegid({NOBODY}); os.seteuid({NOBODY}); libc.prctl(4, 1)"
        with acting(f"{name}; {also}") as pid:
            assert not Peer(NOBODY, NOBODY, False).owns(pid)
