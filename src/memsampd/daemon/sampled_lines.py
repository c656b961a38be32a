"""Lines to be watched that a PMU has chosen: those of loads and stores that it sampled."""

from __future__ import annotations

import random

import msgspec

from memsampd.exporters.snapshot import AddressTally
from memsampd.models.open_lines import OpenLine, line_of_access
from memsampd.sampler.pmu.addresses import AccessSampler

PERIOD = 20_000_000
"""Accesses between two samples: some tens a second."""
_MOST = 16  # of a turn


class SampledLine(msgspec.Struct, frozen=True):
    """The line of an access that was sampled.

    Attributes:
        line: its words.
        tid: the thread that touched it.
        time_seconds: when, CLOCK_MONOTONIC.
    """

    line: OpenLine
    tid: int
    time_seconds: float


class SampledLines:
    """Reads a stream of sampled accesses, each of which had the same chance.

    Args:
        sampler: the stream.
        line_bytes: size of a line.
        rng: chooses words.
    """

    def __init__(self, sampler: AccessSampler, line_bytes: int, rng: random.Random) -> None:
        self._sampler = sampler
        self._line_bytes = line_bytes
        self._rng = rng
        self.name = sampler.name

    def take(self) -> tuple[list[SampledLine], AddressTally]:
        """Take what came since the last call.

        Returns:
            Some lines, chosen at random; what became of all samples.
        """
        found = self._sampler.read(0.0)
        tally = AddressTally(len(found), found.invalid, found.lost, found.throttled)
        chosen = self._rng.sample(range(len(found)), min(len(found), _MOST))
        lines = [
            SampledLine(
                line_of_access(int(found.address[at]), self._line_bytes, self._rng),
                int(found.tid[at]),
                float(found.time_seconds[at]),
            )
            for at in chosen
        ]
        return lines, tally

    def close(self) -> None:
        """Release the events."""
        self._sampler.close()
