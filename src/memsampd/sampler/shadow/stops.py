"""How long making a shadow will stop the target, told before it is stopped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from memsampd.sampler.process.identity import PROC

# Without a measurement: 19 to 27 ms were measured for 1 GB of 4 KiB pages in a virtual machine.
_PRIOR_SECONDS_PER_BYTE = 20e-3 / 1e9
_PRIOR_BYTES = 64e6  # how much measured memory the prior weighs as much as
# Without a measurement: copying what a clone lacks, and how many bytes measured weigh as much.
_PRIOR_COPY_SECONDS_PER_BYTE = 1 / 2e9
_PRIOR_COPY_BYTES = 4e6
_CALL_SECONDS = 0.3e-3  # injecting a call, whatever the size
_SURPRISE = 4.0  # a stop teaches no more than so many times what was expected of it
_KEEP = 7 / 8  # of the weight of earlier measurements, at each new one
_MEMORY_SECONDS = 60.0
_HUGE_PAGE_SHARE = 1 / 16  # cost of a huge page, as a part of that of its size in small ones


class StopEstimator:
    """Expects a stop in proportion to private memory, whose page tables are copied.

    The factor is learnt from stops of this target, beginning with a prior. A single one that took
    far longer than expected, for the machine was busy, says little of the next: it takes a few of
    them to forbid what one alone would. An estimate that is too long would never be corrected,
    since nothing is measured any more; so it is then looked into, at most once a minute: the share
    of huge pages, which cost less, is read, and measurements older than that are forgotten. What
    the prior alone forbids stays forbidden until memory shrinks.

    To that comes the copy of what a clone lacks (:mod:`memsampd.sampler.shadow.unforked`).

    Args:
        max_stop_seconds: the longest stop allowed.
        huge_bytes: counts the target's memory in huge pages; dear, see :func:`read_huge_bytes`.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        max_stop_seconds: float = math.inf,
        huge_bytes: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_stop_seconds = max_stop_seconds
        self._huge_bytes = huge_bytes
        self._now = clock
        self._prior = _PRIOR_SECONDS_PER_BYTE
        self._seconds = self._bytes = 0.0
        self._copy_seconds = self._copy_bytes = 0.0
        self._learnt_at = self._looked_at = -math.inf

    def estimate(self, private_bytes: int, count: int = 1, unforked_bytes: int = 0) -> float:
        """Seconds that so many shadows in one stop will take."""
        copy_slope = (self._copy_seconds + _PRIOR_COPY_SECONDS_PER_BYTE * _PRIOR_COPY_BYTES) / (
            self._copy_bytes + _PRIOR_COPY_BYTES
        )
        return (
            count * (_CALL_SECONDS + self._seconds_per_byte() * private_bytes)
            + copy_slope * unforked_bytes
        )

    def _seconds_per_byte(self) -> float:
        return (self._seconds + self._prior * _PRIOR_BYTES) / (self._bytes + _PRIOR_BYTES)

    def learn_copy(self, unforked_bytes: int, seconds: float) -> None:
        """Take in how long a copy of what a clone lacks was measured to take."""
        self._copy_seconds = self._copy_seconds * _KEEP + seconds
        self._copy_bytes = self._copy_bytes * _KEEP + unforked_bytes

    def learn(self, private_bytes: int, count: int, stop_seconds: float) -> None:
        """Take in a stop that was measured, less such a copy."""
        copying_seconds = max(stop_seconds / count - _CALL_SECONDS, 0.0)
        believable_seconds = _SURPRISE * self._seconds_per_byte() * private_bytes
        copying_seconds = min(copying_seconds, believable_seconds)
        self._seconds = self._seconds * _KEEP + copying_seconds
        self._bytes = self._bytes * _KEEP + private_bytes
        self._learnt_at = self._now()

    def forbids(self, private_bytes: int, count: int = 1, unforked_bytes: int = 0) -> bool:
        """Whether the stop would be too long."""
        if self.estimate(private_bytes, count, unforked_bytes) <= self.max_stop_seconds:
            return False
        self._look_again(private_bytes)
        return self.estimate(private_bytes, count, unforked_bytes) > self.max_stop_seconds

    def _look_again(self, private_bytes: int) -> None:
        now = self._now()
        if now - self._learnt_at > _MEMORY_SECONDS:
            self._seconds = self._bytes = 0.0
            self._copy_seconds = self._copy_bytes = 0.0
        least = _PRIOR_SECONDS_PER_BYTE * _HUGE_PAGE_SHARE * private_bytes
        if least > self.max_stop_seconds or now - self._looked_at <= _MEMORY_SECONDS:
            return  # huge pages could not change it, or it is known how many there are
        self._looked_at = now
        share = min(self._huge_bytes() / private_bytes, 1.0) if private_bytes else 0.0
        self._prior = _PRIOR_SECONDS_PER_BYTE * (1 - share * (1 - _HUGE_PAGE_SHARE))


def read_huge_bytes(pid: int, proc: Path = PROC) -> int:
    """Private memory of a process in huge pages; 0 where the kernel does not say.

    The kernel walks all page tables of the process for it.
    """
    try:
        text = (proc / str(pid) / "smaps_rollup").read_text()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(fields.get("AnonHugePages", "0 kB").split()[0]) * 1024
