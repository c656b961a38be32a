"""How long a session's next turn may wait."""

from __future__ import annotations

from memsampd.daemon.config import SessionConfig
from memsampd.daemon.pipeline import Pipeline

# What is done a turn takes a millisecond or so, however few samples have come, and more where each
# finds the caches cold: a few windows at once are cheaper.
_TURN_SECONDS = 0.25
# While no burst can be paid for, or no window ends, there is nothing to decide, and after the start
# little, unless words are watched. What is sampled meanwhile must have room, though the target may
# suddenly do more: a ring has some 700 samples.
_CALM_TURN_SECONDS = 0.5
_CALM_TURN_SAMPLES = 250
_WAITING_TURN_SECONDS = 1.0  # of who uses little CPU time
_HURRIED_TURN_SECONDS = 0.03
_BURST_TURN_SECONDS = 0.12  # what was ordered has mostly come by then
# Debug registers are idle from the end of a watch to the next turn: where nothing is stopped,
# nothing else tells of large caches. Not where no CPU is idle: a turn costs what a watch may.
_WATCHING_TURN_SECONDS = 0.1
_IDLE_TURN_SECONDS = 0.25
_IDLE_AFTER_SECONDS = 1.0


def is_idle(pipeline: Pipeline) -> bool:
    """Whether the target has not run lately."""
    return pipeline.parts.ledger.idle_seconds >= _IDLE_AFTER_SECONDS


def hurries(pipeline: Pipeline) -> bool:
    """Whether a first burst is awaited of a target that runs: turns are to be short."""
    return pipeline.hurries and not is_idle(pipeline)


def pause_seconds(
    pipeline: Pipeline,
    config: SessionConfig,
    period_seconds: float,
    *,
    waits_for_cpu: bool,
    is_watching: bool,
) -> float:
    """How long the next turn may wait, seconds.

    Args:
        pipeline: what is decided there.
        config: how to observe.
        period_seconds: CPU time between two branch samples.
        waits_for_cpu: what this thread does is taken from somebody.
        is_watching: words are watched now: what follows them waits for the next turn.
    """
    if hurries(pipeline):
        return _HURRIED_TURN_SECONDS
    if is_idle(pipeline):
        return _IDLE_TURN_SECONDS
    if config.stops_nothing and is_watching and not waits_for_cpu:
        return _WATCHING_TURN_SECONDS
    if pipeline.awaits_burst:
        return _BURST_TURN_SECONDS
    ledger = pipeline.parts.ledger
    room_seconds = _CALM_TURN_SAMPLES * period_seconds
    busy_share = max(ledger.busy_share, 0.01)
    if ledger.is_waiting or not ledger.has_room(is_unseen=True):
        calm_seconds = _CALM_TURN_SECONDS if ledger.is_start else _WAITING_TURN_SECONDS
        pause = min(calm_seconds, room_seconds) / min(busy_share, 1.0)
        return max(min(pause, _WAITING_TURN_SECONDS), _TURN_SECONDS)
    # Who gets little CPU time has few windows: one a turn is enough.
    pause = config.window_seconds / busy_share
    is_calm = not (ledger.is_start or is_watching)
    wanted = _CALM_TURN_SECONDS if is_calm else min(pause, _CALM_TURN_SECONDS)
    usual = max(min(wanted, room_seconds), _TURN_SECONDS)
    until_due = pipeline.windows_left * pause
    return min(max(until_due, _BURST_TURN_SECONDS), usual) if until_due > 0 else usual
