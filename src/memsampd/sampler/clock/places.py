"""Where in the rows of a run a moment was: its registers and its code tell the accesses to come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import iced_x86
import numpy as np
from iced_x86 import FlowControl, Register
from numpy.typing import NDArray

from memsampd.sampler.clock.moments import GENERAL_REGISTERS, Moment
from memsampd.sampler.clock.records import Rows, each_once
from memsampd.sampler.clock.upcoming import Upcoming, Values, follow_registers, next_accesses

ReadCode = Callable[[int, int], bytes]
"""At an address, so many bytes of code, or fewer where it ends."""

_ACCESSES = 64  # that are compared along one course
_ENOUGH_ACCESSES = 12  # where one place only is left
_STEADY_ACCESSES = 24  # over which no place went: the program repeats itself
_BRANCHES = 6  # conditional ones between two accesses: both ways are followed
_STRETCHES = 150
_INSTRUCTIONS = 64  # between two accesses
_CODE_BYTES = 256

_Places = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class _Walk:
    """A course of the code from the moment on, and the places that agree with it so far.

    Attributes:
        ip: what comes next.
        values: of the registers there.
        places: first rows of those; None: all, for nothing was accessed yet.
        accesses: so far.
        branches: conditional ones since the last access.
        steady: accesses since there were more places.
    """

    ip: int
    values: Values
    places: _Places | None
    accesses: int
    branches: int
    steady: int = 0


def find_places(rows: Rows, moment: Moment, read_code: ReadCode) -> _Places:
    """Where the rows may go on from a moment.

    The code is followed from the moment's registers. Where it branches, the rows tell the way;
    where an address follows from what the registers were, the rows must have it.

    Returns:
        Counts of rows before the moment, ascending; none where the code does not tell.
    """
    values: Values = {getattr(Register, name): moment.register(name) for name in GENERAL_REGISTERS}
    pending = [_Walk(moment.register("RIP"), values, None, 0, 0)]
    code = _Code(read_code)
    ended: list[_Places] = []
    for _ in range(_STRETCHES):
        if not pending or _is_one(pending, ended):
            break
        walk = pending.pop()
        if walk.steady >= _STEADY_ACCESSES and walk.places is not None and len(walk.places) > 1:
            return walk.places
        ways = _go_on(walk, rows, code)
        if ways is None:
            if walk.places is None:
                return np.empty(0, np.intp)
            ended.append(walk.places)
        else:
            pending += [way for way in ways if way.places is None or len(way.places)]
    left = [walk.places for walk in pending if walk.places is not None]
    return each_once(np.concatenate([np.empty(0, np.intp), *ended, *left]))


def _is_one(pending: list[_Walk], ended: list[_Places]) -> bool:
    """Whether only one place is left, after enough accesses to believe it."""
    if any(walk.places is None or walk.accesses < _ENOUGH_ACCESSES for walk in pending):
        return False
    places = [*ended, *(walk.places for walk in pending if walk.places is not None)]
    return sum(map(len, places)) <= 1


def _go_on(walk: _Walk, rows: Rows, code: _Code) -> list[_Walk] | None:
    """Follow a walk over its next accesses or to its next branch; None: it is not known further."""
    if walk.accesses >= _ACCESSES:
        return None
    ip, values = walk.ip, dict(walk.values)
    for _ in range(_INSTRUCTIONS):
        instruction = code.at(ip)
        accesses = next_accesses(instruction, values) if instruction else None
        if instruction is None or accesses is None:
            return None
        places, count = _agreeing(rows, walk.places, walk.accesses, accesses)
        stack = values[Register.RSP]
        follow_registers(instruction, values)
        match instruction.flow_control:
            case FlowControl.NEXT:
                targets: tuple[int, ...] = (instruction.next_ip,)
            case FlowControl.UNCONDITIONAL_BRANCH | FlowControl.CALL:
                targets = (instruction.near_branch_target,)
            case FlowControl.CONDITIONAL_BRANCH:
                targets = (instruction.next_ip, instruction.near_branch_target)
            case FlowControl.RETURN if stack is not None:
                targets = code.returns(rows, stack)
            case _:
                targets = ()
        if not targets:  # what agrees with its accesses is all that can be told
            return [_Walk(ip, values, places, _ACCESSES, 0)] if accesses else None
        branches = (0 if accesses else walk.branches) + (len(targets) > 1)
        if branches > _BRANCHES:
            return None
        if accesses or len(targets) > 1:
            steady = _steady(walk, places, count)
            return [_Walk(target, values, places, count, branches, steady) for target in targets]
        ip = targets[0]
    return None


def _steady(walk: _Walk, places: _Places | None, count: int) -> int:
    """Accesses since there were more places, so many having been compared now."""
    if walk.places is None or places is None or len(places) < len(walk.places):
        return 0
    return walk.steady + count - walk.accesses


def _agreeing(
    rows: Rows, places: _Places | None, count: int, accesses: list[Upcoming]
) -> tuple[_Places | None, int]:
    """The places whose rows go on with these accesses, after so many that did."""
    for access in accesses:
        if places is None:
            at = places = np.flatnonzero(rows.ip == np.uint64(access.ip))
        else:
            places = places[places + count < len(rows)]
            at = places + count
        agrees = rows.ip[at] == np.uint64(access.ip)
        if access.address is not None:
            agrees &= rows.address[at] == np.uint64(access.address)
        places = places[agrees]
        count += 1
    return places, count


class _Code:
    """Decodes instructions, each once."""

    def __init__(self, read_code: ReadCode) -> None:
        self._read = read_code
        self._known: dict[int, iced_x86.Instruction | None] = {}
        self._bytes, self._origin = b"", 0
        self._returns: dict[int, tuple[int, ...]] = {}

    def at(self, ip: int) -> iced_x86.Instruction | None:
        """The instruction there; None: none that is known."""
        if ip not in self._known:
            if not self._origin <= ip < self._origin + len(self._bytes) - 15:
                self._bytes, self._origin = self._read(ip, _CODE_BYTES), ip
            decoder = iced_x86.Decoder(64, self._bytes[ip - self._origin :], ip=ip)
            instruction = decoder.decode() if self._bytes else None
            is_good = instruction is not None and not instruction.is_invalid
            self._known[ip] = instruction if is_good else None
        return self._known[ip]

    def returns(self, rows: Rows, stack: int) -> tuple[int, ...]:
        """Where a return may go to that reads the stack there: behind calls that wrote it."""
        if stack not in self._returns:
            writers = each_once(rows.ip[rows.address == np.uint64(stack)])
            calls = [self.at(int(ip)) for ip in writers]
            kinds = (FlowControl.CALL, FlowControl.INDIRECT_CALL)
            self._returns[stack] = tuple(c.next_ip for c in calls if c and c.flow_control in kinds)
        return self._returns[stack]
