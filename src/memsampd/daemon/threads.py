"""Which thread of a process a burst observes."""

from __future__ import annotations

import random
from collections.abc import Mapping


def choose_thread(
    pid: int, weights: Mapping[int, float], alive: frozenset[int], rng: random.Random
) -> int:
    """Choose a thread at random, in proportion to how much it has run.

    Args:
        pid: the process; its first thread is chosen where no other is known to have run.
        weights: CPU time of threads lately, in any unit, by id.
        alive: threads that there are now.
        rng: chooses.
    """
    ran = {tid: weight for tid, weight in weights.items() if weight > 0 and tid in alive}
    return rng.choices(list(ran), list(ran.values()))[0] if ran else pid
