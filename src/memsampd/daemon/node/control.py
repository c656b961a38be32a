"""Answers requests on the daemon's control socket."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from memsampd.closing import Closing
from memsampd.daemon.node.control_socket import listen, lock
from memsampd.daemon.node.peers import Peer, peer_at
from memsampd.daemon.node.protocol import VERSION, Document, Request, line_of, refusal, request_of
from memsampd.errors import MemsampdError
from memsampd.exporters.listen import NO_ROOM

logger = logging.getLogger(__name__)

_REQUEST_BYTES = 16 * 1024
_CONNECTIONS = 64
_CONNECTIONS_OF_USER = 8
_PATIENCE_SECONDS = 10.0  # for a request to be complete, and for an answer to be read
_REST_SECONDS = 1.0  # without new connections where there are no descriptors left
_REQUESTS_A_SECOND = 5.0  # of one user, of whom so many may come at once:
_REQUESTS_AT_ONCE = 40.0


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
        self._lock_fd = lock(path)
        self._listener = listen(path, _CONNECTIONS)
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
            if error.errno in NO_ROOM:
                self._rest_listener()
            return  # or it has gone again
        to.setblocking(False)
        peer = peer_at(to)
        theirs = sum(each.peer.uid == peer.uid for each in self._connections.values())
        most = _CONNECTIONS if peer.is_privileged else _CONNECTIONS_OF_USER
        # Room for privileged ones is kept, whatever others do.
        room = _CONNECTIONS if peer.is_privileged else _CONNECTIONS // 2
        if theirs >= most or len(self._connections) >= room:
            with suppress(OSError):
                to.send(line_of(refusal("there are too many connections", "close some")))
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
                answer = line_of(refusal("there are too many requests", "ask more rarely"))
                connection.is_over = True
            elif len(line) > _REQUEST_BYTES:
                cause = f"a request has {_REQUEST_BYTES} bytes at most"
                answer = line_of(refusal(cause, "send less"))
                connection.is_over = True
            else:
                answer = self._answer(bytes(line), connection.peer)
            connection.unsent += answer
            self._write(connection)

    def _answer(self, line: bytes, peer: Peer) -> bytes:
        """The line to answer with."""
        command = "that is none"
        try:
            request = request_of(line)
            command = request.command
            return line_of({"ok": True, "version": VERSION, **self._handle(request, peer)})
        except MemsampdError as error:
            return line_of(refusal(error.cause, error.remedy))
        except Exception as error:  # of this request: others are answered
            logger.exception("request %s", command)
            cause = f"internal error: {error!a}"
            return line_of(refusal(cause, "please report it with the daemon's log"))

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
