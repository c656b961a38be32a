"""Walks: what a thread would do from a sample on, worked out beside it while it runs on."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from memsampd.sampler.records import BurstEnd
from memsampd.sampler.walk.instructions import Compiler
from memsampd.sampler.walk.memory import PAGE_BYTES, ReadMemory, WalkMemory
from memsampd.sampler.walk.state import RSP, State, Step, WalkEndError

# A walk of which fewer addresses are known tells little of what comes: it ends.
_KNOWN_LEAST = 0.8
_JUDGED_ROWS = 64
_MOST_INSTRUCTIONS = 12_000  # 2 to 4 us each
_LOOK_AT_CLOCK = 256  # instructions
# Jumps that are guessed: loops go on, and what lies ahead is mostly an exception.
_BACK, _AHEAD = 0.9, 0.3


@dataclass(frozen=True, slots=True)
class Walked:
    """Where a walk has been.

    Attributes:
        rows: references: instruction, address, bytes, whether it is a store.
        registers: at the begin, after half of the rows, and at the end; what is not known then is
            as it was at the begin.
        ips: where it was at these moments.
        shares: which part of the rows there was at these moments.
        code_times: how often each instruction was executed.
        end: why it ended.
        detail: the same, for people.
        unknown_rows: references whose addresses were not known: not among the rows.
        guesses: jumps that were guessed.
        prefetches: software prefetches met.
        repeats: elements that string instructions moved.
    """

    rows: Sequence[tuple[int, int, int, bool]]
    registers: tuple[tuple[int, ...], ...]
    ips: tuple[int, ...]
    shares: tuple[float, float, float]
    code_times: Counter[int]
    end: BurstEnd
    detail: str
    unknown_rows: int
    guesses: int
    prefetches: int
    repeats: int


@dataclass(slots=True)
class _Course:
    """Where a walk is, and its middle: registers, place and rows; at first, those of its begin."""

    ip: int
    middle: tuple[tuple[int, ...], int, int]
    code_times: Counter[int] = field(default_factory=Counter)


class Walker:
    """Follows code of one process; what it has learnt of it is kept.

    Args:
        read: reads its memory and code.
        rng: guesses.
        is_code: whether code can be run at an address; by default everywhere.
        most_steps: instructions that are known, about 1 KB each; with more a walk begins anew.
    """

    def __init__(
        self,
        read: ReadMemory,
        rng: random.Random,
        is_code: Callable[[int], bool] = lambda address: True,
        most_steps: int = 100_000,
    ) -> None:
        self._most_steps = most_steps
        self._is_code = is_code
        self._read = read
        self._rng = rng
        self._steps: dict[int, Step] = {}
        self._code: dict[int, bytes] = {}  # pages that steps were made of
        self._checked: dict[int, bytes] = {}  # of these, in the present walk
        self._compiler = Compiler(self._read_code)

    def walk(
        self,
        ip: int,
        registers: Sequence[int],
        most_rows: int,
        deadline_seconds: float,
        thread_area: int | None = None,
        stack: bytes = b"",
    ) -> Walked:
        """Follow a thread.

        Args:
            ip: where it is.
            registers: its 16 general registers, in the order of samples.
            most_rows: references after which to end.
            deadline_seconds: CLOCK_MONOTONIC time at which to end.
            thread_area: its fs base; None if that is not known.
            stack: what was on its stack, from the stack pointer upwards.
        """
        self._checked = {}
        if len(self._steps) > self._most_steps:
            self._steps.clear()
            self._code.clear()
        state = State(list(registers), WalkMemory(self._read), self._guess, thread_area)
        state.memory.prepare(registers[RSP], stack)
        begun = tuple(registers)
        course = _Course(ip, (begun, ip, 0))
        end, detail = BurstEnd.FULL, ""
        try:
            self._follow(state, course, most_rows, deadline_seconds)
        except WalkEndError as ended:
            end, detail = ended.end, ended.detail
        at_half, half_ip, half_rows = course.middle
        return Walked(
            state.rows,
            (begun, at_half, _known_of(state, begun)),
            (ip, half_ip, course.ip),
            (0.0, half_rows / max(len(state.rows), 1), 1.0),
            course.code_times,
            end,
            detail,
            state.unknown_rows,
            state.guesses,
            state.prefetches,
            state.repeats,
        )

    def _follow(
        self, state: State, course: _Course, most_rows: int, deadline_seconds: float
    ) -> None:
        """Go on until there are so many rows.

        Raises:
            WalkEndError: the walk ends before.
        """
        ip, begun, code_times = course.ip, course.middle[0], course.code_times
        try:
            for count in range(_MOST_INSTRUCTIONS):
                step = self._steps.get(ip) if ip >> 12 in self._checked else None
                at = ip
                ip = (step or self._step(ip))(state)
                code_times[at] += 1
                rows = len(state.rows)
                if rows >= most_rows:
                    return
                if not course.middle[2] and rows >= most_rows // 2:
                    course.middle = (_known_of(state, begun), ip, rows)
                if count % _LOOK_AT_CLOCK == 0:
                    _check_progress(state, deadline_seconds)
        finally:
            course.ip = ip
        raise WalkEndError(BurstEnd.DEADLINE, "code with few accesses")

    def _guess(self, ip: int, target: int) -> bool:
        return self._rng.random() < (_BACK if target <= ip else _AHEAD)

    def _step(self, ip: int) -> Step:
        """The step of an instruction, after a look whether its code has changed."""
        if ip >> 12 not in self._checked:
            if not self._is_code(ip):
                raise WalkEndError(BurstEnd.FAULT, "a jump to no code: its stack has changed since")
            self._check(ip >> 12)
        step = self._steps.get(ip)
        if step is None:
            step = self._steps[ip] = self._compiler.step_at(ip)
        return step

    def _check(self, page: int) -> bytes:
        """The code of a page; if it has changed, what was made of it is forgotten."""
        code = self._checked.get(page)
        if code is None:
            code = self._checked[page] = self._read(page * PAGE_BYTES, PAGE_BYTES)
            if self._code.get(page) != code:
                self._forget(page)
            self._code[page] = code
        return code

    def _forget(self, page: int) -> None:
        """Forget the steps of a page, and of the one before: the last may reach into this one."""
        gone = [ip for ip in self._steps if page - 1 <= ip >> 12 <= page]
        for ip in gone:
            del self._steps[ip]

    def _read_code(self, address: int, size_bytes: int) -> bytes:
        first, last = address >> 12, (address + size_bytes - 1) >> 12
        found = b"".join(self._check(page) for page in range(first, last + 1))
        at = address & (PAGE_BYTES - 1)
        return found[at : at + size_bytes]


def _known_of(state: State, begun: Sequence[int]) -> tuple[int, ...]:
    return tuple(
        before if value is None else value
        for value, before in zip(state.registers, begun, strict=True)
    )


def _check_progress(state: State, deadline_seconds: float) -> None:
    """End a walk that is late, or of which too few addresses are known."""
    if time.monotonic() >= deadline_seconds:
        raise WalkEndError(BurstEnd.DEADLINE)
    made = len(state.rows) + state.unknown_rows
    if made >= _JUDGED_ROWS and len(state.rows) < _KNOWN_LEAST * made:
        raise WalkEndError(BurstEnd.UNREADABLE, "addresses that depend on what cannot be known")
