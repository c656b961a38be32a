"""Registers of a running thread at moments of its CPU time, without a stop."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from memsampd import _core
from memsampd.sampler.perf.refusal import explain_refusal

# Positions, as 8-byte words, in struct user_regs_struct.
REGISTER_WORDS = {
    name: word
    for word, name in enumerate(
        "R15 R14 R13 R12 RBP RBX R11 R10 R9 R8 RAX RCX RDX RSI RDI ORIG_RAX RIP CS EFLAGS RSP SS "
        "FS_BASE GS_BASE".split()
    )
}
GENERAL = [
    word
    for name, word in REGISTER_WORDS.items()
    if name not in ("ORIG_RAX", "CS", "EFLAGS", "SS", "FS_BASE", "GS_BASE")
]


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
        mine, others = (np.frombuffer(r, np.uint64)[GENERAL] for r in (self.registers, registers))
        return bool(np.array_equal(mine, others))


def take_moments(
    tid: int, period_seconds: float, count: int, patience_seconds: float
) -> list[Moment]:
    """Interrupt a thread so many times and keep its registers.

    Args:
        tid: the thread.
        period_seconds: CPU time between two; a multiple where one would fall into the kernel.
        count: how many, at most 64.
        patience_seconds: wall time after which fewer will do.

    Raises:
        MemsampdError: the event cannot be had, and why.
    """
    try:
        event = _core.Moments(tid, round(1e9 * period_seconds), count)
    except OSError as error:
        raise explain_refusal(error, f"interrupting thread {tid}") from error
    deadline = time.monotonic() + patience_seconds
    try:
        taken = event.take()
        while len(taken) < count and (left := deadline - time.monotonic()) > 0:
            can_go_on = event.wait(min(left, 0.05))
            taken = event.take()
            if not can_go_on:
                break
    finally:
        event.close()
    return [Moment(1e-9 * task_ns, registers) for task_ns, _, registers in taken]
