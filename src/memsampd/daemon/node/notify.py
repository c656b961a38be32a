"""Telling systemd how the daemon fares (sd_notify(3)), and journald how serious a line is."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TextIO

from memsampd.names import printable


class Notifier:
    """Tells the service manager, if there is one that asked to be told.

    Its socket is there from the start on: who has no descriptors left is alive, too.

    Args:
        environ: the environment.
        pid: of this process; systemd means the one that it started.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ, pid: int | None = None) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        self.watchdog_seconds: float | None = None
        for_pid = environ.get("WATCHDOG_PID")
        if for_pid in (None, str(pid or os.getpid())):
            with suppress(ValueError):
                microseconds = int(environ.get("WATCHDOG_USEC", "0"))
                self.watchdog_seconds = microseconds * 1e-6 or None

    def _tell(self, *lines: str) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.sendto("\n".join(lines).encode(), self._address)

    def ready(self) -> None:
        """Targets can be asked for."""
        self._tell("READY=1")

    def alive(self, status: str) -> None:
        """The loop goes round; with a line for people."""
        self._tell("WATCHDOG=1", f"STATUS={status}")

    def reloading(self) -> None:
        """The configuration is read again; :meth:`ready` follows."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The daemon ends: nothing more is told."""
        self._tell("STOPPING=1")
        if self._socket is not None:
            self._socket.close()
            self._socket = None


_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))


def is_journal(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether what is written there goes to journald (``JOURNAL_STREAM``, systemd.exec(5))."""
    with suppress(OSError, ValueError):
        status = os.fstat(stream.fileno())
        return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
    return False


class LogFormat(logging.Formatter):
    """A line a message; with a priority in front where journald reads it, else with the time.

    Args:
        for_journal: journald reads it.
    """

    def __init__(self, for_journal: bool) -> None:
        super().__init__()
        self._for_journal = for_journal

    def format(self, record: logging.LogRecord) -> str:
        """Make the line."""
        text = printable(" ".join(super().format(record).split()))
        if self._for_journal:
            priority = next((p for level, p in _PRIORITIES if record.levelno >= level), 7)
            return f"<{priority}>{text}"
        moment = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(record.created))
        return f"{moment} {record.levelname.lower()}: {text}"


def log_to_stderr() -> None:
    """Have what memsampd logs written to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormat(is_journal(sys.stderr)))
    logger = logging.getLogger("memsampd")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
