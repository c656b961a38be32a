"""When a session's next turn comes."""

from __future__ import annotations

import math

import msgspec

from memsampd.daemon.config import SessionConfig
from memsampd.daemon.ledger import Ledger
from memsampd.daemon.pipeline import Pipeline
from memsampd.exporters.documents import IDLE_SECONDS

# What is done a turn takes some milliseconds, however few samples have come, and more where each
# finds the caches cold: a few windows at once are cheaper.
_TURN_SECONDS = 0.25
# While no burst can be paid for, or no window ends, there is nothing to decide, and after the start
# little, unless words are watched.
_CALM_TURN_SECONDS = 0.5
_WAITING_TURN_SECONDS = 1.0
# Later, where turns take so much that bursts would have to wait for it, they are rarer: they are to
# use such a part of what memsampd may use at most.
_TURNS_PART = 0.3
_SLOWEST_TURN_SECONDS = 5.0
# What is sampled meanwhile must have room, though the target may suddenly do more.
_RING_PART = 0.6
_LOOK_SECONDS = 0.25  # for what the target has used
_HURRIED_TURN_SECONDS = 0.03
_BURST_TURN_SECONDS = 0.12  # what was ordered has mostly come by then
# Debug registers are idle from the end of a watch to the next turn: where nothing is stopped,
# nothing else tells of large caches. Not where no CPU is idle: a turn costs what a watch may.
_WATCHING_TURN_SECONDS = 0.1
_IDLE_TURN_SECONDS, _SHOWN_IDLE_TURN_SECONDS = 10.0, 2.0
_IDLE_AFTER_SECONDS = 1.0
# A look takes a millisecond or more where all has gone from the caches meanwhile: who has slept for
# long may be found awake somewhat later.
_IDLE_LOOK_PART, _IDLE_LOOK_SECONDS = 0.025, 1.0
_ANY_SECONDS = 1e-9


class Pause(msgspec.Struct, frozen=True):
    """How long to wait for the next turn.

    Attributes:
        seconds: so long at most, wall time.
        ran_seconds: less if the target has used so much CPU time on one CPU.
        look_seconds: how often to look for that.
    """

    seconds: float
    ran_seconds: float = math.inf
    look_seconds: float = math.inf

    @property
    def without_looks_seconds(self) -> float:
        """The same for who does not look in between: in less time it cannot have run more."""
        return min(self.seconds, self.look_seconds + self.ran_seconds)


def is_idle(pipeline: Pipeline) -> bool:
    """Whether the target has not run lately."""
    return pipeline.parts.ledger.idle_seconds >= _IDLE_AFTER_SECONDS


def hurries(pipeline: Pipeline) -> bool:
    """Whether a first burst is awaited of a target that runs: turns are to be short."""
    return pipeline.hurries and not is_idle(pipeline)


def next_pause(
    pipeline: Pipeline,
    config: SessionConfig,
    ring_seconds: float,
    *,
    waits_for_cpu: bool,
    is_watching: bool,
    is_shown: bool = False,
) -> Pause:
    """How long the next turn may wait.

    Args:
        pipeline: what is decided there.
        config: how to observe.
        ring_seconds: so much CPU time of one CPU fits into a ring of samples.
        waits_for_cpu: what this thread does is taken from somebody.
        is_watching: words are watched now: what follows them waits for the next turn.
        is_shown: somebody is shown each turn.
    """
    room_seconds = _RING_PART * ring_seconds
    if hurries(pipeline):
        return Pause(_TURN_SECONDS, _ANY_SECONDS, min(_HURRIED_TURN_SECONDS, room_seconds))
    if is_idle(pipeline):
        return _idle_pause(pipeline.parts.ledger.idle_seconds, room_seconds, is_shown=is_shown)
    if config.stops_nothing and is_watching and not waits_for_cpu:
        return _while_there_is_room(_WATCHING_TURN_SECONDS, room_seconds)
    if pipeline.awaits_burst:
        return _while_there_is_room(_BURST_TURN_SECONDS, room_seconds)
    ledger = pipeline.parts.ledger
    least_seconds = _least_seconds(ledger)
    if ledger.is_waiting or not ledger.has_room(is_unseen=True):
        calm_seconds = _CALM_TURN_SECONDS if ledger.is_start else _WAITING_TURN_SECONDS
        return _while_there_is_room(max(calm_seconds, least_seconds), room_seconds)
    # Who gets little CPU time has few windows: one a turn is enough.
    window_seconds = config.window_seconds / max(ledger.busy_share, 0.01)
    is_calm = not (ledger.is_start or is_watching)
    wanted = _CALM_TURN_SECONDS if is_calm else min(window_seconds, _CALM_TURN_SECONDS)
    usual = max(wanted, least_seconds)
    until_due = pipeline.windows_left * window_seconds
    if until_due > 0:
        usual = min(max(until_due, _BURST_TURN_SECONDS), usual)
    return _while_there_is_room(usual, room_seconds)


def _least_seconds(ledger: Ledger) -> float:
    """How long a turn is to wait for its cost; at first phases are new, and many of them short."""
    if ledger.is_start:
        return _TURN_SECONDS
    affordable = ledger.turn_seconds / (_TURNS_PART * ledger.own_cpu_rate)
    return min(max(affordable, _TURN_SECONDS), _SLOWEST_TURN_SECONDS)


def _idle_pause(idle_seconds: float, room_seconds: float, *, is_shown: bool) -> Pause:
    """Soon until it counts as idle for all; from then on when it has run, or now and then."""
    seconds = _SHOWN_IDLE_TURN_SECONDS if is_shown else _IDLE_TURN_SECONDS
    if idle_seconds < IDLE_SECONDS:
        seconds = max(IDLE_SECONDS - idle_seconds, _TURN_SECONDS)
    look_seconds = min(max(_LOOK_SECONDS, _IDLE_LOOK_PART * idle_seconds), _IDLE_LOOK_SECONDS)
    return Pause(seconds, _ANY_SECONDS, min(look_seconds, room_seconds))


def _while_there_is_room(seconds: float, room_seconds: float) -> Pause:
    """As long, unless the target uses so much meanwhile; it may go on until that is seen."""
    if seconds <= room_seconds:
        return Pause(seconds)
    look_seconds = min(_LOOK_SECONDS, room_seconds / 2)
    return Pause(seconds, room_seconds - look_seconds, look_seconds)
