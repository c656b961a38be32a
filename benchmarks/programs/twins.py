"""Holding one executor against another: shadows of one stop must reference the same."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from memsampd.errors import CaptureError
from memsampd.sampler.process.maps import AddressSpace, read_maps
from memsampd.sampler.records import Burst, BurstEnd, BurstRequest
from memsampd.sampler.shadow.executors import ShadowExecutor
from memsampd.sampler.shadow.source import ShadowSource
from memsampd.sampler.shadow.translating import TranslatingExecutor
from programs.running import busiest_threads
from programs.workload import ANONYMOUS

FIELDS = ("ip", "address", "size_bytes", "is_write")
# The tested executor may stop short of the reference only for these reasons, the reference of the
# tested one for these: it emulates no system call and copies no shared page.
TESTED_MAY_STOP_AT = (BurstEnd.DEADLINE, BurstEnd.UNSUPPORTED)
REFERENCE_MAY_STOP_AT = (*TESTED_MAY_STOP_AT, BurstEnd.SYSCALL, BurstEnd.FAULT)
VDSO = "[vdso]"  # the code that reads the clock
_CONTEXT = 4
_ACCESSES_MINIMUM = 1000
_PAUSE_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two bursts of one moment part.

    Attributes:
        index: the first access that differs, or the length of the shorter burst.
        why: what is wrong, for people.
        tested: rows around it, one a line.
        reference: the same rows of the other burst.
    """

    index: int
    why: str
    tested: Sequence[str]
    reference: Sequence[str]

    def __str__(self) -> str:
        lines = [f"{self.why} (access {self.index})"]
        for title, rows in (("tested", self.tested), ("reference", self.reference)):
            lines += [f"  {title}:", *(f"    {row}" for row in rows)]
        return "\n".join(lines)


def compare(
    tested: Burst, reference: Burst, space: AddressSpace | None = None
) -> Difference | None:
    """Compare two bursts row by row, as far as both go; None if nothing differs.

    One may go on where the other had to stop (:data:`TESTED_MAY_STOP_AT`,
    :data:`REFERENCE_MAY_STOP_AT`); stopping for another reason is a difference.
    """
    common = min(len(tested), len(reference))
    differs = np.zeros(common, np.bool_)
    for name in FIELDS:
        differs |= getattr(tested, name)[:common] != getattr(reference, name)[:common]
    if differs.any():
        return _difference(int(differs.argmax()), "rows differ", tested, reference, space)
    why = ""
    if len(tested) < len(reference) and tested.end not in TESTED_MAY_STOP_AT:
        why = f"tested ended early: {tested.end} {tested.end_detail}".rstrip()
    elif len(reference) < len(tested) and reference.end not in REFERENCE_MAY_STOP_AT:
        why = f"reference ended early: {reference.end} {reference.end_detail}".rstrip()
    return _difference(common, why, tested, reference, space) if why else None


def _difference(
    index: int, why: str, tested: Burst, reference: Burst, space: AddressSpace | None
) -> Difference:
    return Difference(index, why, _rows(tested, index, space), _rows(reference, index, space))


def _rows(burst: Burst, index: int, space: AddressSpace | None) -> list[str]:
    rows = []
    for at in range(max(index - _CONTEXT, 0), min(index + _CONTEXT + 1, len(burst))):
        ip = int(burst.ip[at])
        mapping = space.find(ip) if space else None
        place = (
            f" {mapping.path or ANONYMOUS}+{ip - mapping.start + mapping.offset:#x}"
            if mapping
            else ""
        )
        rows.append(
            f"{'>' if at == index else ' '} {at}: ip {ip:#x} "
            f"{'store' if burst.is_write[at] else 'load'} {burst.size_bytes[at]} bytes "
            f"at {int(burst.address[at]):#x}{place}"
        )
    rows.append(f"  ended after {len(burst)}: {burst.end} {burst.end_detail}".rstrip())
    return rows


def share_in(ip: NDArray[np.uint64], code: str, space: AddressSpace) -> float:
    """Return the share of instruction addresses that lie in a file (or in no file: ``ANONYMOUS``).

    Args:
        ip: instruction addresses, shape (n,), uint64.
        code: part of the path, as in :class:`programs.workload.Workload`.
        space: the areas of the process.
    """
    return float(_inside(ip, code, space).mean()) if len(ip) else 0.0


