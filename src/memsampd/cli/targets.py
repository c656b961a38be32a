"""Where ``top`` and ``advise`` learn of targets: a daemon, or sessions of our own."""

from __future__ import annotations

import json
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from memsampd.cli.list import ask
from memsampd.errors import CapabilityError, MemsampdError
from memsampd.exporters.hosts import is_loopback

if TYPE_CHECKING:
    from memsampd.daemon.own_cpu import ProcessCpu
    from memsampd.daemon.session import Session
    from memsampd.daemon.session_parts import State
    from memsampd.exporters.snapshot import Snapshot
    from memsampd.phases.records import Assignment, Window

Document = Mapping[str, Any]
"""As :mod:`memsampd.exporters.documents` makes them."""
_TIMEOUT_SECONDS = 5.0
_LOOK_SECONDS = 0.5


class TargetsSource(Protocol):
    """Someone who knows of targets."""

    def targets(self) -> list[Document]:
        """Return the target document of each.

        Raises:
            MemsampdError: they cannot be had at present.
        """

    def close(self) -> None:
        """Let go of all; may be called twice."""


class CurvesSource(TargetsSource, Protocol):
    """Someone who knows their curves as well."""

    def phases(self, target: str) -> Document:
        """Return a target's phases document; the target by its name."""

    def curves(self, target: str) -> Document:
        """Return a target's curves document; the target by its name."""


class ControlTargets:
    """A daemon, by its control socket.

    Args:
        socket: its path; None: this user's own, or else the machine's.
    """

    def __init__(self, socket: Path | None) -> None:
        self._socket = socket

    def targets(self) -> list[Document]:
        """Return the document of each; of one that is not observed yet, who it is and why."""
        answer = ask(self._socket, "list", timeout_seconds=_TIMEOUT_SECONDS)
        return list(answer["targets"])

    def close(self) -> None:
        """Nothing is held open."""


class HttpTargets:
    """A daemon, or an attach with a page, by its HTTP API.

    Args:
        url: where it serves: ``http://HOST:PORT``.
    """

    def __init__(self, url: str) -> None:
        self._base = f"{url.removesuffix('/').removesuffix('/api/v1/targets')}/api/v1/targets"
        # A proxy has nothing of this machine's own.
        handlers = [urllib.request.ProxyHandler({})] if _is_here(url) else []
        self._opener = urllib.request.build_opener(*handlers)

    def targets(self) -> list[Document]:
        """Return the target document of each."""
        answer = self._get("")
        if not isinstance(answer.get("targets"), list):
            raise CapabilityError(
                f"{self._base} does not answer as memsampd does", "name its HOST:PORT only"
            )
        return list(answer["targets"])

    def phases(self, target: str) -> Document:
        """Return a target's phases document."""
        return self._get(f"/{urllib.parse.quote(target)}/phases")

    def curves(self, target: str) -> Document:
        """Return a target's curves document."""
        return self._get(f"/{urllib.parse.quote(target)}/curves")

    def close(self) -> None:
        """Nothing is held open."""

    def _get(self, path: str) -> dict[str, Any]:
        url = f"{self._base}{path}"
        try:
            if not url.startswith(("http://", "https://")):
                raise ValueError("no http:// address")
            with self._opener.open(url, timeout=_TIMEOUT_SECONDS) as answer:
                return dict(json.load(answer))
        except (OSError, ValueError, TypeError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise CapabilityError(
                f"no targets from {url}: {reason}",
                "is it the address of 'memsampd daemon' or of 'memsampd attach --page'?",
            ) from error


def _is_here(url: str) -> bool:
    try:
        return is_loopback(urllib.parse.urlsplit(url).hostname or "")
    except ValueError:
        return False


class OwnTargets:
    """Processes that we attach to ourselves, each in a session and a thread of its own.

    Args:
        pids: processes, as typed by the user.
        duration_seconds: when to detach; None: when closed.

    Raises:
        UsageError: no session can have that duration.
        MemsampdError: one of them cannot be observed.
    """

    def __init__(self, pids: Sequence[str], duration_seconds: float | None = None) -> None:
        from memsampd.daemon.own_cpu import ProcessCpu

        # Together: each would be charged with all that this process does.
        process_cpu = ProcessCpu()
        self._watched = [_Watched(pid, duration_seconds, process_cpu) for pid in pids]
        try:
            for watched in self._watched:
                watched.wait_attached()
        except MemsampdError:
            self.close()
            raise

    def targets(self) -> list[Document]:
        """Return the target document of each."""
        from memsampd.exporters.documents import target_document

        return [target_document(snapshot) for snapshot in self._snapshots()]

    def phases(self, target: str) -> Document:
        """Return a target's phases document."""
        from memsampd.exporters.documents import phases_document

        return phases_document(self._named(target))

    def curves(self, target: str) -> Document:
        """Return a target's curves document."""
        from memsampd.exporters.documents import curves_document

        return curves_document(self._named(target))

    def wait(self) -> None:
        """Wait until all sessions have ended."""
        for watched in self._watched:
            watched.join()

    def close(self) -> None:
        """Detach from all; may be called twice."""
        for watched in self._watched:
            watched.stop()
        self.wait()

    def _snapshots(self) -> list[Snapshot]:
        return [watched.snapshot for watched in self._watched if watched.snapshot is not None]

    def _named(self, target: str) -> Snapshot:
        from memsampd.exporters.documents import target_id

        for snapshot in self._snapshots():
            if target_id(snapshot.target) == target:
                return snapshot
        raise CapabilityError(f"no target {target} is known", "it may have ended")


class _Watched:
    """A session in a thread, and its last state."""

    def __init__(self, pid: str, duration_seconds: float | None, process_cpu: ProcessCpu) -> None:
        from memsampd.daemon.config import SessionConfig

        self.snapshot: Snapshot | None = None
        self._pid = pid
        self._config = SessionConfig(duration_seconds=duration_seconds)
        self._process_cpu = process_cpu
        self._session: Session | None = None
        self._error: Exception | None = None
        self._is_stopped = False
        self._attached = threading.Event()
        self._looked_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name=f"target {pid}", daemon=True)
        self._thread.start()

    def window(self, window: Window, assignment: Assignment, state: State) -> None:
        """Nothing by itself: the turn looks."""

    def turn(self, state: State) -> None:
        """Look at the state now and then."""
        now = time.monotonic()
        if now - self._looked_seconds >= _LOOK_SECONDS:
            self._looked_seconds = now
            self.snapshot = state()

    def wait_attached(self) -> None:
        """Return once it is observed.

        Raises:
            MemsampdError: it cannot be.
        """
        self._attached.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Have the session end soon."""
        self._is_stopped = True
        if self._session is not None:
            self._session.stop("closed")

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def _run(self) -> None:
        from memsampd.daemon.attach import attached
        from memsampd.daemon.config import OutputConfig

        try:
            with attached(
                self._pid, self._config, OutputConfig(), [self], process_cpu=self._process_cpu
            ) as session:
                self._session = session
                self.snapshot = session.snapshot()
                self._attached.set()
                if not self._is_stopped:
                    session.run()
                self.snapshot = session.snapshot()
        except Exception as error:  # told to whoever waits
            self._error = error
        finally:
            self._attached.set()
