"""The program that the observed process runs: what it has done so far, and what learned of it."""

from __future__ import annotations

import math

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd.daemon.closed import ClosedWindows
from memsampd.daemon.learners import Learners
from memsampd.phases.accuracy import AccuracyTracker
from memsampd.phases.records import Window
from memsampd.sampler.process.mapped import MemoryUse

# So long after it went on to code that no burst had seen a program is likely to do so again.
_NEW_CODE_LATELY_SECONDS = 0.5


class Program:
    """After an exec another one takes its place.

    Args:
        learners: of it.
        first_phase: its phases have ids from here on.
        now_seconds: CLOCK_MONOTONIC.
        since_seconds: when it began; -inf before the attach.

    Attributes:
        learners: of it.
        since_seconds: as told.
        learned_seconds: when it was looked up what is known of it.
        window: its last one; None before the first.
        phase: the phase of that.
        phases: ids of all its phases.
        own_phases: those in a window of which the process itself ran: in others child processes
            did, of which no burst can be had.
        next_phase: phases of the next program have ids from here on.
        bursts: that have told something of it, before the attach included.
        accuracy: of predicted phases.
        closed: its windows.
        new_thread: runs code that no burst has seen while other code is sought; None: none does.
        is_resumed: what was known of it has been told, or is not to be.
        memory: what it has, and was given since the end of its last window; None: not known.
    """

    def __init__(
        self,
        learners: Learners,
        first_phase: int,
        now_seconds: float,
        since_seconds: float = -math.inf,
    ) -> None:
        known = learners.known.windows
        self.learners = learners
        self.since_seconds = since_seconds
        self.learned_seconds = now_seconds
        self.window: Window | None = None
        self.phase: int | None = None
        self.phases: set[int] = set()
        self.own_phases: set[int] = set()
        self.next_phase = max([first_phase, *(phase + 1 for phase in known)])
        self.bursts = len(known)  # at least: its first burst is nothing urgent
        self.accuracy = AccuracyTracker()
        self.closed = ClosedWindows()
        self.new_thread: int | None = None
        self.is_resumed = not known
        self.memory: MemoryUse | None = None
        self._new_code_seconds = -math.inf  # when it went on to other code last

    @property
    def is_first(self) -> bool:
        """Whether no burst of it has counted yet."""
        return self.bursts == 0

    @property
    def predicted_phase(self) -> int | None:
        """The phase expected next."""
        return self.learners.predictor.predict()

    def own(self, phase: int | None) -> int | None:
        """Return a phase if a burst can see it, else None."""
        return phase if phase in self.own_phases else None

    def end_window(self, window: Window, phase: int) -> int | None:
        """Note a window; returns the phase that was expected.

        Args:
            window: that has ended.
            phase: its phase; which ones turned out to be the same when it came is known already.
        """
        predicted = self.predicted_phase
        self.phases.add(phase)
        if window.thread_samples:
            self.own_phases.add(phase)
        self.next_phase = max(self.next_phase, phase + 1)
        self.accuracy.update(predicted, phase)
        self.learners.predictor.observe(phase)
        self.window, self.phase = window, phase
        self.closed.add(window, phase)
        return predicted

    def merge(self, gone: int, into: int) -> None:
        """Two of its phases turned out to be one."""
        self.learners.predictor.merge(gone, into)
        self.learners.drift.merge(gone, into)
        self.learners.paces.merge(gone, into)
        self.closed.merge(gone, into)
        self.phases.discard(gone)
        if gone in self.own_phases:
            self.own_phases.remove(gone)
            self.own_phases.add(into)
        if self.phase == gone:
            self.phase = into

    # -- code ----------------------------------------------------------------------------------

    def goes_on_to_other_code(self, now_seconds: float) -> None:
        """It runs code that no burst has seen."""
        self._new_code_seconds = now_seconds

    def meets_new_code(self, now_seconds: float) -> bool:
        """Whether it went on to other code lately, or began: it may soon do so again."""
        return now_seconds - self._new_code_seconds < _NEW_CODE_LATELY_SECONDS

    def find_new_thread(self, seen: NDArray[np.bool_], now_seconds: float) -> int | None:
        """Return the thread that has just begun to run code which no burst has seen, once.

        Args:
            seen: of each bin of branch vectors, whether a burst ran code in it, shape (bins,).
            now_seconds: CLOCK_MONOTONIC.
        """
        tid = self.learners.unseen.new_thread(seen)
        if tid is not None:
            self.goes_on_to_other_code(now_seconds)
        return tid

    # -- memory --------------------------------------------------------------------------------

    def add_memory(self, memory: MemoryUse | None) -> None:
        """Note what it has, and was given since the last time; None: that is not known."""
        before = self.memory
        if memory is not None and before is not None:
            memory = replace(memory, mapped_bytes=memory.mapped_bytes + before.mapped_bytes)
        self.memory = memory

    def take_memory(self, of_windows: int = 1) -> MemoryUse | None:
        """Return what it has, and was given in a window.

        Args:
            of_windows: so many have ended since it was looked at, this one included: in which of
                them memory was given is not known.
        """
        memory = self.memory
        if memory is None:
            return None
        given_bytes = memory.mapped_bytes // of_windows
        self.memory = replace(memory, mapped_bytes=memory.mapped_bytes - given_bytes)
        return replace(memory, mapped_bytes=given_bytes)
