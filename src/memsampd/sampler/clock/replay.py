"""Timing what the running program does between two moments, by doing it again afterwards.

The thread is interrupted at moments of its CPU time, for its registers; it is not stopped, and
nothing is read meanwhile, so no cache is warmed. Afterwards its course is run again from the
registers of the first moment, on memory as it is by then. Where that comes to the very registers of
a later moment, the accesses between the two are known. Programs that have overwritten meanwhile
what they read do not come there, and are not timed by this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from memsampd.sampler.clock.moments import Moment
from memsampd.sampler.clock.records import Rows, Untimed
from memsampd.sampler.clock.upcoming import Course, upcoming_courses
from memsampd.sampler.records import TimedStretch

ReadCode = Callable[[int, int], bytes]
"""At an address, so many bytes of code, or fewer where it ends."""

RegistersAt = Callable[[int, int], bytes | None]
"""The replay's registers (user_regs_struct) after so many rows, when it stands at an instruction;
None where it does not come there before its next row, or that is not known."""

_MAX_CANDIDATES = 1024
_COST_DOUBT = 0.5


def find_moment(
    rows: Rows, moment: Moment, read_code: ReadCode, registers_at: RegistersAt
) -> int | None:
    """How many of these rows were made before a moment.

    Its next accesses tell where it may be; the registers, whether it is there. The accesses alone
    are not enough: of real programs' moments that occurred at one place only, many were wrong.

    Args:
        rows: the replay from an earlier moment on.
        moment: the later one.
        read_code: reads the program's code.
        registers_at: tells the replay's registers.

    Returns:
        The count; None where the replay does not come to the moment, or comes to it twice.
    """
    places = find_places(rows, moment, read_code)
    if len(places) > _MAX_CANDIDATES:
        return None
    equal = []
    for place in map(int, places):
        registers = registers_at(place, moment.register("RIP"))
        if registers is not None and moment.equals(registers):
            equal.append(place)
    return equal[0] if len(equal) == 1 else None


def find_places(rows: Rows, moment: Moment, read_code: ReadCode) -> NDArray[np.intp]:
    """Where in rows a moment's next accesses occur, as far as its code tells them."""
    found = [_places(rows, course) for course in upcoming_courses(moment, read_code)]
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.intp)


def _places(rows: Rows, course: Course) -> NDArray[np.intp]:
    """Where rows go on as a course does."""
    at = np.flatnonzero(rows.ip == np.uint64(course[0].ip)) if course else np.empty(0, np.intp)
    for offset, access in enumerate(course):
        at = at[at + offset < len(rows)]
        is_there = rows.ip[at + offset] == np.uint64(access.ip)
        if access.address is not None:
            is_there &= rows.address[at + offset] == np.uint64(access.address)
        at = at[is_there]
    return at


def time_replayed(
    moments: Sequence[Moment],
    rows: Rows,
    read_code: ReadCode,
    moment_seconds: float,
    registers_at: RegistersAt,
) -> TimedStretch | Untimed:
    """The accesses and the CPU time from the first moment to the last one that is found again.

    Args:
        moments: of one thread, at least two.
        rows: the replay from the registers of the first one.
        read_code: reads the program's code.
        moment_seconds: what an interrupt costs the thread.
        registers_at: see :func:`find_moment`.
    """
    count = len(moments)
    lost = count * moment_seconds
    if count < 2:
        return Untimed("few-moments", f"{count} moments, 2 are needed", count, lost)
    for last in range(count - 1, 0, -1):
        accesses = find_moment(rows, moments[last], read_code, registers_at)
        if not accesses:
            continue
        lasted = moments[last].cpu_seconds - moments[0].cpu_seconds
        # The interrupt of a moment lies behind it: that of the last one is not in the stretch.
        seconds = lasted - last * moment_seconds
        error = _COST_DOUBT * last * moment_seconds / seconds + 1 / accesses
        return TimedStretch(accesses, seconds, "replay", count, lost, error)
    return Untimed("not-found", "the replay came to none of the later moments", count, lost)
