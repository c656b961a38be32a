"""HTTP apart from the sampler: an exporter that feeds an unprivileged child process.

The sampler may be root and reads other people's memory; a flaw in HTTP must not be one in it. So
the listening socket is opened here and handed to a child that gives up all rights first
(:mod:`memsampd.web.confine`) and is told snapshots through a pipe. Nothing is read back from it but
its exit status.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass

from memsampd.errors import CapabilityError
from memsampd.exporters.documents import target_id
from memsampd.exporters.listen import DEFAULT_LISTEN, open_listening, parse_listen, url_of
from memsampd.exporters.past import Past
from memsampd.exporters.shown import KEPT_SECONDS
from memsampd.exporters.snapshot import NodeStatus, Snapshot, TargetInfo
from memsampd.names import printable
from memsampd.web.wire import Detached, Message, Restored, encode

logger = logging.getLogger(__name__)

_NODE = "node"  # no name of a target
_PAST = "past of "  # a target
_BACKLOG = 128
# Beyond so many messages that wait, only the name is told of a target that is over.
_MOST_WAITING = 256
_PIPE_BYTES = 1 << 20
# A child that takes nothing for so long hangs, and is replaced.
_STALLED_SECONDS = 30.0
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 60.0
# A child that lived for so long is no reason to wait before the next.
_LIVED_SECONDS = 60.0
_END_SECONDS = 3.0
_WORDS_BYTES = 400
_KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "TZ")


class _Outbox:
    """The newest message of each target and the node, not sent yet; older ones are dropped.

    Nothing is kept of what is over while there is no child, and little where a child is slow.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, Message] = {}
        self._latest: dict[str, Message] = {}  # what still holds, for a child that comes anew
        self._has_reader = False

    def put(self, name: str, message: Message) -> None:
        over = message if isinstance(message, Snapshot) and not message.alive else None
        with self._lock:
            if over is not None:
                self._latest.pop(name, None)
                self._latest.pop(_PAST + name, None)
            else:
                self._latest[name] = message
            if self._has_reader:
                if over is not None and len(self._waiting) >= _MOST_WAITING:
                    message = Detached(name, over.is_let_go)
                self._waiting[name] = message

    def take(self) -> Message | None:
        with self._lock:
            if not self._waiting:
                return None
            return self._waiting.pop(next(iter(self._waiting)))

    def again(self) -> None:
        """Send all that still holds to a new child."""
        with self._lock:
            self._waiting = dict(self._latest)
            self._has_reader = True

    def rest(self) -> None:
        """Keep what still holds until there is a child again."""
        with self._lock:
            self._waiting = {}
            self._has_reader = False


@dataclass(frozen=True, slots=True)
class _Child:
    """A running child, the pipe to it, and the file of its last words."""

    process: subprocess.Popen[bytes]
    pidfd: int
    pipe: int
    words: int

    def end(self) -> str:
        """Have it ended, gently at first, and reaped; returns how it went, for people."""
        os.close(self.pipe)  # the end of its input is the end of it
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        status = self.process.returncode
        how = f"exit status {status}" if status >= 0 else signal.Signals(-status).name
        size = os.fstat(self.words).st_size
        last = os.pread(self.words, _WORDS_BYTES, max(size - _WORDS_BYTES, 0))
        os.close(self.words)
        os.close(self.pidfd)
        lines = last.decode("utf-8", "replace").strip().splitlines()
        return f"{how}: {printable(lines[-1])}" if lines else how


