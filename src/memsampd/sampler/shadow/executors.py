"""The seam inside the shadow source: how a shadow is executed and its references recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from memsampd.sampler.records import AccessChunk, BurstEnd
from memsampd.sampler.shadow.collectors import Collector
from memsampd.sampler.shadow.snapshots import Shadow


@dataclass(frozen=True, slots=True)
class CoursePoint:
    """A moment of a shadow's course: before it came to an instruction for the n-th time.

    Attributes:
        ip: the instruction's address.
        arrivals: n, at least 1.
        rows: rows before it.
    """

    ip: int
    arrivals: int
    rows: int


@dataclass(frozen=True, slots=True)
class Course:
    """What a shadow did, including what was counted and not recorded.

    Attributes:
        rows: rows in all, or until other code altogether began.
        lead_in: where to begin to time a twin; None if it did not get far.
        end: where to stop; None if no instruction will do.
        ends_in_call: a system call comes next.
    """

    rows: int
    lead_in: CoursePoint | None
    end: CoursePoint | None
    ends_in_call: bool


@dataclass(frozen=True, slots=True)
class Execution:
    """What one shadow did: the fields of :class:`memsampd.sampler.records.Burst` of these names.

    Attributes:
        rows: what it referenced, as far as the collector kept it.
        run_seconds: wall time for which the shadow ran.
        course: how it went on, if that was asked for and the executor can count.
        code_ip: instructions that it executed, as far as it counted, shape (n,), uint64.
        code_times: how often each, shape (n,), uint64.
    """

    rows: AccessChunk
    accesses: int
    instructions: int
    prefetches: int
    end: BurstEnd
    end_detail: str
    run_seconds: float
    emulated_calls: int = 0
    course: Course | None = None
    code_ip: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    code_times: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))


class ShadowExecutor(Protocol):
    """Runs shadows of one target.

    Contract: the shadow makes no system call but those that stay inside it (docs/shadow.md); what
    is recorded is in program order and complete up to the instruction that ended it; an instruction
    whose references cannot be told ends it.
    """

    name: str

    def run(
        self,
        shadow: Shadow,
        max_accesses: int,
        deadline_seconds: float,
        collector: Collector | None = None,
        course_accesses: int = 0,
    ) -> Execution:
        """Execute a stopped shadow until it is full, ends or ``deadline_seconds`` have passed.

        Args:
            shadow: what to execute; it is left where it ended.
            max_accesses: rows after which it is full.
            deadline_seconds: wall time after which it ends.
            collector: takes what is recorded while it is; None: rows, kept for the result.
            course_accesses: also tell how often each instruction ran, unless it is 0.
        """

    def cancel(self) -> None:
        """End the present run and all later ones at once (``DEADLINE``); from any thread."""

    def close(self) -> None:
        """Give back memory and descriptors; a later run may take them again."""
