"""The seam inside the shadow source: how a shadow is executed and its references recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from memsampd.sampler.records import AccessChunk, BurstEnd
from memsampd.sampler.shadow.snapshots import Shadow

Consumer = Callable[[AccessChunk], None]
"""Takes rows while they are produced."""


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
        rows: rows in all.
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
        rows: what it referenced; empty if that was streamed.
        run_seconds: wall time for which the shadow ran.
        course: how it went on, if that was asked for and the executor can count.
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
        consume: Consumer | None = None,
        course_accesses: int = 0,
    ) -> Execution:
        """Execute a stopped shadow until it is full, ends or ``deadline_seconds`` have passed.

        Args:
            shadow: what to execute; it is left where it ended.
            max_accesses: rows after which it is full.
            deadline_seconds: wall time after which it ends.
            consume: takes the rows, chunk by chunk, instead of the result.
            course_accesses: go on, counting only, up to so many rows in all; 0: do not count.
        """

    def cancel(self) -> None:
        """End the present run and all later ones at once (``DEADLINE``); from any thread."""

    def close(self) -> None:
        """Give back memory and descriptors; a later run may take them again."""


class Collector:
    """Gathers chunks as the core hands them over: to a consumer, or for the result.

    Args:
        consume: takes each chunk; None: they are kept.
    """

    def __init__(self, consume: Consumer | None) -> None:
        self._consume = consume
        self._chunks: list[AccessChunk] = []
        self.accesses = self.instructions = self.prefetches = 0

    def add(self, taken: tuple[bytes, bytes, bytes, bytes, int, int]) -> None:
        """Take what ``take`` of the core returned."""
        ip, address, size_bytes, is_write, instructions, prefetches = taken
        chunk = AccessChunk(
            np.frombuffer(ip, np.uint64),
            np.frombuffer(address, np.uint64),
            np.frombuffer(size_bytes, np.uint16),
            np.frombuffer(is_write, np.bool_),
        )
        self.accesses += len(chunk)
        self.instructions += instructions
        self.prefetches += prefetches
        if self._consume is None:
            self._chunks.append(chunk)
        else:
            self._consume(chunk)

    def rows(self) -> AccessChunk:
        """Everything that was kept, as one."""
        if len(self._chunks) == 1:
            return self._chunks[0]
        return AccessChunk(
            *(
                np.concatenate([np.empty(0, dtype), *(getattr(c, name) for c in self._chunks)])
                for name, dtype in _COLUMNS.items()
            )
        )


_COLUMNS = {"ip": np.uint64, "address": np.uint64, "size_bytes": np.uint16, "is_write": np.bool_}