def _inside(ip: NDArray[np.uint64], code: str, space: AddressSpace) -> NDArray[np.bool_]:
    inside = np.zeros(len(ip), np.bool_)
    for mapping in space.mappings:
        if mapping.is_executable and (
            mapping.path == "" if code == ANONYMOUS else code in mapping.path
        ):
            inside |= (ip >= np.uint64(mapping.start)) & (ip < np.uint64(mapping.end))
    return inside


@dataclass(slots=True)
class Comparison:
    """What the comparison of many pairs came to.

    Attributes:
        pairs: pairs of bursts compared.
        instructions: executed by the shorter burst of each pair.
        accesses: compared rows.
        accesses_in_code: those of them whose instruction lies in the file that was expected.
        ends: why the tested bursts ended, with the detail where it is no mere deadline.
        refusals: why there was no pair, by reason.
        clock_pairs: pairs that part after they read the clock, compared up to there only: the time
            differs, and in some programs (redis counts latencies) what follows with it.
        difference: the first one; None while all are equal.
    """

    pairs: int = 0
    instructions: int = 0
    accesses: int = 0
    accesses_in_code: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    clock_pairs: int = 0
    difference: Difference | None = None

    def is_enough(self, instructions: int) -> bool:
        """Whether so many instructions were compared, some of them where they should be."""
        return self.instructions >= instructions and self.accesses_in_code > 0

    def add(self, tested: Burst, reference: Burst, code: str, space: AddressSpace) -> int:
        """Compare a pair; returns how many rows of it could be compared."""
        common = min(len(tested), len(reference))
        self.pairs += 1
        self.ends[f"{tested.end} {tested.end_detail}".rstrip()] += 1
        self.difference = compare(tested, reference, space)
        compared = common
        if self.difference is not None:
            clocks = np.flatnonzero(_inside(tested.ip[: self.difference.index + 1], VDSO, space))
            if len(clocks):  # what follows may depend on the time, which differs
                self.clock_pairs += 1
                compared, self.difference = int(clocks[0]), None
        self.accesses += compared
        self.instructions += round(
            min(tested.instructions, reference.instructions) * compared / max(common, 1)
        )
        self.accesses_in_code += round(share_in(tested.ip[:compared], code, space) * compared)
        return compared


def hold_together(
    pid: int,
    code: str,
    tested: ShadowExecutor,
    reference: ShadowExecutor,
    *,
    instructions: int,
    accesses_a_burst: int,
    burst_seconds: float,
    total_seconds: float,
    rehearsal_accesses: int = 0,
) -> Comparison:
    """Take pairs of one process, by its busy threads in turn, until enough or one differs.

    Args:
        pid: the process; all calls for it come from this thread.
        code: see :func:`share_in`.
        tested: runs the first shadow of each stop.
        reference: runs the second.
        instructions: enough, in all pairs together.
        accesses_a_burst: each burst is full then.
        burst_seconds: each burst of the pair ends then.
        total_seconds: no further pair is begun then.
        rehearsal_accesses: length of a burst of the tested executor alone before all pairs, from
            which a translator learns how to lay out its code; 0: none.
    """
    comparison = Comparison()
    source = ShadowSource(pid, tested)
    give_up = time.monotonic() + total_seconds
    try:
        if rehearsal_accesses and isinstance(tested, TranslatingExecutor):
            for tid in busiest_threads(pid, _PAUSE_SECONDS):
                with suppress(CaptureError):
                    source.capture(BurstRequest(tid, rehearsal_accesses, burst_seconds))
            tested.guide()
        while not comparison.is_enough(instructions) and time.monotonic() < give_up:
            for tid in busiest_threads(pid, _PAUSE_SECONDS):
                request = BurstRequest(tid, accesses_a_burst, burst_seconds)
                try:
                    one, other = source.capture_by(request, (tested, reference))
                except CaptureError as error:
                    comparison.refusals[error.reason] += 1  # perhaps not the next time
                    continue
                clock_pairs = comparison.clock_pairs
                compared = comparison.add(one, other, code, read_maps(pid))
                if comparison.difference is not None:
                    return comparison
                if (
                    comparison.clock_pairs > clock_pairs
                ):  # what lies behind the clock is for nothing
                    accesses_a_burst = max(2 * compared, _ACCESSES_MINIMUM)
    finally:
        source.close()
    return comparison