class WebProcess:
    """Serves metrics, API and page from a child process, which it starts again when it ends.

    ``publish`` hands a snapshot to a thread and returns: a slow or dead child costs nothing but
    the snapshots that it misses.

    Args:
        listen: ``HOST:PORT``; port 0 takes a free one.
        any_port: take a free port where the one of ``listen`` is in use.
        kept_seconds: for so long the metrics of a target that ended wait for a reader.

    Attributes:
        host: address that it listens on, as the user called it.
        port: port that it listens on.

    Raises:
        UsageError: ``listen`` is malformed.
        CapabilityError: the address cannot be listened on, or the packages that serve HTTP are not
            installed.
    """

    def __init__(
        self,
        listen: str = DEFAULT_LISTEN,
        *,
        any_port: bool = False,
        kept_seconds: float = KEPT_SECONDS,
    ) -> None:
        _require_packages()
        self._kept_seconds = kept_seconds
        self.host, _ = parse_listen(listen)
        self._socket = open_listening(listen, _BACKLOG, any_port=any_port)
        self.port: int = self._socket.getsockname()[1]
        self._outbox = _Outbox()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing = threading.Event()
        self._child: _Child | None = None
        self._thread = threading.Thread(target=self._run, name="memsampd-web", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where the page is."""
        return url_of(self.host, self.port)

    @property
    def pid(self) -> int | None:
        """The child, while there is one."""
        child = self._child
        return None if child is None else child.process.pid

    def publish(self, snapshot: Snapshot) -> None:
        """Show this state of its target; returns at once."""
        self._send(target_id(snapshot.target), snapshot)

    def publish_past(self, target: TargetInfo, past: Past) -> None:
        """Show what a target did before memsampd was restarted; returns at once."""
        id = target_id(target)
        self._send(_PAST + id, Restored(id, past))

    def publish_node(self, status: NodeStatus) -> None:
        """Show this state of the daemon; returns at once."""
        self._send(_NODE, status.without_causes())

    def close(self) -> None:
        """Stop serving, end the child and free the port; a second call does nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._socket.close()
        os.close(self._wake)

    def _send(self, name: str, message: Message) -> None:
        if self._closing.is_set():
            return
        self._outbox.put(name, message)
        os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            started_seconds = time.monotonic()
            try:
                words = self._life()
            except Exception as error:  # whatever it is, the session must go on and HTTP come back
                logger.exception("an error of ours in feeding the web process")
                words = f"was given up ({type(error).__name__})"
            if self._closing.is_set():
                return
            if time.monotonic() - started_seconds >= _LIVED_SECONDS:
                pause_seconds = _FIRST_PAUSE_SECONDS
            logger.warning("the web process %s: it starts again in %g s", words, pause_seconds)
            self._closing.wait(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)

    def _life(self) -> str:
        """Start a child and feed it; returns how it ended, for people."""
        try:
            child = self._child = self._start()
        except OSError as error:
            return f"cannot be started ({error.strerror})"
        try:
            self._outbox.again()
            hangs = self._feed(child)
            if hangs:
                child.process.kill()
        except BaseException:
            child.process.kill()
            raise
        finally:
            self._child = None
            self._outbox.rest()
            words = child.end()
        return f"hung ({words})" if hangs else f"ended ({words})"

    def _start(self) -> _Child:
        """Start a child; this thread lives as long as it, for the kernel ends it with us."""
        listening = self._socket.fileno()
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        command = [sys.executable, "-P", "-m", "memsampd.web.server"]
        with ExitStack() as at_failure, ExitStack() as always:
            reading, writing = os.pipe2(os.O_CLOEXEC)
            always.callback(os.close, reading)
            at_failure.callback(os.close, writing)
            words = os.memfd_create("memsampd-web", os.MFD_CLOEXEC)
            at_failure.callback(os.close, words)
            told = (reading, listening, os.getpid(), self.host, self._kept_seconds)
            process = subprocess.Popen(
                [*command, *map(str, told)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=words,
                pass_fds=(reading, listening),
                cwd="/",
                env={**kept, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
            at_failure.callback(process.wait)
            at_failure.callback(process.kill)
            os.set_blocking(writing, False)
            with contextlib.suppress(OSError):  # beyond the user's limit: the default does, too
                fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            child = _Child(process, os.pidfd_open(process.pid), writing, words)
            at_failure.pop_all()
        return child

    def _feed(self, child: _Child) -> bool:
        """Tell the child what is published until it ends or we close; returns whether it hangs."""
        waiting, frame = select.poll(), memoryview(b"")
        waiting.register(self._wake, select.POLLIN)
        waiting.register(child.pidfd, select.POLLIN)
        took_seconds = time.monotonic()
        while not self._closing.is_set():
            if not frame:
                message = self._outbox.take()
                frame = memoryview(b"" if message is None else encode(message))
                took_seconds = time.monotonic()
            if frame:
                waiting.register(child.pipe, select.POLLOUT)
            else:
                with contextlib.suppress(KeyError):
                    waiting.unregister(child.pipe)
            left_seconds = took_seconds + _STALLED_SECONDS - time.monotonic()
            ready = dict(waiting.poll(max(left_seconds, 0) * 1000 if frame else None))
            if child.pidfd in ready:
                return False
            if self._wake in ready:
                os.eventfd_read(self._wake)
            if child.pipe in ready:
                try:
                    frame = frame[os.write(child.pipe, frame) :]
                    took_seconds = time.monotonic()
                except BrokenPipeError:
                    return False
            elif frame and left_seconds <= 0:
                return True
        return False


def missing_packages() -> list[str]:
    """Names of the packages that serving needs and that are not installed."""
    return [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]


def _require_packages() -> None:
    missing = missing_packages()
    if missing:
        raise CapabilityError(
            f"the page needs {' and '.join(missing)}", "pip install 'memsampd[web]'"
        )
