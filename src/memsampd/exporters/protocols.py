"""The seam of the exporters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from memsampd.exporters.snapshot import NodeStatus, Snapshot, TargetInfo

if TYPE_CHECKING:
    from memsampd.exporters.past import Past


@runtime_checkable
class Exporter(Protocol):
    """Somewhere that the state of a session is shown.

    Contract: ``publish`` returns at once, may be called from the session's thread while readers
    are served from others, and never changes the snapshot. ``close`` may be called twice; after
    it nothing of the session is shown any more.
    """

    def publish(self, snapshot: Snapshot) -> None:
        """Show this state from now on."""

    def close(self) -> None:
        """Stop showing it."""


@runtime_checkable
class NodeExporter(Protocol):
    """An exporter that shows the state of a node's daemon, too.

    Contract: as :class:`Exporter`'s.
    """

    def publish_node(self, status: NodeStatus) -> None:
        """Show this state of the daemon from now on."""


@runtime_checkable
class PastExporter(Protocol):
    """An exporter that shows what a target did before memsampd was restarted, too.

    Contract: as :class:`Exporter`'s; it is told before the first snapshot of the target.
    """

    def publish_past(self, target: TargetInfo, past: Past) -> None:
        """Show what it did, before what it does from now on."""


@runtime_checkable
class AskedExporter(Protocol):
    """An exporter that is read now and then, and asks for the present state before.

    Attributes:
        ask: called by the threads that answer, has the state brought up to date; in between it may
            be old.
    """

    ask: Callable[[], None]

    @property
    def is_unread(self) -> bool:
        """Whether it shows something that nobody has asked for yet."""


@runtime_checkable
class ApartExporter(Protocol):
    """An exporter that has a process of its own, whose CPU time counts as memsampd's."""

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
