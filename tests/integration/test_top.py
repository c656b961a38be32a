"""``memsampd top`` in a real terminal of 80 x 24, with tmux in place of a person."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import MEMSAMPD
from daemons import daemon
from documents_server import served
from invented import make_snapshot
from msgspec.structs import replace
from tracees import running
from waiting import PATIENCE_SECONDS

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Terminal:
    """A shell in a terminal."""

    def __init__(self, folder: Path) -> None:
        self._tmux = ["tmux", "-f", "/dev/null", "-L", f"memsampd-{uuid.uuid4().hex}"]
        shell = "env PS1='ready$ ' TERM=tmux-256color bash --norc --noprofile"
        self._do("new-session", "-d", "-x", "80", "-y", "24", "-c", str(folder), shell)

    def type(self, *keys: str) -> None:
        self._do("send-keys", *keys)

    def resize(self, columns: int, lines: int) -> None:
        self._do("resize-window", "-x", str(columns), "-y", str(lines))

    def screen(self) -> list[str]:
        shown = subprocess.run(
            [*self._tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True
        )
        return shown.stdout.splitlines()

    def wait(self, holds: Callable[[list[str]], object]) -> list[str]:
        """Return the screen once this holds of it."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not holds(screen := self.screen()):
            assert time.monotonic() < end, "\n".join(screen)
            time.sleep(0.1)
        return screen

    def close(self) -> None:
        self._do("kill-server")

    def _do(self, *words: str) -> None:
        subprocess.run([*self._tmux, *words], check=True)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    one = Terminal(tmp_path)
    one.wait(lambda screen: "ready$" in "".join(screen))
    yield one
    one.close()


def pids(screen: list[str]) -> list[str]:
    """The first cells below the head of the table."""
    return [line.split()[0] for line in screen[2:] if line.split() and line.split()[0].isdigit()]


@needs_tmux
def test_rows_sorting_resizing_and_a_terminal_as_it_was(terminal: Terminal) -> None:
    snapshots = [make_snapshot(3, pid=11), make_snapshot(1, pid=222)]
    idle = replace(make_snapshot(2, pid=3333), idle_seconds=9.0)
    snapshots.append(replace(idle, target=replace(idle.target, command="aardvark")))
    with served(snapshots) as url:
        terminal.type("echo as it was", "Enter")
        before = terminal.wait(lambda screen: "as it was" in screen)
        terminal.type(f"{MEMSAMPD} top --url {url}", "Enter")
        screen = terminal.wait(  # all of it: a busy machine shows rows before what is below them
            lambda screen: (
                len(pids(screen)) == 3
                and any(line.startswith("not known: curves (25%)") for line in screen)
            )
        )
        assert len(screen) <= 24
        assert "3 targets, 1 idle" in screen[0]
        assert pids(screen)[0] == "11"  # the most MB/s
        terminal.type("c")
        terminal.wait(lambda screen: pids(screen)[:1] == ["3333"])
        terminal.type("r")
        terminal.wait(lambda screen: pids(screen)[-1:] == ["3333"])
        terminal.type("n")
        terminal.wait(lambda screen: "present phases" in screen[0])
        del snapshots[0]
        terminal.wait(lambda screen: pids(screen) == ["222", "3333"])
        terminal.resize(60, 15)
        small = terminal.wait(
            lambda screen: len(screen) <= 15 and "2 targets" in screen[0] and len(pids(screen)) == 2
        )
        assert max(map(len, small)) <= 60
        terminal.resize(80, 24)
        terminal.type("q")
        after = terminal.wait(lambda screen: sum("ready$" in line for line in screen) >= 3)
    kept = [line for line in before if line.strip() and line != "ready$"]
    assert [line for line in after if line in kept] == kept
    terminal.type("stty -a | grep -c ' echo '", "Enter")
    terminal.wait(lambda screen: "1" in screen)  # keys are shown again


@needs_tmux
def test_a_server_that_has_gone_is_said_and_waited_for(terminal: Terminal) -> None:
    with served([make_snapshot(1, pid=222)]) as url:
        terminal.type(f"{MEMSAMPD} top --url {url}", "Enter")
        terminal.wait(lambda screen: pids(screen) == ["222"])
    terminal.wait(lambda screen: screen[0].startswith("no targets from http"))
    terminal.type("q")
    terminal.wait(lambda screen: any("ready$" in line for line in screen[-24:]))


def test_processes_of_our_own_without_a_daemon() -> None:
    busy = (sys.executable, "-c", "while True: sum(range(1000))")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with running(*busy) as one, running(*busy) as other:
        pids = [one.pid, other.pid]
        chosen = [word for pid in pids for word in ("--pid", str(pid))]
        done = subprocess.run(
            [MEMSAMPD, "top", "--once", "--json", "--duration", "1.5", *chosen],
            capture_output=True,
            text=True,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)  # these two have not ended
    targets = json.loads(done.stdout)["targets"]
    assert sorted(target["pid"] for target in targets) == sorted(pids)
    assert all(target["alive"] for target in targets)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert 0 < sum(target["cost"]["own_cpu_seconds"] for target in targets) <= used


def test_a_daemon_by_its_socket(tmp_path: Path) -> None:
    spin = "while True: sum(range(1000))"
    with running(sys.executable, "-c", spin) as busy, daemon(tmp_path / "d") as running_daemon:
        options = ["--socket", str(running_daemon.socket)]
        subprocess.run([MEMSAMPD, "attach", "--daemon", str(busy.pid), *options], check=True)
        running_daemon.wait_for(lambda targets: targets[busy.pid].get("bursts"))
        shown = subprocess.run(
            [MEMSAMPD, "top", "--once", *options], capture_output=True, text=True, check=True
        )
    head, line = shown.stdout.splitlines()
    assert "L1d %" in head
    assert line.split()[0] == str(busy.pid)
