"""How much the whole run's curve needs further bursts of each phase."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

# What the need of a phase is at least, and at most: its scatter is known by few bursts.
_LEAST_NEED, _MOST_NEED = 0.25, 4.0
USUAL_CPU_SECONDS = 0.03
"""What a burst takes of memsampd's own CPU time, as long as none was seen: counts as one."""


class PhaseNeed(msgspec.Struct):
    """What a phase has had.

    Attributes:
        windows: its own, since it was new or has drifted.
        bursts: since then; short ones count as parts.
        cpu_seconds: memsampd's own CPU time that these took.
    """

    windows: int = 0
    bursts: float = 0.0
    cpu_seconds: float = 0.0

    def absorb(self, other: PhaseNeed) -> None:
        """Add what another phase has had that turned out to be this one."""
        self.windows += other.windows
        self.bursts += other.bursts
        self.cpu_seconds += other.cpu_seconds

    @property
    def cost_seconds(self) -> float:
        """Own CPU time that a burst of it takes."""
        return (self.cpu_seconds + USUAL_CPU_SECONDS) / (self.bursts + 1)


def needs(phases: Mapping[int, PhaseNeed], scatter: Mapping[int, float]) -> dict[int, float]:
    """Say how much sooner than usual a phase is to have its next burst; 1 on the average window.

    The variance of the whole run's curve is the sum over phases of (windows * scatter)**2 / bursts.
    For a given CPU time of bursts it is least if a phase has bursts in proportion to
    windows * scatter / sqrt(cost of a burst). So its bursts should come at a rate of
    scatter / sqrt(cost) a window, and sooner where it has fewer than its part by now.

    Args:
        phases: what each has had.
        scatter: how far its bursts differ, in any unit; of the same phases.

    References:
        Neyman: On the two different aspects of the representative method, JRSS 97, 1934.
    """
    rate = {id: scatter[id] / math.sqrt(each.cost_seconds) for id, each in phases.items()}
    windows = sum(each.windows for each in phases.values())
    parts = sum(rate[id] * each.windows for id, each in phases.items())
    if not parts > 0:
        return {}
    bursts = sum(each.bursts for each in phases.values())
    found = {}
    for id, each in phases.items():
        due = bursts * rate[id] * each.windows / parts
        need = rate[id] * windows / parts * (due + 0.5) / (each.bursts + 0.5)
        found[id] = min(max(need, _LEAST_NEED), _MOST_NEED)
    return found
