"""What clients of the daemon may ask for, and what they are told."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from memsampd.daemon.config import AccessChoice
from memsampd.daemon.node.attachment import EXEC_SECONDS
from memsampd.daemon.node.discovery import ProcessKey
from memsampd.daemon.node.peers import Peer
from memsampd.daemon.node.protocol import Document, RefusedError, Request
from memsampd.daemon.node.target import Target
from memsampd.daemon.node.targets import Targets, check_owner
from memsampd.errors import UsageError
from memsampd.exporters.documents import node_document, node_target_document, target_document
from memsampd.exporters.snapshot import NodeStatus
from memsampd.sampler.process.target import check_target


class Commands:
    """Does what clients ask for, as far as they may.

    Args:
        targets: what is observed.
        status: tells how the node fares.
        reload: has the configuration read again.
    """

    def __init__(
        self, targets: Targets, status: Callable[[], NodeStatus], reload: Callable[[], None]
    ) -> None:
        self._targets = targets
        self._status = status
        self._reload = reload

    def answer(self, request: Request, peer: Peer) -> Document:
        """Do what a client asks for.

        Raises:
            MemsampdError: it is not done.
        """
        match request.command:
            case "list":
                return {"targets": [_document(each) for each in self._targets.seen_by(peer)]}
            case "status":
                return {"status": self._status_document(peer)}
            case "reload":
                if not peer.is_privileged:
                    raise RefusedError(
                        "only root, or the daemon's own user, may reload", "ask as root"
                    )
                self._reload()
                return {}
            case "attach":
                return self._attach(_pid_of(request), peer, request.accesses)
            case "detach":
                target = self._targets.let_go(_pid_of(request), peer)
                return {"pid": target.key.pid, "command": target.command}

    def _status_document(self, peer: Peer) -> Document:
        seen = self._targets.seen_by(peer)
        targets = tuple(each.status() for each in seen)
        shown = msgspec.structs.replace(self._status(), targets=targets)
        if not peer.is_privileged:
            shown = shown.without_causes()
        return {**node_document(shown), "targets": [_document(each) for each in seen]}

    def _attach(self, pid: int, peer: Peer, accesses: AccessChoice | None) -> Document:
        check_owner(peer, pid)
        identity = check_target(pid, may_be_sealed=True, patience_seconds=EXEC_SECONDS).identity
        check_owner(peer, pid)  # it may be another process by now, of the same number
        key = ProcessKey(identity.pid, identity.start_ticks)
        is_new = self._targets.ask_for(key, peer, accesses)
        return {"pid": pid, "command": identity.command, "is_new": is_new}


def _document(target: Target) -> Document:
    seen = target_document(target.snapshot) if target.snapshot is not None else {}
    return {**seen, **node_target_document(target.status())}


def _pid_of(request: Request) -> int:
    if request.pid is None or request.pid <= 0:
        raise UsageError(f"{request.command} needs the id of a process", "give it as pid")
    return request.pid
