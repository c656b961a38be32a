"""A scout: a shadow that runs ahead of the target at its own speed and is observed on its way.

A copy costs the target a stop and a page fault for every page that it writes to afterwards, however
much is learnt from it. So one copy shows several moments of the near future: at each of them a copy
of the copy is observed, which costs the target nothing, and then the scout itself does the same
untranslated, which times it, and goes on to the next.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from memsampd import _core
from memsampd.sampler.process.identity import PROC
from memsampd.sampler.records import BurstCost, TwinMeasurement
from memsampd.sampler.shadow.collectors import Collector
from memsampd.sampler.shadow.executors import Execution
from memsampd.sampler.shadow.snapshots import Shadow, Snapshots
from memsampd.sampler.shadow.twin import TwinRunner, used_pages

_RIP_OFFSET = 16 * 8  # in struct user_regs_struct
# How often it is looked at what a scout does: the shortest stretch of other code that is noticed.
_LOOK_SECONDS = 0.002


class Scout:
    """A shadow on its way.

    Args:
        shadow: where it was made; it is the scout's from now on.
        snapshots: makes copies of it, and ends it.
        runner: runs it.
        deadline_seconds: wall time that it has in all.
        proc: root of the proc file system.

    Attributes:
        ahead_seconds: CPU time that it has used of its own since the target was stopped.
        can_go_on: it can be observed, and run on.
    """

    def __init__(
        self,
        shadow: Shadow,
        snapshots: Snapshots,
        runner: TwinRunner,
        deadline_seconds: float,
        proc: Path = PROC,
    ) -> None:
        self._shadow = shadow
        self._snapshots = snapshots
        self._runner = runner
        self._give_up = time.monotonic() + deadline_seconds
        self._proc = proc
        self._has_ended = self._has_moved = False
        self.ahead_seconds = 0.0
        self.can_go_on = True
        runner.begin(shadow)

    @property
    def remaining_seconds(self) -> float:
        """Wall time that is left."""
        return max(self._give_up - time.monotonic(), 0.0)

    def find(self) -> int:
        """Find out where it stands.

        Returns:
            The address of its next instruction.

        Raises:
            OSError: it is gone.
        """
        if self._has_moved:  # in the files that it reads, too
            self._shadow = replace(
                self._shadow,
                registers=_core.native_registers(self._shadow.pid),
                identity=self._runner.identity(),
            )
            self._has_moved = False
        (address,) = struct.unpack_from("<Q", self._shadow.registers, _RIP_OFFSET)
        return int(address)

    def observe(
        self,
        execute: Callable[[Shadow], Execution],
        collector: Collector,
        *,
        is_timed: bool,
        is_last: bool,
    ) -> tuple[Execution, TwinMeasurement | None, BurstCost]:
        """Observe what it will do next, by a copy; and do it, if that is to be timed.

        Args:
            execute: observes a copy.
            collector: what takes the copy's references.
            is_timed: the scout is to follow.
            is_last: it need not go on.

        Raises:
            OSError: it, or its copy, is gone.
        """
        self.find()
        if is_last:
            self.can_go_on = False
            if not is_timed:  # no copy is needed
                return execute(self._shadow), None, BurstCost()
        copy = self._snapshots.fork(self._shadow)
        pages = None
        try:
            execution = execute(copy)
            if is_timed:
                pages = used_pages(copy, self._proc)
        finally:
            cost = self._snapshots.discard(copy, self._shadow)
        if pages is None or execution.course is None or not collector.rows:
            return execution, None, cost
        accesses_per_row = collector.accesses / collector.rows
        passage = None
        with suppress(OSError):  # without being timed the burst is still good
            passage = self._runner.follow(
                self._shadow,
                execution.course,
                pages,
                self.remaining_seconds,
                accesses_per_row=accesses_per_row,
            )
        self.can_go_on &= passage is not None and passage.can_go_on
        if passage is None:
            return execution, None, cost
        self.ahead_seconds += passage.cpu_seconds
        self._has_moved = True
        return execution, passage.measurement, cost

    def advance(self, seconds: float, is_wanted: Callable[[int], bool]) -> float:
        """Run on for so long, or to where it is found at a wanted instruction, or as far as it can.

        Args:
            seconds: wall time.
            is_wanted: tells of an instruction's address whether to stop there.

        Returns:
            How much of the time is left because it was found at one; 0 if it was not.
        """
        end = time.monotonic() + min(seconds, self.remaining_seconds)
        while self.can_go_on and (left := end - time.monotonic()) > 0:
            try:
                passage = self._runner.advance(self._shadow, min(left, _LOOK_SECONDS))
            except OSError:
                self.can_go_on = False
                return 0.0
            self.ahead_seconds += passage.cpu_seconds
            self._has_moved = True
            self.can_go_on = passage.can_go_on and self.remaining_seconds > 0
            if self.can_go_on and is_wanted(passage.ip):
                return max(end - time.monotonic(), 0.0)
        return 0.0

    def end(self) -> BurstCost:
        """Kill it; may be called twice.

        Returns:
            What it cost since its last observation.
        """
        if self._has_ended:
            return BurstCost()
        self._has_ended, self.can_go_on = True, False
        return self._snapshots.end(self._shadow)
