"""All that the web process knows: the last snapshot of each target, its history, what happened."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from memsampd.exporters.documents import VERSION, Document, target_id
from memsampd.exporters.history import History
from memsampd.exporters.past import Past
from memsampd.exporters.prometheus import PrometheusExporter
from memsampd.exporters.shown import KEPT_SECONDS
from memsampd.exporters.snapshot import NodeStatus, Snapshot
from memsampd.web.wire import Detached, Message, Restored

KEPT_ENDED = 20
KEPT_EVENTS = 1024


@dataclass(slots=True)
class Observed:
    """A target.

    Attributes:
        snapshot: the last one.
        history: what it did.
        attached: False once it has ended or we let go of it.
    """

    snapshot: Snapshot
    history: History = field(default_factory=History)
    attached: bool = True


@dataclass(frozen=True, slots=True)
class Event:
    """Something that clients are told as it happens.

    Attributes:
        number: 1, 2, 3, ...
        kind: "target" (a new one), "phase" (another phase runs now) or "end".
        document: what it says.
    """

    number: int
    kind: str
    document: Document


class State:
    """Takes messages, answers the API. Used by one thread.

    Args:
        monotonic: clock of the snapshots, injected for tests.
        unix: clock of the world, injected for tests.
        kept_seconds: for so long the metrics of a target that ended wait for a reader.

    Attributes:
        start: of this process: numbers of events begin anew in the next one.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        unix: Callable[[], float] = time.time,
        kept_seconds: float = KEPT_SECONDS,
    ) -> None:
        self.start = os.urandom(4).hex()
        self._monotonic = monotonic
        self._unix = unix
        self.prometheus = PrometheusExporter(kept_seconds=kept_seconds)
        self.targets: dict[str, Observed] = {}
        self.node: NodeStatus | None = None
        self._pasts: dict[str, Past] = {}  # of targets that no snapshot has come of
        self._events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._last_number = 0
        self._listeners: set[Callable[[], None]] = set()

    @property
    def unix_offset_seconds(self) -> float:
        """What turns a monotonic time into one of the world, as that clock stands now."""
        return self._unix() - self._monotonic()

    @property
    def unix_seconds(self) -> float:
        """What the clock of the world says."""
        return self._unix()

    def age_seconds(self, time_seconds: float) -> float:
        """Return how long ago a monotonic time was."""
        return self._monotonic() - time_seconds

    @property
    def last_event(self) -> int:
        """Number of the last event."""
        return self._last_number

    def receive(self, message: Message) -> None:
        """Learn something."""
        if isinstance(message, Detached):
            self._let_go(message.target, is_let_go=message.is_let_go)
        elif isinstance(message, NodeStatus):
            self.node = message
            self.prometheus.publish_node(message)
        elif isinstance(message, Restored):
            if message.target not in self.targets:  # else its history is here
                self._pasts[message.target] = message.past
        else:
            self._see(message)

    def events_after(self, number: int) -> Iterator[Event]:
        """Yield what happened after an event, as far as it is still kept."""
        yield from (event for event in tuple(self._events) if event.number > number)

    def listen(self, tell: Callable[[], None]) -> Callable[[], None]:
        """Have somebody told of each event; returns what ends that."""
        self._listeners.add(tell)
        return lambda: self._listeners.discard(tell)

    def _see(self, snapshot: Snapshot) -> None:
        id = target_id(snapshot.target)
        observed = self.targets.get(id)
        before = observed.snapshot.phase if observed else None
        if observed is None:
            observed = self.targets[id] = Observed(snapshot, attached=False)
            if (past := self._pasts.pop(id, None)) is not None:
                observed.history.restore(past)
        elif not observed.attached:
            observed.history.begin_session()
        if not observed.attached:
            observed.attached, before = True, None
            self._tell("target", snapshot)
        observed.snapshot = snapshot
        observed.history.add(snapshot)
        self.prometheus.publish(snapshot)
        if snapshot.phase is not None and snapshot.phase != before:
            self._tell("phase", snapshot, phase=snapshot.phase, previous_phase=before)
        if not snapshot.alive:
            self._let_go(id, is_let_go=snapshot.is_let_go)

    def _let_go(self, id: str, *, is_let_go: bool) -> None:
        self._pasts.pop(id, None)
        observed = self.targets.get(id)
        if observed is None or not observed.attached:
            return
        observed.attached = False
        observed.snapshot = replace(observed.snapshot, alive=False, is_let_go=is_let_go)
        self.prometheus.publish(observed.snapshot)
        self._tell("end", observed.snapshot, alive=observed.snapshot.lives)
        self.targets[id] = self.targets.pop(id)  # those that ended stand in this order
        ended = [each for each, other in self.targets.items() if not other.attached]
        for old in ended[:-KEPT_ENDED]:
            del self.targets[old]

    def _tell(self, kind: str, snapshot: Snapshot, **more: object) -> None:
        self._last_number += 1
        document = {
            "version": VERSION,
            "target": target_id(snapshot.target),
            "pid": snapshot.target.pid,
            "command": snapshot.target.command,
            "time_unix_seconds": snapshot.time_seconds + self.unix_offset_seconds,
            **more,
        }
        self._events.append(Event(self._last_number, kind, document))
        for tell in tuple(self._listeners):
            tell()
