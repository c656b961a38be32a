"""Schedules: which windows are worth a burst. One implementation a file, one factory."""

from __future__ import annotations

import random
from typing import Any

from memsampd.errors import UsageError
from memsampd.phases.protocols import Schedule
from memsampd.phases.schedule.all import AllWindows
from memsampd.phases.schedule.budget import BurstShape
from memsampd.phases.schedule.burst import RandomBursts
from memsampd.phases.schedule.none import NoBursts
from memsampd.phases.schedule.periodic import Periodic
from memsampd.phases.schedule.phase_guided import PhaseGuided

SCHEDULES = {
    kind.name: kind for kind in (PhaseGuided, Periodic, RandomBursts, AllWindows, NoBursts)
}
"""All schedules by name."""

__all__ = ["SCHEDULES", "BurstShape", "make_schedule"]


def make_schedule(name: str, rng: random.Random, **options: Any) -> Schedule:
    """Make a schedule by name.

    Args:
        name: "phase-guided", "periodic", "burst", "all" or "none".
        rng: source of chance.
        options: ``window_seconds``, ``share``, ``allowance_seconds``, ``shape`` of any schedule,
            and those of ``PhaseGuided``.

    Raises:
        UsageError: if there is no such schedule.
    """
    try:
        kind = SCHEDULES[name]
    except KeyError:
        raise UsageError(
            f"unknown schedule {name!r}", f"choose one of {', '.join(SCHEDULES)}"
        ) from None
    return kind(rng, **options)
