"""Registers of a running thread at moments of its CPU time, without a stop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memsampd import _core
from memsampd.sampler.perf.refusal import explain_refusal

# Positions, as 8-byte words, in struct user_regs_struct.
_WORDS = (
    *("R15", "R14", "R13", "R12", "RBP", "RBX", "R11", "R10", "R9", "R8"),
    *("RAX", "RCX", "RDX", "RSI", "RDI", "ORIG_RAX", "RIP", "CS", "EFLAGS", "RSP", "SS"),
    *("FS_BASE", "GS_BASE"),
)
REGISTER_WORDS = {name: word for word, name in enumerate(_WORDS)}
GENERAL_REGISTERS = tuple(
    name
    for name in _WORDS
    if name not in ("ORIG_RAX", "RIP", "CS", "EFLAGS", "SS", "FS_BASE", "GS_BASE")
)
_COMPARED = [REGISTER_WORDS[name] for name in (*GENERAL_REGISTERS, "RIP")]


_SLICE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Moment:
    """One interrupt of a thread in user mode.

    Attributes:
        cpu_seconds: CPU time of the thread, from an origin that all moments taken together share.
        registers: struct user_regs_struct; fs_base and gs_base are 0, not known.
    """

    cpu_seconds: float
    registers: bytes

    def register(self, name: str) -> int:
        """The value of one (``"RIP"``)."""
        word = REGISTER_WORDS[name]
        return int.from_bytes(self.registers[8 * word : 8 * word + 8], "little")

    def equals(self, registers: bytes) -> bool:
        """Whether the general registers and the instruction pointer are the same."""
        mine, others = (np.frombuffer(r, np.uint64)[_COMPARED] for r in (self.registers, registers))
        return bool(np.array_equal(mine, others))


def take_moments(tid: int, times_seconds: Sequence[float], patience_seconds: float) -> list[Moment]:
    """Interrupt a thread at these times of its CPU time from now on, and keep its registers.

    Args:
        tid: the thread.
        times_seconds: at most eight; a multiple where one would fall into the kernel. The first
            should be late: being asked has disturbed what the thread has in its caches.
        patience_seconds: wall time after which fewer will do.

    Returns:
        In their order.

    Raises:
        MemsampdError: the events cannot be had, and why.
    """
    try:
        events = _core.Moments(tid, [round(1e9 * at) for at in times_seconds])
    except OSError as error:
        raise explain_refusal(error, f"interrupting thread {tid}") from error
    try:
        return collect_moments(events, len(times_seconds), patience_seconds)
    finally:
        events.close()


def collect_moments(events: _core.Moments, count: int, patience_seconds: float) -> list[Moment]:
    """Wait for so many moments of events that have begun, or for so long; in their order."""
    deadline = time.monotonic() + patience_seconds
    taken = events.take()
    while len(taken) < count and (left := deadline - time.monotonic()) > 0:
        can_go_on = events.wait(min(left, _SLICE_SECONDS))
        taken = events.take()
        if not can_go_on:
            break
    return [Moment(1e-9 * moment[0], moment[2]) for moment in taken if moment is not None]
