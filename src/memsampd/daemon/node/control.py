"""The daemon's control socket: requests, answers, who may ask for what, and a client.

One JSON object a line each way, see docs/daemon.md.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import selectors
import socket
import stat
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from memsampd.closing import Closing
from memsampd.daemon.config import AccessChoice
from memsampd.errors import CapabilityError, MemsampdError
from memsampd.sampler.process.identity import PROC, read_stat

logger = logging.getLogger(__name__)

VERSION = 1
Document: TypeAlias = dict[str, Any]

_REQUEST_BYTES = 16 * 1024
_CONNECTIONS = 64
_CONNECTIONS_OF_USER = 8
_PATIENCE_SECONDS = 10.0  # for a request to be complete, and for an answer to be read
_REST_SECONDS = 1.0  # without new connections where there are no descriptors left
_REQUESTS_A_SECOND = 5.0  # of one user, of whom so many may come at once:
_REQUESTS_AT_ONCE = 40.0


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client asks for.

    Attributes:
        version: of the protocol.
        command: what is to be done.
        pid: the process ("attach", "detach").
        accesses: where those of the process are to come from ("attach"); None: as before, or as
            the configuration says.
    """

    version: int
    command: Literal["list", "status", "attach", "detach", "reload"]
    pid: int | None = None
    accesses: AccessChoice | None = None


@dataclass(frozen=True, slots=True)
class Peer:
    """Who asks.

    Attributes:
        uid: user, as the kernel says.
        gid: group.
        is_privileged: may do all: root, or the daemon's own user.
    """

    uid: int
    gid: int
    is_privileged: bool

    def may_have(self, pid: int, start_ticks: int | None = None) -> bool:
        """Whether a process may be observed for this user: now, it may have other rights later."""
        return self.is_privileged or self.owns(pid, start_ticks)

    def owns(self, pid: int, start_ticks: int | None = None, proc: Path = PROC) -> bool:
        """Whether a process is this user's, as tracing it would ask: all its ids, dumpable.

        Args:
            pid: the process.
            start_ticks: when it has to have started; None: at any time.
            proc: root of the proc file system.
        """
        try:
            with (proc / str(pid) / "status").open("rb") as file:
                # The kernel gives the files of a process that may not be dumped to root, though
                # not its folder.
                owner = os.fstat(file.fileno()).st_uid
                lines = file.read().split(b"\n")
            if start_ticks is not None and read_stat(pid, proc).start_ticks != start_ticks:
                return False  # another one by now, with the same number
        except OSError:
            return False
        ids = {line[:4]: set(line[4:].split()) for line in lines}
        uid, gid = {b"%d" % self.uid}, {b"%d" % self.gid}
        is_theirs = ids.get(b"Uid:") == uid and ids.get(b"Gid:") == gid
        return is_theirs and owner == self.uid


class RefusedError(MemsampdError):
    """A request that is not done."""


@dataclass(slots=True)
class _Connection:
    """A client.

    Attributes:
        to: the socket.
        peer: who it is.
        since_seconds: when it last did something useful.
        received: of a request that is not complete.
        unsent: of answers.
        is_over: nothing more is read, and it ends once all is sent.
    """

    to: socket.socket
    peer: Peer
    since_seconds: float
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    is_over: bool = False


