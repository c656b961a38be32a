"""Asks a daemon over its control socket."""

from __future__ import annotations

import errno
import json
import socket
from pathlib import Path
from typing import Any

from memsampd.closing import Closing
from memsampd.daemon.node.peers import peer_at
from memsampd.daemon.node.protocol import VERSION, Document, RefusedError, line_of
from memsampd.errors import CapabilityError


class ControlClient(Closing):
    """Asks a daemon.

    Args:
        path: of its socket.
        timeout_seconds: how long to wait for an answer.

    Raises:
        CapabilityError: there is no daemon, or it may not be asked.
    """

    def __init__(self, path: Path, timeout_seconds: float = 60.0) -> None:
        self.path = path
        self._to = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._to.settimeout(timeout_seconds)
        try:
            self._to.connect(str(path))
        except OSError as error:
            self._to.close()
            raise _no_daemon(path, error) from error
        if not peer_at(self._to).is_privileged:
            self._to.close()
            raise CapabilityError(
                f"{path} is served by another user, who is not root", "name the daemon's --socket"
            )
        self._lines = self._to.makefile("rb")

    def ask(self, command: str, **fields: Any) -> Document:
        """Ask for something; its answer.

        Raises:
            RefusedError: the daemon does not do it; cause and remedy are its own.
            CapabilityError: it does not answer.
        """
        request = {"version": VERSION, "command": command, **fields}
        try:
            self._to.sendall(line_of(request))
            answer = json.loads(self._lines.readline())
        except (OSError, ValueError) as error:
            raise CapabilityError(
                f"the daemon at {self.path} does not answer", "see its log"
            ) from error
        if not answer.get("ok"):
            raise RefusedError(answer.get("cause", "refused"), answer.get("remedy", ""))
        return dict(answer)

    def close(self) -> None:
        """Hang up; may be called twice."""
        self._to.close()
        if hasattr(self, "_lines"):
            self._lines.close()


def _no_daemon(path: Path, error: OSError) -> CapabilityError:
    if error.errno in (errno.EACCES, errno.EPERM):
        return CapabilityError(
            f"{path} may not be connected to", "ask as root, or as the user who runs the daemon"
        )
    return CapabilityError(
        f"no daemon serves {path}",
        "start one (systemctl start memsampd, or memsampd daemon), or name its --socket",
    )
