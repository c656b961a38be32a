"""Cleans up in the target when memsampd is killed: run as ``python -m ...guardian PID``.

The kernel kills shadows together with their tracer, but a dead shadow stays a zombie child of the
target until the target collects it. The guardian is a process of its own, in its own session, that
knows of each shadow alive (lines ``born N`` and ``gone N`` on its standard input, N in the target's
PID namespace; ``due T`` before and ``settled 0`` after births, T in clock ticks since boot) and has
them collected when that input ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from memsampd.errors import CaptureError
from memsampd.sampler.shadow.collecting import collect, leftovers
from memsampd.sampler.shadow.site import SiteFinder

_PATIENCE_SECONDS = 10.0
_DEATH_SECONDS = 0.2
_READY = b"ready\n"


class Guardian:
    """The handle that memsampd holds on its guardian.

    Args:
        pid: the target.
    """

    def __init__(self, pid: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._input: IO[bytes] = self._process.stdin
        self._is_ready = False

    def check(self) -> None:
        """Make sure that it is there: no shadow is made unguarded.

        Raises:
            CaptureError: it did not start, or was killed.
        """
        assert self._process.stdout is not None
        if not self._is_ready:
            self._is_ready = self._process.stdout.readline() == _READY
        if not self._is_ready or self._process.poll() is not None:
            raise CaptureError(
                "no-guardian",
                "the process that guards the target against our own death is gone",
                "attach again",
            )

    def due(self) -> None:
        """Shadows are about to be born, whose numbers nobody knows yet."""
        ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
        self._say(f"due {int(ticks)}\n")

    def settled(self) -> None:
        """They have been born and told of, or were not."""
        self._say("settled 0\n")

    def born(self, ns_pid: int) -> None:
        """A shadow lives."""
        self._say(f"born {ns_pid}\n")

    def gone(self, ns_pid: int) -> None:
        """Nothing is left of it."""
        self._say(f"gone {ns_pid}\n")

    def _say(self, line: str) -> None:
        try:
            self._input.write(line.encode())
            self._input.flush()
        except BrokenPipeError:
            pass  # it was killed; what it guarded against has not happened yet

    def close(self) -> None:
        """Dismiss it; it first collects what is left."""
        if not self._input.closed:
            with contextlib.suppress(BrokenPipeError):
                self._input.close()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()


def guard(pid: int, lines: IO[str], proc: Path = Path("/proc")) -> None:
    """Follow the births and deaths of shadows; at the end of input, collect those left.

    Args:
        pid: the target.
        lines: "due T", "born N", "settled 0" and "gone N".
        proc: root of the proc file system.
    """
    alive: set[int] = set()
    since_ticks: int | None = None
    for line in lines:
        what, _, number = line.partition(" ")
        if what in ("due", "settled"):
            since_ticks = int(number) if what == "due" else None
        else:
            (alive.add if what == "born" else alive.discard)(int(number))
    finder = SiteFinder(pid, proc)
    if since_ticks is not None:
        time.sleep(_DEATH_SECONDS)  # those whose births were not told are dying just now
    alive.update(ns_pid for _, ns_pid in leftovers(pid, proc, since_ticks=since_ticks))
    if alive:
        collect(
            pid,
            sorted(alive),
            finder,
            any_state=True,
            patience_seconds=_PATIENCE_SECONDS,
            proc=proc,
        )


def main() -> None:
    """Guard the process named on the command line."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    os.write(sys.stdout.fileno(), _READY)
    with open(sys.stdin.fileno(), closefd=False) as lines:
        guard(int(sys.argv[1]), lines)


if __name__ == "__main__":
    main()
