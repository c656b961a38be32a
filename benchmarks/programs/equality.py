"""Holding translated code against single steps: from one hold, both reference the same."""

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
from memsampd.sampler.replica.comparison import Run, held_replica
from programs.holding import others_held
from programs.running import busiest_threads
from programs.workload import ANONYMOUS

FIELDS = ("ip", "address", "size_bytes", "is_write")
# The translated run may stop short of the stepped one for these reasons only (its buffer is some-
# what longer or shorter than what is wanted), the stepped one of the translated for these.
TESTED_MAY_STOP_AT = ("full", "hold", "unsupported", "modified")
REFERENCE_MAY_STOP_AT = ("full", "hold", "unsupported")
VDSO = "[vdso]"  # the code that reads the clock
_CONTEXT = 4
_ACCESSES_MINIMUM = 1000
_PAUSE_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two runs from one moment part.

    Attributes:
        index: the first access that differs, or the length of the shorter run.
        why: what is wrong, for people.
        tested: rows around it, one a line.
        reference: the same rows of the other run.
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


def compare(tested: Run, reference: Run, space: AddressSpace | None = None) -> Difference | None:
    """Compare two runs row by row, as far as both go; None if nothing differs.

    One may go on where the other had to stop (:data:`TESTED_MAY_STOP_AT`,
    :data:`REFERENCE_MAY_STOP_AT`); stopping for another reason is a difference.
    """
    common = min(len(tested.rows), len(reference.rows))
    differs = np.zeros(common, np.bool_)
    for name in FIELDS:
        found, expected = (getattr(run.rows, name)[:common] for run in (tested, reference))
        differs |= found != expected
    if differs.any():
        return _difference(int(differs.argmax()), "rows differ", tested, reference, space)
    why = ""
    if common < len(reference.rows) and tested.end not in TESTED_MAY_STOP_AT:
        why = f"tested ended early: {tested.end} {tested.number}"
    elif common < len(tested.rows) and reference.end not in REFERENCE_MAY_STOP_AT:
        why = f"reference ended early: {reference.end} {reference.number}"
    return _difference(common, why, tested, reference, space) if why else None


def _difference(
    index: int, why: str, tested: Run, reference: Run, space: AddressSpace | None
) -> Difference:
    return Difference(index, why, _rows(tested, index, space), _rows(reference, index, space))


def _rows(run: Run, index: int, space: AddressSpace | None) -> list[str]:
    rows, chunk = [], run.rows
    for at in range(max(index - _CONTEXT, 0), min(index + _CONTEXT + 1, len(chunk))):
        ip = int(chunk.ip[at])
        mapping = space.find(ip) if space else None
        place = (
            f" {mapping.path or ANONYMOUS}+{ip - mapping.start + mapping.offset:#x}"
            if mapping
            else ""
        )
        rows.append(
            f"{'>' if at == index else ' '} {at}: ip {ip:#x} "
            f"{'store' if chunk.is_write[at] else 'load'} {chunk.size_bytes[at]} bytes "
            f"at {int(chunk.address[at]):#x}{place}"
        )
    rows.append(f"  ended after {len(chunk)}: {run.end} {run.number}")
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
        pairs: pairs of runs compared.
        instructions: executed by the shorter run of each pair.
        accesses: compared rows.
        accesses_in_code: those of them whose instruction lies in the file that was expected.
        ends: why the tested runs ended.
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

    def add(self, tested: Run, reference: Run, code: str, space: AddressSpace) -> int:
        """Compare a pair; returns how many rows of it could be compared."""
        common = min(len(tested.rows), len(reference.rows))
        ip = tested.rows.ip
        self.pairs += 1
        self.ends[tested.end] += 1
        self.difference = compare(tested, reference, space)
        compared = common
        if self.difference is not None:
            clocks = np.flatnonzero(_inside(ip[: self.difference.index + 1], VDSO, space))
            if len(clocks):  # what follows may depend on the time, which differs
                self.clock_pairs += 1
                compared, self.difference = int(clocks[0]), None
        self.accesses += compared
        self.instructions += round(
            min(tested.instructions, reference.instructions) * compared / max(common, 1)
        )
        self.accesses_in_code += round(share_in(ip[:compared], code, space) * compared)
        return compared


def hold_together(
    pid: int,
    code: str,
    *,
    instructions: int,
    accesses_a_run: int,
    run_seconds: float,
    total_seconds: float,
    rehearsal_accesses: int = 0,
) -> Comparison:
    """Compare pairs of one process, by its busy threads in turn, until enough or one differs.

    Its other threads are held as well: what they write must be the same to both runs.

    Args:
        pid: the process; all calls for it come from this thread.
        code: see :func:`share_in`.
        instructions: enough, in all pairs together.
        accesses_a_run: each run is full then.
        run_seconds: each run of the pair ends then.
        total_seconds: no further pair is begun then.
        rehearsal_accesses: length of a translated run before all pairs, from which the translator
            learns how to lay out its code; 0: none.
    """
    comparison = Comparison()
    give_up = time.monotonic() + total_seconds
    with held_replica(pid) as replica:
        if rehearsal_accesses:
            for tid in busiest_threads(pid, _PAUSE_SECONDS):
                with suppress(CaptureError), replica.holding(tid):
                    replica.translated(rehearsal_accesses, run_seconds)
            replica.guide()
        while not comparison.is_enough(instructions) and time.monotonic() < give_up:
            for tid in busiest_threads(pid, _PAUSE_SECONDS):
                try:
                    with replica.holding(tid), others_held(pid, tid, asleep=True):
                        one = replica.translated(accesses_a_run, run_seconds)
                        other = replica.stepped(accesses_a_run, run_seconds)
                except CaptureError as error:
                    comparison.refusals[error.reason] += 1  # perhaps not the next time
                    continue
                clock_pairs = comparison.clock_pairs
                compared = comparison.add(one, other, code, read_maps(pid))
                if comparison.difference is not None:
                    return comparison
                if comparison.clock_pairs > clock_pairs:
                    # what lies behind the clock is for nothing
                    accesses_a_run = max(2 * compared, _ACCESSES_MINIMUM)
    return comparison
