"""The command memsampd, as users run it."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from waiting import PATIENCE_SECONDS

MEMSAMPD = str(Path(sys.executable).with_name("memsampd"))
_given_ports: set[int] = set()


def memsampd(
    *words: str | Path | int, timeout_seconds: float = PATIENCE_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [MEMSAMPD, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has, and that nobody is given who does not ask for it.

    Of those that run tests at a time (of pytest-xdist) each has ports of its own, and gives none
    twice: it may be long until one is used.
    """
    worker = int("".join(filter(str.isdigit, os.environ.get("PYTEST_XDIST_WORKER", ""))) or 0)
    first = 20_000 + worker % 12 * 1000
    while True:
        port = random.SystemRandom().randrange(first, first + 1000)
        if port in _given_ports:
            continue
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given_ports.add(port)
            return port