class ControlServer(Closing):
    """Answers requests on a Unix socket, without a thread: whoever owns it calls :meth:`serve`.

    Whatever clients send, or do not, others are answered: requests and answers are bounded in
    size and time, connections and requests in number.

    Args:
        path: of the socket; a lock file beside it keeps a second daemon away.
        handle: does what is asked; raises :class:`~memsampd.errors.MemsampdError` if it does not.
        now: monotonic time in seconds.

    Raises:
        CapabilityError: another daemon serves it, or it cannot be made.
    """

    def __init__(
        self,
        path: Path,
        handle: Callable[[Request, Peer], Document],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._handle = handle
        self._now = now
        self._connections: dict[int, _Connection] = {}
        self._allowances: dict[int, tuple[float, float]] = {}
        self._listens_again_seconds: float | None = None  # None: it listens
        self._selector = selectors.EpollSelector()
        _make_directory(path.parent)
        self._lock_fd = _lock(path)
        self._listener = _listen(path)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """Readable when :meth:`serve` has something to do."""
        return self._selector.fileno()

    def serve(self) -> None:
        """Do what can be done without waiting; to be called once a second at least."""
        self._listen_again()
        for key, events in self._selector.select(0):
            if key.fileobj is self._listener:
                self._accept()
                continue
            connection = self._connections.get(key.fd)
            if connection is None:
                continue
            try:
                if events & selectors.EVENT_READ:
                    self._read(connection)
                if events & selectors.EVENT_WRITE:
                    self._write(connection)
                    self._answer_all(connection)
            except OSError:
                self._drop(connection)
            except Exception:  # of this client: others are answered
                logger.exception("a client of user %d is hung up on", connection.peer.uid)
                self._drop(connection)
        self._drop_slow()

    def close(self) -> None:
        """End all connections and remove the socket; may be called twice."""
        if self._listener.fileno() < 0:
            return
        for connection in tuple(self._connections.values()):
            with suppress(OSError):  # what fits: an answer to who asked for the end
                connection.to.send(connection.unsent)
            self._drop(connection)
        self._selector.close()
        self._listener.close()
        with suppress(OSError):
            self.path.unlink()
        os.close(self._lock_fd)

    # -- connections ---------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            to, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._rest_listener()
            return  # or it has gone again
        to.setblocking(False)
        peer = _peer(to)
        theirs = sum(each.peer.uid == peer.uid for each in self._connections.values())
        most = _CONNECTIONS if peer.is_privileged else _CONNECTIONS_OF_USER
        # Room for privileged ones is kept, whatever others do.
        room = _CONNECTIONS if peer.is_privileged else _CONNECTIONS // 2
        if theirs >= most or len(self._connections) >= room:
            with suppress(OSError):
                to.send(_line(_refusal("there are too many connections", "close some")))
            to.close()
            return
        self._connections[to.fileno()] = _Connection(to, peer, self._now())
        self._selector.register(to, selectors.EVENT_READ)

    def _rest_listener(self) -> None:
        """There are no descriptors left: who waits would have the owner turn without end."""
        logger.warning("no connection can be accepted: there are no descriptors left")
        self._selector.unregister(self._listener)
        self._listens_again_seconds = self._now() + _REST_SECONDS

    def _listen_again(self) -> None:
        due = self._listens_again_seconds
        if due is not None and self._now() >= due:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._listens_again_seconds = None

    def _drop(self, connection: _Connection) -> None:
        if self._connections.pop(connection.to.fileno(), None) is not None:
            self._selector.unregister(connection.to)
            connection.to.close()

    def _drop_slow(self) -> None:
        latest = self._now() - _PATIENCE_SECONDS
        for connection in tuple(self._connections.values()):
            if connection.since_seconds < latest:
                self._drop(connection)

    # -- requests ------------------------------------------------------------------------------

    def _read(self, connection: _Connection) -> None:
        received = connection.to.recv(_REQUEST_BYTES)
        if not received:
            self._drop(connection)
            return
        connection.received += received
        self._answer_all(connection)

    def _answer_all(self, connection: _Connection) -> None:
        """Answer what is complete, one request at a time: until an answer has to wait."""
        while not connection.unsent and not connection.is_over:
            line, newline, rest = connection.received.partition(b"\n")
            if not newline and len(line) <= _REQUEST_BYTES:
                return
            connection.received = rest
            connection.since_seconds = self._now()
            if not self._may_ask(connection.peer):
                answer = _line(_refusal("there are too many requests", "ask more rarely"))
                connection.is_over = True
            elif len(line) > _REQUEST_BYTES:
                cause = f"a request has {_REQUEST_BYTES} bytes at most"
                answer = _line(_refusal(cause, "send less"))
                connection.is_over = True
            else:
                answer = self._answer(bytes(line), connection.peer)
            connection.unsent += answer
            self._write(connection)

    def _answer(self, line: bytes, peer: Peer) -> bytes:
        """The line to answer with."""
        command = "that is none"
        try:
            request = _request(line)
            command = request.command
            return _line({"ok": True, "version": VERSION, **self._handle(request, peer)})
        except MemsampdError as error:
            return _line(_refusal(error.cause, error.remedy))
        except Exception as error:  # of this request: others are answered
            logger.exception("request %s", command)
            cause = f"internal error: {error!a}"
            return _line(_refusal(cause, "please report it with the daemon's log"))

    def _may_ask(self, peer: Peer) -> bool:
        """Whether a user has not asked too much lately."""
        now = self._now()
        left, since = self._allowances.get(peer.uid, (_REQUESTS_AT_ONCE, now))
        left = min(left + (now - since) * _REQUESTS_A_SECOND, _REQUESTS_AT_ONCE)
        if not peer.is_privileged and left < 1:
            self._allowances[peer.uid] = left, now
            return False
        self._allowances[peer.uid] = max(left - 1, 0.0), now
        return True

    def _write(self, connection: _Connection) -> None:
        try:
            sent = connection.to.send(connection.unsent)
        except BlockingIOError:
            sent = 0
        if sent:
            del connection.unsent[:sent]
            connection.since_seconds = self._now()
        if connection.is_over and not connection.unsent:
            self._drop(connection)
            return
        events = selectors.EVENT_WRITE if connection.unsent else selectors.EVENT_READ
        self._selector.modify(connection.to, events)


def _peer(to: socket.socket) -> Peer:
    """Who is at the other end, as the kernel noted when it connected."""
    credentials = to.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, gid = struct.unpack("iII", credentials)
    return peer_of(uid, gid)


def peer_of(uid: int, gid: int) -> Peer:
    """Somebody with what they may do."""
    return Peer(uid, gid, uid in (0, os.geteuid()))


def _request(line: bytes) -> Request:
    """Read a request.

    Raises:
        RefusedError: it is none.
    """
    try:
        request = msgspec.json.decode(line, type=Request)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        cause = f"no request: {error}"
        raise RefusedError(cause, "see docs/daemon.md for the protocol") from error
    if request.version != VERSION:
        raise RefusedError(
            f"version {request.version} of the protocol is not known",
            f"this is memsampd with version {VERSION}: use its own command line",
        )
    return request


def _refusal(cause: str, remedy: str) -> Document:
    return {"ok": False, "version": VERSION, "cause": cause, "remedy": remedy}


def _line(document: Document) -> bytes:
    return msgspec.json.encode(document) + b"\n"


# -- the socket --------------------------------------------------------------------------------


def _make_directory(path: Path) -> None:
    """Make the socket's directory; one that others may write to is refused."""
    try:
        path.mkdir(mode=0o755 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise CapabilityError(
            f"{path} cannot be made: {error.strerror}", "choose another socket"
        ) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (0, os.geteuid()):
        raise CapabilityError(
            f"{path} is no directory of yours", "choose another path of the socket"
        )
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise CapabilityError(
            f"{path} may be written to by others", f"chmod go-w {path}, or choose another path"
        )


def require_no_daemon(path: Path) -> None:
    """See to it that no daemon serves a socket at present.

    Raises:
        CapabilityError: one does, or the socket cannot be made.
    """
    _make_directory(path.parent)
    os.close(_lock(path))


def _lock(path: Path) -> int:
    """Take the lock of a socket, which the kernel gives back however the daemon ends."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise CapabilityError(
            f"{lock} cannot be opened: {error.strerror}", "choose another path of the socket"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.read(fd, 32).decode(errors="replace").strip()
        os.close(fd)
        raise CapabilityError(
            f"a daemon (process {owner}) serves {path} already",
            "use that one (memsampd list), stop it, or choose another --socket and --listen",
        ) from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _listen(path: Path) -> socket.socket:
    """Listen; what a daemon that was killed left behind is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise FileExistsError(errno.EEXIST, "it is there and no socket")
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o666)  # whoever connects is asked who it is
        listener.listen(_CONNECTIONS)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise CapabilityError(
            f"{path} cannot be listened on: {error.strerror}", "choose another path of the socket"
        ) from error
    return listener


# -- the client --------------------------------------------------------------------------------


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
        if not _peer(self._to).is_privileged:
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
            self._to.sendall(_line(request))
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
        return CapabilityError(f"{path} may not be connected to", "ask as another user")
    return CapabilityError(
        f"no daemon serves {path}",
        "start one (systemctl start memsampd, or memsampd daemon), or name its --socket",
    )
